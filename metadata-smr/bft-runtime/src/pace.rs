//! How fast a source is read: unproductive frames are rate-limited.
//!
//! Taking turns among the waiting sources ([`crate::inbox`]) is not enough against floods. Clients
//! that behave wait for answers most of the time, so a flood finds a processor that is idle for a
//! moment and takes it, and all other work has to wait for the end of each of its turns. So some
//! frames are charged to an account, and the sockets of a source that owes too much are left unread
//! for a while. Nothing is dropped: the flood waits at its source.
//!
//! *Clients* are charged for frames that were answered without being ordered (retries, requests
//! beyond their credit, status queries) and for frames that were refused without blame, the more
//! the longer they are. A well-behaved client only retries now and then. An ordered operation is
//! not charged here, since credit bounds those, and neither is an unordered read, since its answer
//! is useful. *Strangers* are charged for every frame: they need to send one. An account is kept by
//! principal, for all its connections, and for a while after the last one has ended.
//!
//! *Replicas* send about as much as each other. More than several times as much as the others send
//! is a flood. The measure is relative: otherwise it would limit replicas that help one that lags,
//! and all replicas of a fast cluster. It is the volume of the replica that sends least after u
//! replicas are left out, which may be down, so that it is always a correct replica's. With r = 0
//! there is no limit.
//!
//! Source: Clement, Kapritsos, Lee, Wang, Alvisi, Dahlin and Riché, "UpRight Cluster Services"
//! (2009), whose volume check is relative too and cuts the connection instead.

use crate::limits;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::PublicKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The debt of one principal.
#[derive(Debug)]
pub(crate) struct Account {
    owed: Mutex<(f64, Instant)>,
}

impl Account {
    fn new(now: Instant) -> Self {
        Self {
            owed: Mutex::new((0.0, now)),
        }
    }

    /// The debt that time has not paid off yet; the two numbers are consistent at any time.
    fn debt(&self, now: Instant) -> MutexGuard<'_, (f64, Instant)> {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(owed.1).as_secs_f64();
        let left = owed.0 - passed * limits::WASTE_PER_SECOND;
        *owed = (left.max(0.0), now.max(owed.1));
        owed
    }

    /// Charges an unproductive frame of so many bytes.
    pub(crate) fn charge(&self, bytes: usize, now: Instant) {
        self.debt(now).0 += 1.0 + bytes as f64 / limits::WASTE_BYTES;
    }

    /// How long its connections are to be left unread.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let beyond = self.debt(now).0 - limits::WASTE_BURST;
        (beyond > 0.0).then(|| Duration::from_secs_f64(beyond / limits::WASTE_PER_SECOND))
    }
}

/// The accounts of all principals that were seen recently.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    all: Mutex<BTreeMap<PublicKey, Arc<Account>>>,
}

impl Accounts {
    /// The account of a principal.
    pub(crate) fn of(&self, key: PublicKey, now: Instant) -> Arc<Account> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&key) && all.len() >= limits::ACCOUNTS_MAX {
            // Accounts without debt can go; beyond that, accounts without a connection.
            all.retain(|_, account| account.debt(now).0 > 0.0);
            if all.len() >= limits::ACCOUNTS_MAX {
                all.retain(|_, account| Arc::strong_count(account) > 1);
            }
        }
        let new = || Arc::new(Account::new(now));
        all.entry(key).or_insert_with(new).clone()
    }

    /// Charges an unproductive frame of a principal.
    pub(crate) fn charge(&self, key: PublicKey, bytes: usize, now: Instant) {
        self.of(key, now).charge(bytes, now);
    }
}

/// Frames of each other replica in this interval and in the one before.
#[derive(Debug)]
struct Counts {
    model: FaultModel,
    since: Instant,
    now: BTreeMap<PublicKey, u32>,
    before: BTreeMap<PublicKey, u32>,
}

impl Counts {
    /// The volume of a replica that is certainly correct or no higher than a correct one's.
    fn measure(&self, of: &BTreeMap<PublicKey, u32>) -> u32 {
        let others = usize::from(self.model.replicas()).saturating_sub(1);
        let mut sent: Vec<u32> = of.values().copied().collect();
        sent.resize(others.max(sent.len()), 0);
        sent.sort_unstable();
        let place = usize::from(self.model.up());
        sent.get(place).copied().unwrap_or_default()
    }
}

/// The volume of frames of each replica.
#[derive(Debug)]
pub(crate) struct Volumes {
    counts: Mutex<Counts>,
}

impl Volumes {
    pub(crate) fn new(model: FaultModel, now: Instant) -> Self {
        Self {
            counts: Mutex::new(Counts {
                model,
                since: now,
                now: BTreeMap::new(),
                before: BTreeMap::new(),
            }),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A panic while holding it leaves counts that are too small.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An epoch has begun: the senders and the fault model may be others.
    pub(crate) fn enter(&self, model: FaultModel) {
        let mut counts = self.counts();
        counts.model = model;
        counts.now.clear();
        counts.before.clear();
    }

    /// Counts a frame of a replica; returns how long its connection is to be left unread.
    pub(crate) fn count(&self, from: PublicKey, now: Instant) -> Option<Duration> {
        let mut counts = self.counts();
        if counts.model.right() == 0 {
            return None;
        }
        let passed = now.saturating_duration_since(counts.since);
        if passed >= limits::VOLUME_INTERVAL {
            counts.before = std::mem::take(&mut counts.now);
            if passed >= limits::VOLUME_INTERVAL * 2 {
                counts.before.clear();
            }
            counts.since = now;
        }
        let own = counts.now.entry(from).or_default();
        *own = own.saturating_add(1);
        let own = *own;
        if own <= limits::VOLUME_FRAMES_MIN {
            return None;
        }
        let usual = counts
            .measure(&counts.now)
            .max(counts.measure(&counts.before));
        let allowed = usual
            .saturating_mul(limits::VOLUME_RATIO)
            .saturating_add(limits::VOLUME_FRAMES_MIN);
        let end = counts.since + limits::VOLUME_INTERVAL;
        (own > allowed).then(|| end.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Frames of a flood that are read within ten seconds, and when that is.
    fn read(accounts: &Accounts, flood: PublicKey, bytes: usize) -> (u32, Instant) {
        let start = Instant::now();
        let (mut now, mut read) = (start, 0_u32);
        while now < start + Duration::from_secs(10) {
            match accounts.of(flood, now).pause(now) {
                None => {
                    accounts.charge(flood, bytes, now);
                    read += 1;
                }
                Some(pause) => now += pause.max(MILLISECOND),
            }
        }
        (read, now)
    }

    #[test]
    fn unproductive_frames_are_rate_limited_after_a_burst_over_all_connections() {
        let accounts = Accounts::default();
        let (flood, quiet) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let (long, _) = read(&accounts, PublicKey([3; 32]), 1 << 20);
        assert!((20..100).contains(&long), "{long} frames of a megabyte");
        let (read, now) = read(&accounts, flood, 0);
        let most = limits::WASTE_BURST + 10.0 * limits::WASTE_PER_SECOND + 2.0;
        assert!(f64::from(read) <= most, "{read}");
        assert!(f64::from(read) >= most * 0.9, "{read}");
        assert!(accounts.of(quiet, now).pause(now).is_none());
        let later = now + Duration::from_secs(60);
        assert!(accounts.of(flood, later).pause(later).is_none(), "paid off");
    }

    #[test]
    fn accounts_are_bounded_and_debts_outlive_their_connections() {
        let now = Instant::now();
        let accounts = Accounts::default();
        let debtor = PublicKey([9; 32]);
        for _ in 0..1000 {
            accounts.charge(debtor, 0, now);
        }
        for number in 0..2 * limits::ACCOUNTS_MAX as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            drop(accounts.of(PublicKey(key), now));
        }
        assert!(accounts.all.lock().expect("whole").len() <= limits::ACCOUNTS_MAX);
        assert!(accounts.of(debtor, now).pause(now).is_some());
    }

    /// Frames that are admitted from each of three others within ten seconds.
    fn admitted(model: FaultModel, frames_per_second: [u32; 3]) -> [u32; 3] {
        let start = Instant::now();
        let volumes = Volumes::new(model, start);
        let (mut taken, mut blocked) = ([0; 3], [start; 3]);
        for step in 0..100_000_u32 {
            let now = start + Duration::from_micros(u64::from(step) * 100);
            for (number, rate) in (0_u8..).zip(frames_per_second) {
                let place = usize::from(number);
                let due = u64::from(step + 1) * u64::from(rate) / 10_000;
                while u64::from(taken[place]) < due && blocked[place] <= now {
                    taken[place] += 1;
                    if let Some(pause) = volumes.count(PublicKey([number; 32]), now) {
                        blocked[place] = now + pause;
                    }
                }
            }
        }
        taken
    }

    #[test]
    fn a_replica_is_limited_to_a_multiple_of_a_correct_ones_volume() {
        let model = FaultModel::new(1, 1, 4).expect("a model");
        assert_eq!(admitted(model, [3000, 2500, 100]), [30_000, 25_000, 1000]);
        assert_eq!(admitted(model, [3000, 2500, 0]), [30_000, 25_000, 0]);
        let flooded = admitted(model, [200_000, 2000, 2500]);
        assert_eq!((flooded[1], flooded[2]), (20_000, 25_000));
        assert!(flooded[0] < 150_000, "{flooded:?}");
        let crash_only = FaultModel::new(1, 0, 3).expect("a model");
        assert_eq!(admitted(crash_only, [50_000, 0, 0])[0], 500_000);
    }
}
