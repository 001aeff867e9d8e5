//! The control socket of a running mount, for `status`, `umount` and others.
//!
//! A request is one line of JSON and so is the answer; then the connection ends. The socket is in
//! the state directory, which only its owner can enter, and only processes of the mounting user and
//! of the superuser are answered. The length of lines, the waiting times and the number of
//! connections are bounded, so that no client can block a mount from here.

use crate::configuration::TierSetting;
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Longest request or answer.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Connections to serve at the same time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 8;
/// How long either side waits for the other's line.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request to a running mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Question {
    /// Report the status.
    Status,
    /// Make one file, or everything, as durable as a tier says, within a few seconds.
    Sync {
        /// The file, if it is one.
        inode: Option<u64>,
        /// The tier.
        #[serde(default)]
        tier: TierSetting,
        /// The ticket in the answer to the first request; nothing to begin.
        #[serde(default)]
        ticket: Option<u64>,
    },
    /// Bring a part of a file into the disk cache.
    Warm {
        /// The file.
        inode: u64,
        /// Where the part begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// Drop caches in memory, and report the status.
    Forget,
    /// Commit everything, unmount, and end.
    Stop,
}

/// A listening socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
    places: Arc<Semaphore>,
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn socket(state: &StateDirectory) -> PathBuf {
    state.join("control.sock")
}

impl ControlServer {
    /// Listens. The caller holds the directory's lock, so that a socket left there belongs to no
    /// running process.
    pub(crate) fn bind(state: &StateDirectory) -> CommandResult<Self> {
        let path = socket(state);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::file("remove the old socket", &path, &error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => {
                let message = format!("the path {} is too long for a socket", path.display());
                Failure::new(Exit::Usage, message).hint("use a state directory with a shorter path")
            }
            _ => Failure::file("listen on", &path, &error),
        })?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode)
            .map_err(|error| Failure::file("protect", &path, &error))?;
        Ok(Self {
            listener,
            path,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        })
    }

    /// Stops listening, and waits for the answers in progress.
    pub(crate) async fn finish(self) {
        let places = Arc::clone(&self.places);
        drop(self);
        let all = places.acquire_many(CONNECTIONS_MAX as u32);
        let _ = tokio::time::timeout(PATIENCE, all).await;
    }

    /// Answers until dropped.
    pub(crate) async fn serve<A, F, R>(&self, answer: A)
    where
        A: Fn(Question) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = R> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) if !may_ask(&stream) => drop((stream, place)),
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(PATIENCE, converse(stream, answer)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Whether the process that connected is the mounting user's or the superuser's.
fn may_ask(stream: &UnixStream) -> bool {
    let uid = match stream.peer_cred() {
        Ok(peer) => peer.uid(),
        Err(error) => {
            tracing::warn!(%error, "a request is refused, since its user could not be determined");
            return false;
        }
    };
    let may = is_allowed(uid, rustix::process::geteuid().as_raw());
    if !may {
        tracing::warn!(uid, "a request of another user is refused");
    }
    may
}

fn is_allowed(uid: u32, own: u32) -> bool {
    uid == own || uid == 0
}

async fn converse<A, F, R>(stream: UnixStream, answer: A) -> std::io::Result<()>
where
    A: Fn(Question) -> F,
    F: Future<Output = R>,
    R: Serialize,
{
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(LINE_BYTES_MAX))
        .read_line(&mut line)
        .await?;
    let question = serde_json::from_str(&line)?;
    let mut reply = serde_json::to_vec(&answer(question).await)?;
    reply.push(b'\n');
    writer.write_all(&reply).await?;
    writer.shutdown().await
}

/// Asks the mount that runs on this state directory; `None` if there is none.
pub(crate) async fn ask<R>(state: &StateDirectory, question: Question) -> CommandResult<Option<R>>
where
    R: for<'a> Deserialize<'a>,
{
    let path = socket(state);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Failure::file("connect to", &path, &error)),
    };
    match tokio::time::timeout(PATIENCE, exchange(stream, question)).await {
        Ok(Ok(line)) => serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| unreadable_answer(&path, &error)),
        Ok(Err(error)) => Err(Failure::file("talk to the mount at", &path, &error)),
        Err(_) => Err(Failure::new(
            Exit::Error,
            format!("the mount at {} does not answer", path.display()),
        )
        .hint("look into its log; if it hangs, stop its process")),
    }
}

async fn exchange(stream: UnixStream, question: Question) -> std::io::Result<String> {
    let (reader, mut writer) = stream.into_split();
    let mut request = serde_json::to_vec(&question)?;
    request.push(b'\n');
    writer.write_all(&request).await?;
    let mut line = String::new();
    BufReader::new(reader.take(LINE_BYTES_MAX))
        .read_line(&mut line)
        .await?;
    Ok(line)
}

fn unreadable_answer(path: &Path, error: &serde_json::Error) -> Failure {
    let message = format!(
        "the answer of the mount at {} is not understood: {error}",
        path.display()
    );
    Failure::new(Exit::Error, message).hint("it may run another version; restart it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_who_mounted_and_the_superuser_are_answered() {
        for (uid, own, may) in [(5, 5, true), (0, 5, true), (6, 5, false), (5, 0, false)] {
            assert_eq!(is_allowed(uid, own), may, "{uid} asks the mount of {own}");
        }
        let (one, other) = UnixStream::pair().unwrap();
        assert!(may_ask(&one) && may_ask(&other), "this process asks itself");
    }

    #[tokio::test]
    async fn a_question_is_answered_and_a_dead_mount_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::find(Some(directory.path()), "volume").unwrap();
        assert_eq!(ask::<String>(&state, Question::Status).await.unwrap(), None);
        let server = ControlServer::bind(&state).unwrap();
        let serving = server.serve(|question| async move { format!("{question:?}") });
        tokio::select! {
            () = serving => panic!("ended"),
            answer = ask::<String>(&state, Question::Status) => {
                assert_eq!(answer.unwrap().unwrap(), "Status");
            }
        }
        drop(server);
        assert_eq!(ask::<String>(&state, Question::Status).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_not_a_question_does_not_stop_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::find(Some(directory.path()), "volume").unwrap();
        let server = ControlServer::bind(&state).unwrap();
        let serving = server.serve(|question| async move { format!("{question:?}") });
        let asking = async {
            let mut stream = UnixStream::connect(socket(&state)).await.unwrap();
            stream.write_all(&[b'x'; 100]).await.unwrap();
            stream.write_all(b"\n").await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty());
            ask::<String>(&state, Question::Stop)
                .await
                .unwrap()
                .unwrap()
        };
        tokio::select! {
            () = serving => panic!("ended"),
            answer = asking => assert_eq!(answer, "Stop"),
        }
    }
}
