//! Habits that a profile or a plan adds to those that are drawn.

use super::{Habit, Proxy};
use crate::profile::Profile;
use quorumfs_bft::authentication::Authentication;

impl Proxy {
    /// The same liar in a profile, where votes are authenticated like this.
    #[must_use]
    pub fn in_profile(self, profile: Profile, authentication: Authentication) -> Self {
        let liar = match profile {
            Profile::Reads => self.misreading(),
            _ if authentication == Authentication::Mac => self.unsigned(),
            _ => self,
        };
        match profile {
            Profile::Regions => liar.handing_over(),
            _ => liar,
        }
    }

    /// The same liar, which also lies to readers and, one time in two, has no other habit.
    #[must_use]
    fn misreading(mut self) -> Self {
        self.misreads = true;
        if self.random.chance(1, 2) {
            self.habits.clear();
        }
        self
    }

    /// The same liar, which also delays each proposal.
    #[must_use]
    pub fn dawdling(mut self) -> Self {
        self.habits.push(Habit::Dawdle);
        self
    }

    /// The same liar, which, one time in two, also hands its views over.
    #[must_use]
    fn handing_over(mut self) -> Self {
        let mut more = self.random.clone().fork(4);
        if more.chance(1, 2) {
            self.habits.push(Habit::HandOver);
        }
        self
    }

    /// The same liar, which also sends forged nodes of a state.
    #[must_use]
    pub fn forging(mut self) -> Self {
        if !self.habits.contains(&Habit::ForgeNodes) {
            self.habits.push(Habit::ForgeNodes);
        }
        self
    }

    /// The same liar in a cluster without signed votes, which allow more lies.
    #[must_use]
    fn unsigned(mut self) -> Self {
        let mut more = self.random.clone().fork(3);
        self.signs_votes = false;
        if more.chance(1, 2) {
            self.habits.push(Habit::FalseClaims);
        }
        if more.chance(1, 3) {
            self.habits.push(Habit::Forge);
        }
        self
    }
}
