//! Event counters since the start.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(in crate::blocks) struct Counters {
            $(pub(in crate::blocks) $name: Counter,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(in crate::blocks) fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.get(),)* }
            }
        }

        impl CounterValues {
            /// Each counter's name and value.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Objects of which w shards were acknowledged.
    objects_written,
    /// Plain bytes in them.
    bytes_written,
    /// Plain bytes that were read.
    bytes_read,
    /// Shards that their clouds acknowledged.
    shards_put,
    /// Puts that failed.
    puts_failed,
    /// Puts made because another one was late.
    puts_spilled,
    /// Background puts that were dropped to stay within the byte budget; completion repeats them.
    puts_dropped,
    /// Answers with other bytes than the shard's.
    shards_refused,
    /// Shards that their clouds denied having.
    shards_missing,
    /// Shards that a read bypassed because the answer was bad, missing or late.
    shards_replaced,
    /// Objects rebuilt for a read, a completion or a repair.
    objects_rebuilt,
    /// Missing shards that were put later, or found to be there.
    shards_completed,
    /// Bad or lost shards that were written again.
    shards_repaired,
    /// Failed repairs; the next read of the object tries again.
    repairs_failed,
    /// Shards that a scrub looked at.
    shards_scrubbed,
    /// Acknowledgements that a scrub has withdrawn.
    shards_withdrawn,
    /// Faults of clouds that were reported to the order.
    faults_testified,
    /// Slices moved out of sparse packs.
    slices_moved,
    /// Packs that compaction left without a live slice.
    packs_compacted,
    /// Sealed bytes that compaction made unnecessary.
    bytes_freed,
    /// Shards that contradict the metadata by their writers' fault.
    written_wrong,
    /// Objects that nothing needed and whose shards were deleted.
    objects_collected,
    /// Stored bytes of their shards.
    bytes_collected,
    /// Shards that no row named and that were deleted.
    shards_swept,
    /// Whole shards that were read, good or bad.
    shards_read,
    /// Shards that moved from replaced clouds to others.
    shards_moved,
}

/// One counter.
#[derive(Debug, Default)]
pub(in crate::blocks) struct Counter(AtomicU64);

impl Counter {
    pub(in crate::blocks) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(in crate::blocks) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
