//! How much one address may ask for.
//!
//! Each address has a bucket of requests, which fills at a steady rate up to a burst. A request
//! takes one; a wrong token takes many more, below zero, so that trying tokens is slow however many
//! connections it has. Connections and downloads are counted as well.
//!
//! An IPv6 host can take any address of its network, so the first 64 bits count. The table has a
//! bound: buckets that are full again are dropped, and if there are still too many, all further
//! addresses share one bucket. So an attacker with a million addresses slows newcomers, and takes
//! no memory.
//!
//! The time is handed in: what has passed since the server began.

use crate::limits::{ADDRESSES_MAX, ServingLimits};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Thousandths of a request.
const PER_REQUEST: i64 = 1_000;

/// An address for counting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CountedAddress(u128);

impl From<IpAddr> for CountedAddress {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

/// The last address that proxies have noted in `X-Forwarded-For`: the one that the proxy next to
/// this server has seen.
#[must_use]
pub fn forwarded_for(value: &[u8]) -> Option<IpAddr> {
    let value = std::str::from_utf8(value).ok()?;
    let last = value.rsplit(',').next()?.trim();
    let unbracketed = last
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map(|(inner, _)| inner);
    unbracketed.unwrap_or(last).parse().ok()
}

/// Requests that an address may still send.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: i64,
    at: Duration,
}

/// Counts of all addresses.
#[derive(Debug)]
pub struct Admission {
    burst: i64,
    per_second: i64,
    connections_max: u32,
    downloads_max: u32,
    buckets: BTreeMap<CountedAddress, Bucket>,
    shared: Bucket,
    connections: BTreeMap<CountedAddress, u32>,
    downloads: BTreeMap<CountedAddress, u32>,
}

impl Admission {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new(limits: &ServingLimits) -> Self {
        let burst = i64::from(limits.requests_burst).max(1) * PER_REQUEST;
        Self {
            burst,
            per_second: i64::from(limits.requests_per_second).max(1) * PER_REQUEST,
            connections_max: limits.connections_per_address,
            downloads_max: limits.downloads_per_address,
            buckets: BTreeMap::new(),
            shared: Bucket {
                left: burst,
                at: Duration::ZERO,
            },
            connections: BTreeMap::new(),
            downloads: BTreeMap::new(),
        }
    }

    /// What is in a bucket now.
    fn filled(&self, bucket: Bucket, now: Duration) -> Bucket {
        let passed = now.saturating_sub(bucket.at).as_millis();
        let gained = i64::try_from(passed)
            .unwrap_or(i64::MAX)
            .saturating_mul(self.per_second)
            / 1_000;
        Bucket {
            left: bucket.left.saturating_add(gained).min(self.burst),
            at: now,
        }
    }

    fn bucket(&self, address: CountedAddress, now: Duration) -> Bucket {
        let full = Bucket {
            left: self.burst,
            at: now,
        };
        match self.buckets.get(&address) {
            Some(bucket) => self.filled(*bucket, now),
            None if self.buckets.len() < ADDRESSES_MAX => full,
            None => self.filled(self.shared, now),
        }
    }

    fn store(&mut self, address: CountedAddress, bucket: Bucket) {
        if self.buckets.len() >= ADDRESSES_MAX && !self.buckets.contains_key(&address) {
            let (now, burst) = (bucket.at, self.burst);
            let mut buckets = std::mem::take(&mut self.buckets);
            buckets.retain(|_, it| self.filled(*it, now).left < burst);
            self.buckets = buckets;
        }
        if self.buckets.len() < ADDRESSES_MAX || self.buckets.contains_key(&address) {
            self.buckets.insert(address, bucket);
        } else {
            self.shared = bucket;
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// If the address has none left: for how long.
    pub fn request(&mut self, address: CountedAddress, now: Duration) -> Result<(), Duration> {
        let mut bucket = self.bucket(address, now);
        let left = bucket.left.saturating_sub(PER_REQUEST);
        if left < 0 {
            let lacking = u64::try_from(left.saturating_neg()).unwrap_or(u64::MAX);
            let rate = u64::try_from(self.per_second).unwrap_or(1).max(1);
            return Err(Duration::from_millis(lacking.saturating_mul(1_000) / rate));
        }
        bucket.left = left;
        self.store(address, bucket);
        Ok(())
    }

    /// A request was a wrong try, which costs so many more.
    pub fn wrong(&mut self, address: CountedAddress, now: Duration, cost: u32) {
        let mut bucket = self.bucket(address, now);
        let cost = i64::from(cost).saturating_mul(PER_REQUEST);
        bucket.left = bucket.left.saturating_sub(cost).max(-self.burst);
        self.store(address, bucket);
    }

    /// Counts a connection; whether there may be one more.
    pub fn connect(&mut self, address: CountedAddress) -> bool {
        add(&mut self.connections, address, self.connections_max)
    }

    /// A connection ended.
    pub fn disconnect(&mut self, address: CountedAddress) {
        remove(&mut self.connections, address);
    }

    /// Counts a download; whether there may be one more.
    pub fn begin_download(&mut self, address: CountedAddress) -> bool {
        add(&mut self.downloads, address, self.downloads_max)
    }

    /// A download ended.
    pub fn end_download(&mut self, address: CountedAddress) {
        remove(&mut self.downloads, address);
    }
}

fn add(counts: &mut BTreeMap<CountedAddress, u32>, address: CountedAddress, most: u32) -> bool {
    let count = counts.get(&address).copied().unwrap_or(0);
    if count >= most {
        return false;
    }
    counts.insert(address, count + 1);
    true
}

fn remove(counts: &mut BTreeMap<CountedAddress, u32>, address: CountedAddress) {
    match counts.get_mut(&address) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(&address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn admission() -> Admission {
        Admission::new(&ServingLimits {
            requests_burst: 10,
            requests_per_second: 2,
            connections_per_address: 3,
            ..ServingLimits::default()
        })
    }

    fn address(text: &str) -> CountedAddress {
        let address: IpAddr = text.parse().unwrap();
        address.into()
    }

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_is_served_and_then_the_rate() {
        let (mut admission, here) = (admission(), address("192.0.2.1"));
        for _ in 0..10 {
            assert_eq!(admission.request(here, at(0)), Ok(()));
        }
        assert_eq!(admission.request(here, at(0)), Err(at(500)));
        assert_eq!(admission.request(address("192.0.2.2"), at(0)), Ok(()));
        assert_eq!(admission.request(here, at(499)), Err(at(1)));
        assert_eq!(admission.request(here, at(500)), Ok(()));
        assert_eq!(admission.request(here, at(500)), Err(at(500)));
    }

    #[test]
    fn wrong_tokens_cost_more_than_the_rate_gives_back() {
        let (mut admission, here) = (admission(), address("192.0.2.1"));
        let mut tries = 0;
        for millis in 0..60_000 {
            if admission.request(here, at(millis)).is_ok() {
                admission.wrong(here, at(millis), 20);
                tries += 1;
            }
        }
        // Each try takes all, down to the floor; eleven requests come back in 5.5 seconds.
        assert!((10..=12).contains(&tries), "{tries}");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        assert_eq!(address("2001:db8::1"), address("2001:db8:0:0:ffff::9"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    }

    #[test]
    fn a_million_addresses_take_no_more_memory_and_share_what_is_left() {
        let mut admission = admission();
        let number = |number: u32| CountedAddress::from(IpAddr::from(number.to_be_bytes()));
        let mut served = 0;
        for host in 0..100_000 {
            served += u32::from(admission.request(number(host), at(0)).is_ok());
        }
        assert!(admission.buckets.len() <= ADDRESSES_MAX);
        assert_eq!(served, ADDRESSES_MAX as u32 + 10);
        // Later there is room again.
        assert_eq!(admission.request(number(200_000), at(10_000)), Ok(()));
        assert_eq!(admission.buckets.len(), 1);
    }

    #[test]
    fn connections_are_counted_until_they_end() {
        let (mut admission, here) = (admission(), address("192.0.2.1"));
        assert!((0..3).all(|_| admission.connect(here)));
        assert!(!admission.connect(here));
        admission.disconnect(here);
        assert!(admission.connect(here));
        (0..3).for_each(|_| admission.disconnect(here));
        assert!(admission.connections.is_empty());
    }

    #[test]
    fn the_last_proxy_counts() {
        let found = |value: &str| forwarded_for(value.as_bytes()).map(|it| it.to_string());
        for (value, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("10.0.0.1, 192.0.2.7", Some("192.0.2.7")),
            (" 2001:db8::1 ", Some("2001:db8::1")),
            ("x, [2001:db8::1]:4711", Some("2001:db8::1")),
            ("", None),
            ("192.0.2.1, unknown", None),
        ] {
            assert_eq!(found(value).as_deref(), expected, "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_address_gets_more_than_burst_and_rate(
            steps in prop::collection::vec((0..400_u64, any::<bool>()), 1..300)
        ) {
            let (mut admission, here) = (admission(), address("192.0.2.1"));
            let (mut now, mut served) = (0, 0);
            for (wait, is_wrong) in steps {
                now += wait;
                if admission.request(here, at(now)).is_ok() {
                    served += 1;
                    if is_wrong {
                        admission.wrong(here, at(now), 20);
                    }
                }
            }
            prop_assert!(served <= 10 + now * 2 / 1_000 + 1);
        }
    }
}
