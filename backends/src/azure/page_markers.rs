//! Where a listing can be resumed.
//!
//! A page of the service ends with a *marker* from which the next page begins and which only the
//! service can make; our callers begin after a name. Later versions of the service begin at a name
//! (`startFrom`). For earlier versions and for emulators this module caches the markers of the
//! pages that were read, with the last name before each. The cache only saves reading pages again:
//! without a marker the listing starts from the beginning, and names are compared in any case.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many markers are cached, and so how many listings can be resumed at a time.
const PLACES_MAX: usize = 64;

/// The end of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageMarker {
    prefix: String,
    /// The last name of that page.
    pub(super) last: String,
    /// The marker from which the next page begins.
    pub(super) marker: String,
}

/// The ends of recent pages.
#[derive(Debug, Default)]
pub(super) struct PageMarkers(Mutex<VecDeque<PageMarker>>);

impl PageMarkers {
    fn places(&self) -> MutexGuard<'_, VecDeque<PageMarker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Caches the end of a page of the names below `prefix`, of which `last` is the last.
    pub(super) fn remember(&self, prefix: &str, last: &str, marker: &str) {
        let mut places = self.places();
        places.retain(|place| place.prefix != prefix || place.last != last);
        if places.len() >= PLACES_MAX {
            places.pop_front();
        }
        places.push_back(PageMarker {
            prefix: prefix.to_owned(),
            last: last.to_owned(),
            marker: marker.to_owned(),
        });
    }

    /// The last marker that precedes all names after `after`.
    pub(super) fn before(&self, prefix: &str, after: &str) -> Option<PageMarker> {
        let places = self.places();
        let usable = places
            .iter()
            .filter(|place| place.prefix == prefix && place.last.as_str() <= after);
        usable.max_by(|a, b| a.last.cmp(&b.last)).cloned()
    }

    /// Drops a marker that the service no longer accepts.
    pub(super) fn forget(&self, place: &PageMarker) {
        self.places().retain(|other| other != place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_from_the_last_place_that_skips_nothing() {
        let places = PageMarkers::default();
        places.remember("a/", "a/3", "three");
        places.remember("a/", "a/5", "five");
        places.remember("b/", "b/1", "one");
        let found = |after| places.before("a/", after).map(|place| place.marker);
        assert_eq!(found("a/2"), None);
        assert_eq!(found("a/3").as_deref(), Some("three"));
        assert_eq!(found("a/4").as_deref(), Some("three"));
        assert_eq!(found("a/9").as_deref(), Some("five"));
        places.forget(&places.before("a/", "a/9").unwrap());
        assert_eq!(found("a/9").as_deref(), Some("three"));
    }

    #[test]
    fn no_more_places_are_kept_than_the_bound() {
        let places = PageMarkers::default();
        for number in 0..PLACES_MAX + 7 {
            places.remember("", &format!("{number:04}"), "");
        }
        assert_eq!(places.places().len(), PLACES_MAX);
    }
}
