//! What happened since the start, counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters, as they are counted.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn values(&self) -> CounterValues {
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
    /// Puts that were made because another one was late.
    puts_spilled,
    /// Puts that were given up in the background for lack of room; completion does them again.
    puts_dropped,
    /// Answers that were not the shard's bytes.
    shards_refused,
    /// Shards that their clouds say they do not have.
    shards_missing,
    /// Shards that a read did without because the answer was bad, missing or late.
    shards_replaced,
    /// Objects that were rebuilt to be read, completed or repaired.
    objects_rebuilt,
    /// Shards that were missing and were put later, or found to be there.
    shards_completed,
    /// Bad or lost shards that were written again.
    shards_repaired,
    /// Repairs that did not succeed; the next read of the object tries again.
    repairs_failed,
    /// Shards that a scrub looked at.
    shards_scrubbed,
    /// Acknowledgements that a scrub had taken back.
    shards_withdrawn,
    /// Faults of clouds that were told to the order.
    faults_testified,
    /// Slices that were moved out of sparse packs.
    slices_moved,
    /// Packs that nothing lives in any more because of that.
    packs_compacted,
    /// Sealed bytes that are not needed any more because of that.
    bytes_freed,
    /// Shards that cannot be made as the metadata describes them: their writers' fault.
    written_wrong,
}

/// One counter.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
