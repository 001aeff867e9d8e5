//! A replica's address: a host and a port.
//!
//! A host is an IP address or a name. A name is resolved each time it is dialed, so a machine that
//! returns with another address is found again. TLS decides whose key answers there, so a lying
//! resolver can make a replica unreachable and nothing more.
//!
//! ```text
//! 192.0.2.7:7000      [2001:db8::7]:7000      replica-3.example:7000
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name that DNS allows.
const NAME_BYTES_MAX: usize = 253;

/// See the module. A clone is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(Arc<str>);

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not HOST:PORT, such as 192.0.2.7:7000 or replica.example:7000")]
pub struct NoAddress(String);

impl Address {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn literal(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }

    /// Whether it stands for every address of a machine (`0.0.0.0`): good for listening, not for
    /// dialing.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.literal().is_some_and(|it| it.ip().is_unspecified())
    }

    /// Whether it can only mean this machine. A name is not resolved here, so it never counts.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.literal().is_some_and(|it| it.ip().is_loopback())
    }

    /// Resolves the host now.
    ///
    /// # Errors
    /// If the name is unknown, or the resolver does not answer.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some(address) = self.literal() {
            return Ok(vec![address]);
        }
        let found: Vec<_> = tokio::net::lookup_host(self.as_str()).await?.collect();
        match found.is_empty() {
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
            false => Ok(found),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string().into())
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        if let Ok(literal) = text.parse::<SocketAddr>() {
            return Ok(literal.into());
        }
        let wrong = || NoAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let fits = |label: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(known)
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        // Four numbers that are not an IP address are a typing error, not a name.
        let last = name.rsplit('.').next().unwrap_or_default();
        let numbers = last.bytes().all(|byte| byte.is_ascii_digit());
        let named = name.len() <= NAME_BYTES_MAX && name.split('.').all(fits) && !numbers;
        let numbered = port.parse::<u16>().is_ok_and(|port| port > 0);
        match named && numbered {
            true => Ok(Self(text.to_ascii_lowercase().into())),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_parsed_and_typing_errors_refused() {
        for text in [
            "192.0.2.7:7000",
            "[2001:db8::7]:7000",
            "replica-3.example:7000",
            "replica_3:1",
            "host.example.:65535",
        ] {
            assert_eq!(
                text.parse::<Address>().map(|it| it.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!("Host:1".parse(), "host:1".parse::<Address>());
        for wrong in [
            "",
            "host",
            "host:",
            ":7000",
            "host:0",
            "host:65536",
            "ho st:1",
            "a..b:1",
            ".:1",
            "192.0.2.256:7000",
            "192.0.2:7000",
            "2001:db8::7",
            "http://host:1",
            "host:1/",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        let long = format!("{}:1", vec!["a".repeat(60); 5].join("."));
        assert!(long.parse::<Address>().is_err());
    }

    #[test]
    fn unspecified_and_loopback_addresses_are_recognised() {
        let address = |text: &str| text.parse::<Address>().expect("an address");
        for (text, unspecified, loopback) in [
            ("0.0.0.0:1", true, false),
            ("[::]:1", true, false),
            ("127.0.0.1:1", false, true),
            ("192.0.2.7:1", false, false),
            ("localhost:1", false, false),
        ] {
            let address = address(text);
            assert_eq!(address.is_unspecified(), unspecified, "{text}");
            assert_eq!(address.is_loopback(), loopback, "{text}");
        }
    }

    #[tokio::test]
    async fn names_are_resolved_and_unknown_ones_refused() {
        let address = |text: &str| text.parse::<Address>().expect("an address");
        let found = address("localhost:7000").resolve().await.expect("known");
        assert!(
            found
                .iter()
                .all(|it| it.ip().is_loopback() && it.port() == 7000)
        );
        assert!(address("no-such-host.invalid:1").resolve().await.is_err());
    }
}
