//! All input and output of the ordering library: keys, sockets, disk, timers, threads.
//!
//! # A replica and a client
//!
//! The counter of `quorumfs-bft`'s front page, on one replica: a cluster of (u, r) = (0, 0). Each
//! of four replicas with (1, 1) would run this on a machine of its own, with all four in its list.
//!
//! ```
//! use bytes::Bytes;
//! use quorumfs_bft::fault_model::FaultModel;
//! use quorumfs_bft::identity::{ClusterId, ReplicaId};
//! use quorumfs_bft_runtime::client::{BlockingClient, CallbackClient, ClientConfig, Member};
//! use quorumfs_bft_runtime::disk::Durability;
//! use quorumfs_bft_runtime::keys::NodeKey;
//! use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaServer};
//! use std::sync::{Arc, mpsc};
//! # use quorumfs_bft::service::{Caller, Context, Credit, Service};
//! # use quorumfs_bft::state::{StateError, Txn, View};
//! # /// Counts: an operation is a byte to add, and each answer is the sum.
//! # struct Counter;
//! #
//! # fn sum(view: &View<'_>) -> Result<u64, StateError> {
//! #     let row = view.get(b"sum")?.unwrap_or_default();
//! #     Ok(row.as_ref().try_into().map_or(0, u64::from_be_bytes))
//! # }
//! #
//! # impl Service for Counter {
//! #     fn genesis(&self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), StateError> {
//! #         txn.put(b"sum", vec![0; 8])
//! #     }
//! #     fn open_session(
//! #         &self, _: &mut Txn<'_>, _: &Context, _: &Caller,
//! #     ) -> Result<Option<Credit>, StateError> {
//! #         Ok(Some(Credit { lanes: 8, bytes: 1 << 20 })) // any principal may connect
//! #     }
//! #     fn execute(
//! #         &self, txn: &mut Txn<'_>, _: &Context, _: &Caller, operation: &[u8],
//! #     ) -> Result<Bytes, StateError> {
//! #         let &[add] = operation else { return Ok(Bytes::new()) }; // no effect
//! #         let sum = sum(&txn.view())?.wrapping_add(add.into()).to_be_bytes().to_vec();
//! #         txn.put(b"sum", sum.clone())?;
//! #         Ok(Bytes::from(sum))
//! #     }
//! #     fn read(&self, view: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
//! #         Ok(Bytes::from(sum(view)?.to_be_bytes().to_vec()))
//! #     }
//! # }
//!
//! // What an operator decides once.
//! let cluster = ClusterId([7; 16]);
//! let fault_model = FaultModel::new(0, 0, 1)?;
//! let key = Arc::new(NodeKey::generate()?);
//! let directory = tempfile::tempdir()?;
//! let disk = directory.path().join("replica-0");
//! let incarnation = ReplicaServer::initialise(&disk)?;
//!
//! // The replica, in any asynchronous runtime.
//! let runtime = tokio::runtime::Runtime::new()?;
//! let socket = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
//! let address = socket.local_addr()?.into();
//! let member = Member { id: ReplicaId(0), key: key.public(), incarnation, address };
//! let config = ReplicaConfig {
//!     id: Some(ReplicaId(0)),
//!     cluster,
//!     fault_model,
//!     replicas: vec![member.clone()],
//!     administrators: Vec::new(),
//!     key,
//!     listen: None,
//!     directory: disk,
//!     free_bytes_min: 0,
//!     durability: Durability::Strict,
//!     genesis: Bytes::new(),
//!     authentication: Default::default(),
//!     recording: None,
//! };
//! let replica = runtime.block_on(ReplicaServer::start_on(config, Counter, socket))?;
//!
//! // A client that blocks. The asynchronous one, `Client`, has the same calls.
//! let principal = Arc::new(NodeKey::generate()?);
//! let config = ClientConfig::new(cluster, fault_model, vec![member], principal);
//! let client = BlockingClient::connect(config.clone())?;
//! assert_eq!(client.execute(Bytes::from_static(&[40]))?[7], 40);
//! assert_eq!(client.read(Bytes::new())?[7], 40, "unordered, but not stale");
//!
//! // A client that calls back.
//! let (sender, receiver) = mpsc::channel();
//! let other = CallbackClient::connect(config)?;
//! other.execute(Bytes::from_static(&[2]), move |answer| {
//!     let _ = sender.send(answer);
//! });
//! assert_eq!(receiver.recv()??[7], 42);
//! assert_eq!(client.read(Bytes::new())?[7], 42);
//!
//! client.close()?;
//! runtime.block_on(replica.shutdown());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! | Module | What it contains |
//! |---|---|
//! | [`server`] | a replica in a process |
//! | [`client`] | the client: asynchronous, synchronous, with callbacks |
//! | [`state_copy`] | a verified copy of the replicated state, for a client with the right |
//! | [`keys`] | Ed25519 node keys, their file, and the ZIP-215 verdict |
//! | [`tls`] | mutual TLS 1.3, pinned by key |
//! | [`link`] | framed connections: greeting, bounded queues, keepalives, dialing, listening |
//! | [`replica_links`] | a replica's connections: to its peers, and from all that dial it |
//! | `roster` | which nodes are connected, which may be, and where frames to them go |
//! | `unknown_replicas` | nodes that claim to be replicas of a later epoch |
//! | `self_administration` | the commands that a replica submits itself, such as rejoining |
//! | `disk_space` | the free space on its disk, the reports of a shortage, and the reserve |
//! | `verification` | from bytes to verified messages, on the right thread |
//! | `inbox` | the inputs that wait for the event loop, bounded and taken fairly |
//! | `pace` | how fast each source is read |
//! | [`event_loop`] | the thread that owns the core: events in, effects out |
//! | `recorder` | records the events of a replica |
//! | [`disk`] | the journal with group commit, and the state |
//! | [`store`] | the database of the state, and the files of batches next to it |
//! | [`unsigned`] | measurements without signatures |
//! | [`limits`] | every bound and deadline, with its reason |

pub mod address;
pub mod client;
pub mod disk;
mod disk_space;
pub mod event_loop;
mod inbox;
pub mod keys;
pub mod limits;
pub mod link;
mod pace;
mod recorder;
pub mod replica_links;
mod roster;
mod self_administration;
pub mod server;
pub mod state_copy;
pub mod store;
pub mod tls;
mod unknown_replicas;
pub mod unsigned;
mod verification;
