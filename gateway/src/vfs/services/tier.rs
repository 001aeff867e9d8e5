//! How safe written data is when close and fsync return.

/// What close and fsync wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tier {
    /// Nothing: written data may be lost with this process, until it is committed.
    Memory,
    /// The journal on this host. Without one, as [`Tier::Clouds`].
    Local,
    /// The commit, after w clouds have acknowledged.
    #[default]
    Clouds,
}

impl Tier {
    /// The name of the tier.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
            Self::Clouds => "clouds",
        }
    }

    /// The tier of this name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::Memory, Self::Local, Self::Clouds]
            .into_iter()
            .find(|tier| tier.name().as_bytes() == name)
    }
}
