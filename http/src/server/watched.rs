//! Links are confirmed while something is downloaded.
//!
//! One task for each link that has downloads asks the source each second, however many downloads
//! there are. It reports the end of the link, and also that the link could not be confirmed for too
//! long: a gateway that is cut off from the replicas would otherwise serve what was revoked.

use super::face::Face;
use crate::token::LinkToken;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Becomes true when a link has ended.
pub(super) type LinkEnd = watch::Receiver<bool>;

type Reports = Arc<watch::Sender<bool>>;

/// See the module.
#[derive(Default)]
pub(super) struct WatchedLinks {
    links: Mutex<BTreeMap<LinkToken, Reports>>,
}

impl WatchedLinks {
    fn links(&self) -> MutexGuard<'_, BTreeMap<LinkToken, Reports>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a link that was confirmed just now, until the returned end is dropped.
    pub(super) fn watch(face: &Arc<Face>, token: LinkToken) -> LinkEnd {
        let mut links = face.watched.links();
        // One that has ended says so; it leaves the table by itself.
        if let Some(reports) = links.get(&token).filter(|it| !*it.borrow()) {
            return reports.subscribe();
        }
        let (reports, end) = watch::channel(false);
        let reports = Arc::new(reports);
        links.insert(token, reports.clone());
        tokio::spawn(confirm(face.clone(), token, reports));
        end
    }

    /// Whether no download needs these reports any more; then they are forgotten.
    fn is_idle(&self, token: &LinkToken, reports: &Reports) -> bool {
        let mut links = self.links();
        if reports.receiver_count() > 0 {
            return false;
        }
        if links.get(token).is_some_and(|it| Arc::ptr_eq(it, reports)) {
            links.remove(token);
        }
        true
    }
}

async fn confirm(face: Arc<Face>, token: LinkToken, reports: Reports) {
    let (every, most) = {
        let limits = face.limits();
        (limits.confirm_every, limits.unconfirmed_for)
    };
    let mut confirmed = Instant::now();
    loop {
        sleep(every).await;
        if face.watched.is_idle(&token, &reports) {
            return;
        }
        let asked = Instant::now();
        let left = most.saturating_sub(confirmed.elapsed()).max(every);
        match timeout(left, face.source.find(&token)).await {
            Ok(Ok(Some(_))) => confirmed = asked,
            Ok(Ok(None)) => {
                reports.send_replace(true);
            }
            Ok(Err(_)) | Err(_) => {
                if confirmed.elapsed() >= most {
                    tracing::info!("downloads are cut: their link could not be confirmed");
                    reports.send_replace(true);
                }
            }
        }
    }
}
