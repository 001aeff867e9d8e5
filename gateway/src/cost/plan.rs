//! The use that a workload makes of each cloud, before there is a volume.
//!
//! A plan knows sizes, not files: it takes all files for equally long. It cuts them as a gateway
//! does, with the same functions for the lengths of streams and shards:
//!
//! | A file of | is stored as |
//! |---|---|
//! | at most 1 KiB | a row of the metadata, and nothing on the clouds |
//! | less than 512 KiB, written together with others | a part of a pack of up to 4 MiB |
//! | anything else | objects of 4 MiB, and one for the rest |
//!
//! Each object is one put to each of the n clouds. A pack departs before it is full if too few
//! files arrive while others are on their way: how full they are depends on the speed of the
//! machine, of the network and of the clouds, and a plan takes them for three quarters full.
//!
//! A read gets the cells that it needs from the data shards, one request for each of them. The
//! first mebibyte of a file is fetched in chunks, since no prefetch knows of it, and the rest of
//! each block at once. Which clouds these are depends on the preference: all in turn, or the k that
//! are cheapest to read from.
//!
//! What it leaves out: other shards that are read in place of those of a busy or late cloud,
//! retries, repairs, completion after failures, opening the volume (a handful of
//! requests for each command), compaction, and what a cache saves. So a plan is a little low for a
//! volume with trouble, and high for one with a good cache.

use super::bill::CloudUse;
use crate::blocks::{CELL_BYTES, Preference, proved_cell_bytes, sealed_length, shard_bytes};
use crate::slices::CHUNK_BYTES;
use quorumfs_metadata::limits::{INLINE_BYTES_MAX, PACK_SLICES_MAX};
use quorumfs_metadata::placement::Policy;

/// Bytes of a full block.
const BLOCK: u64 = 4 << 20;
/// Files below it share objects, if they are written together.
const PACKED_BELOW: u64 = 512 << 10;
/// How full a pack is when it departs, as a ratio.
const PACK_FILL: (u64, u64) = (3, 4);
/// What a reader asks for first, and gets chunk by chunk; the rest of the block is prefetched.
const FIRST_READ: u64 = 1 << 20;
/// Names in one page of a listing.
const PAGE: u64 = 1000;
/// Sweeps of listings in a month: one a week.
const SWEEPS: u64 = 5;
/// Days of a month.
const DAYS: u64 = 30;

/// What is to be stored, and what happens to it in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedWorkload {
    /// Bytes of content.
    pub bytes: u64,
    /// Files.
    pub files: u64,
    /// Bytes that are read from the clouds.
    pub bytes_read: u64,
    /// Bytes that are written over older content.
    pub bytes_written: u64,
    /// Whether small files are written many at a time, as `put` does.
    pub together: bool,
}

impl PlannedWorkload {
    /// Bytes of the mean file, at least one.
    fn mean(&self) -> u64 {
        (self.bytes / self.files.max(1)).max(1)
    }
}

/// What a plan says of one cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedUse {
    /// Writing everything once.
    pub filling: CloudUse,
    /// A month of the full volume.
    pub monthly: CloudUse,
}

/// Equally long objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Objects {
    count: u64,
    stream: u32,
}

/// How all files are cut, and what reading each of them once takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cut {
    objects: Vec<Objects>,
    gets: u64,
    bytes_received: u64,
}

/// `a * b / c` without overflow in between.
fn ratio(a: u64, b: u64, c: u64) -> u64 {
    let scaled = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn sealed(length: u64) -> u32 {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    sealed_length(length).unwrap_or(u32::MAX)
}

impl Cut {
    fn of(workload: &PlannedWorkload, data: u8) -> Self {
        let (files, mean) = (workload.files, workload.mean());
        let (full, rest) = (mean / BLOCK, mean % BLOCK);
        let mut cut = Self::default();
        cut.add_whole(files.saturating_mul(full), BLOCK, data);
        match full {
            0 if rest <= u64::from(INLINE_BYTES_MAX) => {}
            0 if rest < PACKED_BELOW && workload.together => cut.add_packed(files, rest, data),
            _ if rest > 0 => cut.add_whole(files, rest, data),
            _ => {}
        }
        if !cut.objects.is_empty() {
            let chunks = mean.min(FIRST_READ).div_ceil(u64::from(CHUNK_BYTES));
            // Counted so far: one fetch of the first block.
            let more = chunks.saturating_sub(u64::from(mean <= FIRST_READ));
            let more = more.saturating_mul(u64::from(data));
            cut.gets = cut.gets.saturating_add(files.saturating_mul(more));
        }
        cut
    }

    /// Objects of one slice each.
    fn add_whole(&mut self, count: u64, length: u64, data: u8) {
        if count == 0 {
            return;
        }
        let stream = sealed(length);
        let cell = proved_cell_bytes(stream, data);
        let cells = u64::from(stream).div_ceil(u64::from(CELL_BYTES));
        let shards = cells.min(u64::from(data));
        // Full cells have their path too; the last one is shorter by what the stream lacks.
        let lacking = cells * u64::from(CELL_BYTES) - u64::from(stream);
        self.objects.push(Objects { count, stream });
        self.gets = self.gets.saturating_add(count.saturating_mul(shards));
        let received = count.saturating_mul((cells * cell).saturating_sub(lacking));
        self.bytes_received = self.bytes_received.saturating_add(received);
    }

    /// Objects that small files share.
    fn add_packed(&mut self, files: u64, length: u64, data: u8) {
        let slice = u64::from(sealed(length));
        let fitting = (BLOCK / length).clamp(1, u64::from(PACK_SLICES_MAX));
        let each = ratio(fitting, PACK_FILL.0, PACK_FILL.1).clamp(1, files.max(1));
        let stream = u32::try_from(each.saturating_mul(slice)).unwrap_or(u32::MAX);
        let count = files.div_ceil(each);
        self.objects.push(Objects { count, stream });
        // A slice begins anywhere in a cell, so it touches one cell more than it fills.
        let full = u64::from(CELL_BYTES);
        let touched = full + slice - 1;
        let shards = touched.min(full * u64::from(data));
        self.gets = self.gets.saturating_add(ratio(files, shards, full));
        let cell = proved_cell_bytes(stream, data);
        let received = ratio(files.saturating_mul(touched), cell, full);
        self.bytes_received = self.bytes_received.saturating_add(received);
    }

    fn count(&self) -> u64 {
        let counts = self.objects.iter().map(|it| it.count);
        counts.fold(0, u64::saturating_add)
    }

    /// Bytes of all data shards, or of all parity shards, of one cloud that has only those.
    fn stored(&self, data: u8, shard: u8) -> u64 {
        let stored = self
            .objects
            .iter()
            .map(|it| it.count.saturating_mul(shard_bytes(it.stream, data, shard)));
        stored.fold(0, u64::saturating_add)
    }
}

/// The place of each cloud among all by the price of reading; the first come first.
fn places(read_prices: &[u64]) -> Vec<usize> {
    let cheaper = |index: usize, price: u64| {
        let others = read_prices.iter().enumerate();
        others
            .filter(|(other, it)| (**it, *other) < (price, index))
            .count()
    };
    let numbered = read_prices.iter().enumerate();
    numbered
        .map(|(index, price)| cheaper(index, *price))
        .collect()
}

/// The use that a workload makes of each cloud of a policy; `read_prices` has one price for each,
/// in any unit.
#[must_use]
pub fn plan(
    workload: &PlannedWorkload,
    policy: Policy,
    preference: Preference,
    read_prices: &[u64],
) -> Vec<PlannedUse> {
    let (n, k) = (u64::from(policy.clouds()), policy.data());
    let cut = Cut::of(workload, k);
    let objects = cut.count();
    let written = |whole: u64| ratio(whole, workload.bytes_written, workload.bytes);
    let read = |whole: u64| ratio(whole, workload.bytes_read, workload.bytes);
    let lengths: Vec<u64> = (0..policy.clouds()).map(|it| cut.stored(k, it)).collect();
    let mean = lengths
        .iter()
        .fold(0_u64, |sum, it| sum.saturating_add(*it))
        / n.max(1);
    let days_old = ratio(DAYS, workload.bytes, workload.bytes_written.max(1));
    let planned = places(read_prices).into_iter().map(|place| {
        let (stored, share) = match preference {
            Preference::Fast => (mean, n),
            Preference::Cheap => {
                let holds_data = place < usize::from(k);
                let stored = lengths.get(place).copied().unwrap_or(mean);
                (stored, if holds_data { u64::from(k) } else { u64::MAX })
            }
        };
        let part = |whole: u64| match share {
            u64::MAX => 0,
            share => whole.div_ceil(share),
        };
        let filling = CloudUse {
            puts: objects,
            bytes_sent: stored,
            ..CloudUse::default()
        };
        let monthly = CloudUse {
            puts: written(objects),
            gets: part(read(cut.gets)),
            lists: objects.div_ceil(PAGE).saturating_mul(SWEEPS),
            deletes: written(objects),
            bytes_sent: written(stored),
            bytes_received: part(read(cut.bytes_received)),
            stored,
            objects,
            bytes_deleted: written(stored),
            days_old,
            ..CloudUse::default()
        };
        PlannedUse { filling, monthly }
    });
    planned.collect()
}

/// The use of one provider alone, without this program: each file is one object, read whole.
#[must_use]
pub fn alone(workload: &PlannedWorkload) -> PlannedUse {
    let mean = workload.mean();
    let (written, read) = (workload.bytes_written, workload.bytes_read);
    PlannedUse {
        filling: CloudUse {
            puts: workload.files,
            bytes_sent: workload.bytes,
            ..CloudUse::default()
        },
        monthly: CloudUse {
            puts: written.div_ceil(mean),
            gets: read.div_ceil(mean),
            deletes: written.div_ceil(mean),
            bytes_sent: written,
            bytes_received: read,
            stored: workload.bytes,
            objects: workload.files,
            bytes_deleted: written,
            days_old: ratio(DAYS, workload.bytes, written.max(1)),
            ..CloudUse::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn policy() -> Policy {
        Policy::new(4, 1, 2, 4).unwrap()
    }

    fn workload(bytes: u64, files: u64) -> PlannedWorkload {
        PlannedWorkload {
            bytes,
            files,
            bytes_read: bytes,
            bytes_written: 0,
            together: true,
        }
    }

    fn planned(workload: &PlannedWorkload, preference: Preference) -> Vec<PlannedUse> {
        plan(workload, policy(), preference, &[9, 8, 12, 1])
    }

    fn sum(planned: &[PlannedUse], of: impl Fn(&CloudUse) -> u64) -> u64 {
        planned.iter().map(|it| of(&it.monthly)).sum()
    }

    #[test]
    fn four_clouds_store_twice_the_content_and_little_more() {
        let planned = planned(&workload(1000 * 4 * MIB, 1000), Preference::Fast);
        for cloud in &planned {
            assert_eq!(cloud.filling.puts, 1000);
            // Two of four clouds for each object: four chunks, and the rest of it.
            assert_eq!(cloud.monthly.gets, 2500);
        }
        let (stored, content) = (sum(&planned, |it| it.stored), 2 * 1000 * 4 * MIB);
        assert!(stored > content && stored < content * 101 / 100, "{stored}");
        let received = sum(&planned, |it| it.bytes_received);
        assert!(received > content / 2 && received < content * 101 / 200);
    }

    #[test]
    fn small_files_share_objects_only_if_they_come_together() {
        let together = workload(4_000 * 10_000, 4_000);
        let apart = PlannedWorkload {
            together: false,
            ..together
        };
        let objects = |workload| planned(workload, Preference::Fast)[0].filling.puts;
        assert_eq!((objects(&together), objects(&apart)), (13, 4_000));
        let tiny = workload(1024 * 1000, 1000);
        let tiny = planned(&tiny, Preference::Fast);
        assert_eq!(
            sum(&tiny, |it| it.requests() + it.stored + it.bytes_received),
            0
        );
    }

    #[test]
    fn who_prefers_cheap_clouds_reads_from_the_cheapest_alone() {
        let planned = planned(&workload(100 * 4 * MIB, 100), Preference::Cheap);
        let gets: Vec<u64> = planned.iter().map(|it| it.monthly.gets).collect();
        assert_eq!(gets, [0, 500, 0, 500]);
        let lengths = planned.iter().map(|it| it.monthly.stored);
        assert!(lengths.clone().max() <= lengths.min().map(|it| it * 101 / 100));
    }

    #[test]
    fn what_is_overwritten_often_is_deleted_young() {
        let mut workload = workload(100 * 4 * MIB, 100);
        workload.bytes_written = workload.bytes * 2;
        let cloud = planned(&workload, Preference::Fast)[0].monthly;
        assert_eq!((cloud.puts, cloud.deletes, cloud.days_old), (200, 200, 15));
        assert_eq!(cloud.bytes_deleted, 2 * cloud.stored);
    }

    #[test]
    fn one_provider_alone_stores_each_file_once() {
        let alone = alone(&workload(1_000_000, 10));
        assert_eq!((alone.filling.puts, alone.monthly.gets), (10, 10));
        assert_eq!(alone.monthly.stored, 1_000_000);
    }

    proptest! {
        #[test]
        fn nothing_takes_nothing_and_more_takes_no_less(
            files in 1u64..100_000, mean in 1u64..(64 << 20), more in 0u64..(64 << 20),
            read in 0u64..1 << 40, more_read in 0u64..1 << 40,
            written in 0u64..1 << 40, cheap in any::<bool>(), together in any::<bool>(),
        ) {
            let preference = if cheap { Preference::Cheap } else { Preference::Fast };
            let of = |bytes, bytes_read, bytes_written| {
                planned(
                    &PlannedWorkload { bytes, files, bytes_read, bytes_written, together },
                    preference,
                )
            };
            let nothing = of(0, 0, 0);
            prop_assert_eq!(sum(&nothing, |it| it.requests() + it.stored), 0);
            let bytes = files * mean;
            let (small, large) = (of(bytes, 0, 0), of(bytes + files * more, 0, 0));
            prop_assert!(sum(&small, |it| it.stored) <= sum(&large, |it| it.stored));
            let few = of(bytes, read, written);
            let many = of(bytes, read + more_read, written);
            prop_assert!(sum(&few, |it| it.gets) <= sum(&many, |it| it.gets));
            prop_assert!(sum(&few, |it| it.bytes_received) <= sum(&many, |it| it.bytes_received));
            let calm = of(bytes, read, 0);
            prop_assert!(sum(&calm, |it| it.puts) <= sum(&few, |it| it.puts));
        }
    }
}
