//! Clients for programs that have no asynchronous runtime: synchronous, and with callbacks.
//!
//! Both have a thread of their own, which maintains the connections and the client's timer and ends
//! with the client. They work anywhere, inside an asynchronous runtime as well; a synchronous call
//! there blocks the calling thread, as everywhere.
//!
//! The guarantees of [`Client`] apply to them: they wrap one, on that thread.

use super::{Client, ClientConfig, ClientError, Interest, ObserverItem};
use bytes::Bytes;
use quorumfs_bft::observer::WatchId;
use std::future::Future;
use std::sync::{Arc, mpsc};
use tokio::runtime::{Builder, Runtime};

/// A thread with a client on it.
#[derive(Debug)]
pub(super) struct OwnThread {
    client: Option<Client>,
    runtime: Option<Runtime>,
}

impl OwnThread {
    fn start(config: ClientConfig) -> Result<Self, ClientError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("client")
            .enable_all()
            .build()
            .map_err(|error| {
                ClientError::Configuration(format!("a client's thread cannot start: {error}"))
            })?;
        let mut own = Self {
            client: None,
            runtime: Some(runtime),
        };
        own.client = Some(own.wait(Client::connect(config))?);
        Ok(own)
    }

    pub(super) fn client(&self) -> Result<Client, ClientError> {
        self.client.clone().ok_or(ClientError::Closed)
    }

    /// Runs a future on the thread, and waits for it here.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Result<T, ClientError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.call_back(work, move |result| {
            // The caller waits below.
            let _ = sender.send(result);
        });
        receiver.recv().unwrap_or(Err(ClientError::Closed))
    }

    /// Runs a future on the thread and passes its result to a callback there.
    fn call_back<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
        callback: impl FnOnce(Result<T, ClientError>) + Send + 'static,
    ) {
        match &self.runtime {
            Some(runtime) => {
                runtime.spawn(async move { callback(work.await) });
            }
            None => callback(Err(ClientError::Closed)),
        }
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        // The observers' threads wait for items and hold the client.
        if let Some(client) = self.client.take() {
            client.end_observers();
        }
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// A session with the cluster whose calls block until they are answered. Clones share the session;
/// several threads may call at a time, and their requests are sent together.
///
/// The front page of this crate has an example.
#[derive(Clone, Debug)]
pub struct BlockingClient {
    pub(super) own: Arc<OwnThread>,
}

impl BlockingClient {
    /// Connects to the replicas and opens a session: [`Client::connect`].
    ///
    /// # Errors
    /// Like [`Client::connect`], and if a thread cannot be started.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let own = Arc::new(OwnThread::start(config)?);
        Ok(Self { own })
    }

    /// [`Client::execute`].
    ///
    /// # Errors
    /// Like [`Client::execute`].
    pub fn execute(&self, operation: Bytes) -> Result<Bytes, ClientError> {
        let client = self.own.client()?;
        self.own
            .wait(async move { client.execute(operation).await })
    }

    /// [`Client::query`].
    ///
    /// # Errors
    /// Like [`Client::query`].
    pub fn query(&self, query: Bytes) -> Result<Bytes, ClientError> {
        let client = self.own.client()?;
        self.own.wait(async move { client.query(query).await })
    }

    /// [`Client::read`].
    ///
    /// # Errors
    /// Like [`Client::read`].
    pub fn read(&self, query: Bytes) -> Result<Bytes, ClientError> {
        let client = self.own.client()?;
        self.own.wait(async move { client.read(query).await })
    }

    /// [`Client::read_in_session`].
    ///
    /// # Errors
    /// Like [`Client::read_in_session`].
    pub fn read_in_session(&self, query: Bytes) -> Result<Bytes, ClientError> {
        let client = self.own.client()?;
        self.own
            .wait(async move { client.read_in_session(query).await })
    }

    /// [`Client::close`].
    ///
    /// # Errors
    /// Like [`Client::close`].
    pub fn close(&self) -> Result<(), ClientError> {
        let client = self.own.client()?;
        self.own.wait(async move { client.close().await })
    }
}

/// A session with the cluster that calls back when a request has been answered. Nothing blocks: a
/// request beyond the client's bound fails at once with [`ClientError::Busy`].
///
/// Callbacks run on the client's thread, one after the other. A callback that blocks delays all
/// later ones; it may submit more.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    own: Arc<OwnThread>,
}

impl CallbackClient {
    /// Connects to the replicas and opens a session; blocks until it is open.
    ///
    /// Like [`Client::connect`], and if a thread cannot be started.
    /// As [`Client::connect`], and if a thread cannot be started.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let own = Arc::new(OwnThread::start(config)?);
        Ok(Self { own })
    }

    /// [`Client::execute`], whose answer goes to `callback`.
    pub fn execute(
        &self,
        operation: Bytes,
        callback: impl FnOnce(Result<Bytes, ClientError>) + Send + 'static,
    ) {
        let client = self.own.client();
        self.own
            .call_back(async move { client?.execute(operation).await }, callback);
    }

    /// [`Client::query`], whose answer goes to `callback`.
    pub fn query(
        &self,
        query: Bytes,
        callback: impl FnOnce(Result<Bytes, ClientError>) + Send + 'static,
    ) {
        let client = self.own.client();
        self.own
            .call_back(async move { client?.query(query).await }, callback);
    }

    /// [`Client::read`], whose answer goes to `callback`.
    pub fn read(
        &self,
        query: Bytes,
        callback: impl FnOnce(Result<Bytes, ClientError>) + Send + 'static,
    ) {
        let client = self.own.client();
        self.own
            .call_back(async move { client?.read(query).await }, callback);
    }

    /// [`Client::watch`], whose answer goes to `callback`.
    pub fn watch(
        &self,
        what: Bytes,
        callback: impl FnOnce(Result<WatchId, ClientError>) + Send + 'static,
    ) {
        let client = self.own.client();
        self.own
            .call_back(async move { client?.watch(what).await }, callback);
    }

    /// [`Client::observe`]: all items go to `callback`, on a thread of its own that ends with the
    /// session. A callback that blocks delays nothing else; if it blocks for long it gets an
    /// [`ObserverItem::Lagging`].
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn observe(
        &self,
        interest: Interest,
        mut callback: impl FnMut(ObserverItem) + Send + 'static,
    ) -> Result<(), ClientError> {
        let Some(runtime) = self.own.runtime.as_ref().map(Runtime::handle).cloned() else {
            return Err(ClientError::Closed);
        };
        let mut observer = self.own.client()?.observe(interest);
        let observing = move || {
            while let Some(item) = runtime.block_on(observer.next()) {
                callback(item);
            }
        };
        let thread = std::thread::Builder::new().name("observer".to_owned());
        let spawned = thread.spawn(observing);
        spawned.map(|_| ()).map_err(|error| {
            ClientError::Configuration(format!("an observer's thread cannot start: {error}"))
        })
    }

    /// [`Client::close`], and then `callback`.
    pub fn close(&self, callback: impl FnOnce(Result<(), ClientError>) + Send + 'static) {
        let client = self.own.client();
        self.own
            .call_back(async move { client?.close().await }, callback);
    }
}
