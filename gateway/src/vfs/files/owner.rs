//! The owner of everything that is open or has something to commit.

use super::access_times::AccessTimes;
use super::gone::{Gone, Specials};
use super::handle::Handles;
use super::locks::NamespaceLocks;
use super::node::{Node, NodeState};
use crate::error::VfsError;
use crate::vfs::known::{ContentMap, KnownMetadata, QueryStamp};
use crate::vfs::services::Services;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::RwLock;

/// A file that has something to commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedFile {
    /// The file.
    pub inode: InodeId,
    /// Bytes of it that wait, or are being committed.
    pub bytes: u64,
    /// For how long; `None` if all are being committed.
    pub waiting: Option<Duration>,
}

/// See the module of the wing.
pub(in crate::vfs) struct Files {
    pub(super) services: Arc<Services>,
    pub(super) known: Arc<KnownMetadata>,
    pub(in crate::vfs) handles: Handles,
    /// Special files that lost their last names, and are held in case they are open.
    pub(in crate::vfs) specials: Specials,
    pub(in crate::vfs) gone: Gone,
    pub(in crate::vfs) access_times: AccessTimes,
    nodes: Mutex<HashMap<InodeId, Arc<Node>>>,
    namespace: NamespaceLocks,
}

impl Files {
    /// Nothing is open.
    pub(in crate::vfs) fn new(services: Arc<Services>, known: Arc<KnownMetadata>) -> Arc<Self> {
        Arc::new(Self {
            services,
            known,
            handles: Handles::default(),
            specials: Specials::default(),
            gone: Gone::default(),
            access_times: AccessTimes::default(),
            nodes: Mutex::default(),
            namespace: NamespaceLocks::default(),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<InodeId, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `of` finds in the nodes that there are; it may take their states and no other lock.
    pub(in crate::vfs) fn collect<T>(&self, of: impl FnMut(&Arc<Node>) -> Option<T>) -> Vec<T> {
        self.nodes().values().filter_map(of).collect()
    }

    /// Files that have something to commit, the one that waited longest first.
    pub(in crate::vfs) fn queue(&self) -> Vec<QueuedFile> {
        let mut queue = self.collect(|node| {
            let state = node.state();
            state.is_waiting().then(|| QueuedFile {
                inode: node.inode,
                bytes: state.booked,
                waiting: state.waiting_since.map(|since| since.elapsed()),
            })
        });
        queue.sort_by_key(|file| std::cmp::Reverse((file.waiting, file.inode)));
        queue
    }

    /// Inodes that are open or have something to commit, and have names as far as is known.
    pub(in crate::vfs) fn open_inodes(&self) -> BTreeSet<InodeId> {
        let files = self.collect(|node| {
            let state = node.state();
            let named = !state.unlinked && !state.is_idle();
            named.then_some(node.inode)
        });
        let directories = self.handles.directories();
        files.into_iter().chain(directories).collect()
    }

    /// Keeps an `open` (read) and an `unlink` (write) of the same inode apart.
    pub(in crate::vfs) fn namespace_lock(&self, inode: InodeId) -> &RwLock<()> {
        self.namespace.of(inode)
    }

    /// The node of an inode that is open or has pending data.
    pub(in crate::vfs) fn node(&self, inode: InodeId) -> Option<Arc<Node>> {
        self.nodes().get(&inode).cloned()
    }

    /// The node of an inode, made if there is none; `with` runs before the node can be dropped
    /// again.
    pub(in crate::vfs) fn node_with<T>(
        &self,
        attributes: &Attributes,
        content: impl FnOnce(&Attributes) -> ContentMap,
        with: impl FnOnce(&mut NodeState) -> T,
    ) -> (Arc<Node>, T) {
        let mut nodes = self.nodes();
        // A change of the inode without a node has updated the cache before this.
        let base = self.newest(attributes);
        let node = nodes
            .entry(attributes.inode)
            .or_insert_with(|| {
                let cached = self.known.extents(base.inode, base.version);
                let content = cached.unwrap_or_else(|| content(&base));
                Arc::new(Node::new(base, content))
            })
            .clone();
        let outcome = with(&mut node.state());
        (node, outcome)
    }

    /// Drops the node if it is neither open nor dirty.
    pub(in crate::vfs) fn retire(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes();
        let state = node.state();
        if state.is_idle()
            && nodes
                .get(&node.inode)
                .is_some_and(|held| Arc::ptr_eq(held, node))
        {
            if !state.unlinked && state.content.version() == state.base.version {
                self.known.learn_extents(node.inode, &state.content);
            }
            nodes.remove(&node.inode);
        }
    }

    /// Enters the answer to a query about an inode.
    pub(in crate::vfs) fn learn(&self, attributes: &Attributes, asked: QueryStamp) {
        self.services.learn_epoch(attributes);
        self.known.learn(attributes, asked);
        if let Some(node) = self.node(attributes.inode) {
            node.state().learn(attributes);
        }
    }

    /// The caller's view of an inode, for which the servers answered `attributes`.
    pub(in crate::vfs) fn seen(&self, attributes: &Attributes) -> Attributes {
        let newest = self.newest(attributes);
        let Some(node) = self.node(attributes.inode) else {
            return self.access_times.with_pending(newest);
        };
        let mut state = node.state();
        if newest.version > state.base.version {
            state.learn(&newest);
        }
        self.access_times.with_pending(state.attributes())
    }

    /// Answers may overtake each other: a newer known version counts more.
    pub(in crate::vfs) fn newest(&self, attributes: &Attributes) -> Attributes {
        let known = self.known.attributes(attributes.inode);
        known
            .filter(|known| known.version > attributes.version)
            .unwrap_or(*attributes)
    }

    /// Attributes as callers see them, queried unless they are cached.
    pub(in crate::vfs) async fn attributes(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        if let Some(node) = self.node(inode) {
            let state = node.state();
            // While this mount has something to commit, its own view is the newest.
            if state.is_waiting() {
                return Ok(self.access_times.with_pending(state.attributes()));
            }
        }
        self.known.revalidate().await;
        if let Some(attributes) = self.known.attributes(inode) {
            return Ok(self.seen(&attributes));
        }
        let asked = self.known.query_stamp();
        let attributes = self.services.metadata.attributes_near(inode).await?;
        self.learn(&attributes, asked);
        Ok(self.seen(&attributes))
    }

    /// The attributes of a file that is being opened. While other mounts may change it the servers
    /// are asked, whatever is cached: what was closed on one mount before is then seen on this one.
    pub(in crate::vfs) async fn attributes_at_open(
        &self,
        inode: InodeId,
    ) -> Result<Attributes, VfsError> {
        if self.known.may_be_shared() {
            // One that is alone may have been recalled.
            self.known.revalidate().await;
        }
        if !self.known.is_shared() {
            return self.attributes(inode).await;
        }
        let asked = self.known.query_stamp();
        let attributes = self.services.metadata.attributes(inode).await?;
        self.learn(&attributes, asked);
        Ok(self.seen(&attributes))
    }

    /// The cached attributes of an inode are out of date: asks for them.
    pub(in crate::vfs) async fn refresh_attributes(&self, inode: InodeId) -> Result<(), VfsError> {
        let asked = self.known.query_stamp();
        let attributes = self.services.metadata.attributes(inode).await?;
        self.learn(&attributes, asked);
        Ok(())
    }
}
