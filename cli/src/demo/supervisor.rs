//! Supervises one child process: starts it, waits until it is ready, restarts it when it dies, with
//! growing pauses, and stops it by its process id.
//!
//! ```text
//!            start()                   `ready` line
//!   Down ───────────────► Starting ─────────────────► Running{pid}
//!    ▲  ▲                    ▲  │ dies                    │ dies
//!    │  └── stop(), kill() ──┼──┼─────────────────────────┤
//!    │                       │  ▼                         ▼
//!    │                       └─ Waiting (0.2 s, doubling to 10 s) ─┘
//! ```
//!
//! Invariants:
//! * a child is signalled only between its start and its reaping, so that its process id is not
//!   reused;
//! * a child has its own process group, so that Ctrl-C on the terminal reaches the demo alone,
//!   which then stops the children in order;
//! * a child whose parent vanishes sees its standard input end, and stops by itself;
//! * a child's errors and the reason of its death go to a log file of bounded size;
//! * a child that fails in an orderly way reports it in its last record, with the message, the hint
//!   and the exit code of the failure.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::logging;
use crate::output;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A child that ran for so long is not in a crash loop.
const STEADY_AFTER: Duration = Duration::from_secs(30);
/// At a start, a longer log is set aside in place of the previous one. While it runs, the child
/// does so itself.
const LOG_BYTES_MAX: u64 = logging::BYTES_MAX;
/// A longer line is not a record.
const RECORD_BYTES_MAX: u64 = 64 << 10;
const LAST_RECORD_WITHIN: Duration = Duration::from_secs(1);

/// The program, its name and its log.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Its name in messages and the name of its log.
    pub(crate) name: String,
    /// The program.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// The path of the log.
    pub(crate) log: PathBuf,
}

/// The state of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not running, as ordered.
    Down,
    /// Started, and not ready yet.
    Starting,
    /// It is ready.
    Running {
        /// Its process id.
        pid: u32,
    },
    /// It died; it will be started again after a pause.
    Waiting {
        /// Why it died.
        failure: Failure,
    },
}

#[derive(Debug)]
enum Order {
    Start,
    Stop { how: Signal },
}

/// The handle of a supervised child.
#[derive(Debug)]
pub(crate) struct Supervisor {
    name: String,
    log: PathBuf,
    orders: mpsc::Sender<(Order, oneshot::Sender<()>)>,
    state: watch::Receiver<State>,
}

impl Supervisor {
    /// Supervises a child that does not run yet.
    pub(crate) fn new(recipe: Recipe) -> Self {
        let (orders, received) = mpsc::channel(4);
        let (sender, state) = watch::channel(State::Down);
        let (name, log) = (recipe.name.clone(), recipe.log.clone());
        tokio::spawn(supervise(recipe, received, sender));
        Self {
            name,
            log,
            orders,
            state,
        }
    }

    /// Its current state and later changes.
    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Starts it and waits until it is ready. Fails with the child's own error if it dies before.
    pub(crate) async fn start(&self) -> CommandResult<()> {
        self.order(Order::Start).await?;
        let mut state = self.state.clone();
        let ready = state.wait_for(|state| !matches!(state, State::Starting));
        let because = |reason: String| Failure::new(Exit::Error, reason);
        let failure = match tokio::time::timeout(READY_WITHIN, ready).await {
            Ok(Ok(state)) => match &*state {
                State::Running { .. } => return Ok(()),
                State::Waiting { failure } => failure.clone(),
                State::Down | State::Starting => because("it was stopped meanwhile".to_string()),
            },
            Ok(Err(_)) => because("its supervisor is gone".to_string()),
            Err(_) => because(format!(
                "it was not ready within {} s",
                READY_WITHIN.as_secs()
            )),
        };
        let message = format!("{} did not start: {}", self.name, failure.message);
        let failure = Failure { message, ..failure };
        Err(failure.or_hint(format!("its log is {}", self.log.display())))
    }

    /// Asks it to stop, waits for its end, and leaves it down.
    pub(crate) async fn stop(&self) -> CommandResult<()> {
        self.order(Order::Stop { how: Signal::TERM }).await
    }

    /// Kills it at once and leaves it down.
    pub(crate) async fn kill(&self) -> CommandResult<()> {
        self.order(Order::Stop { how: Signal::KILL }).await
    }

    async fn order(&self, order: Order) -> CommandResult<()> {
        let gone = || {
            Failure::new(
                Exit::Error,
                format!("the supervisor of {} is gone", self.name),
            )
        };
        let (done, seen) = oneshot::channel();
        self.orders.send((order, done)).await.map_err(|_| gone())?;
        seen.await.map_err(|_| gone())
    }
}

async fn supervise(
    recipe: Recipe,
    mut orders: mpsc::Receiver<(Order, oneshot::Sender<()>)>,
    state: watch::Sender<State>,
) {
    while let Some((order, done)) = orders.recv().await {
        if matches!(order, Order::Start) {
            state.send_replace(State::Starting);
            let _ = done.send(());
            match keep_running(&recipe, &mut orders, &state).await {
                Some(stopped) => {
                    state.send_replace(State::Down);
                    let _ = stopped.send(());
                }
                None => return,
            }
        } else {
            let _ = done.send(());
        }
    }
}

/// Restarts the child until an order to stop it; returns `None` once the handle is gone.
async fn keep_running(
    recipe: &Recipe,
    orders: &mut mpsc::Receiver<(Order, oneshot::Sender<()>)>,
    state: &watch::Sender<State>,
) -> Option<oneshot::Sender<()>> {
    let mut pause = PAUSE_MIN;
    loop {
        let began = Instant::now();
        let failure = match spawn(recipe) {
            Ok(mut child) => {
                // Kept open here: waiting for a child closes it, and then the child would stop.
                let _stdin = child.stdin.take();
                tokio::select! {
                    failure = follow(&mut child, &recipe.log, state) => failure,
                    stopped = stop_ordered(orders) => {
                        let how = stopped.as_ref().map_or(Signal::TERM, |(how, _)| *how);
                        end(&mut child, how).await;
                        return stopped.map(|(_, done)| done);
                    }
                }
            }
            Err(error) => Failure::file("run", &recipe.program, &error),
        };
        tracing::warn!(name = recipe.name, %failure, "a child died");
        note(&recipe.log, &failure);
        state.send_replace(State::Waiting { failure });
        if began.elapsed() >= STEADY_AFTER {
            pause = PAUSE_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            stopped = stop_ordered(orders) => return stopped.map(|(_, done)| done),
        }
        pause = pause.saturating_mul(2).min(PAUSE_MAX);
        state.send_replace(State::Starting);
    }
}

/// Waits for the next order to stop; an order to start a running child is fulfilled already.
async fn stop_ordered(
    orders: &mut mpsc::Receiver<(Order, oneshot::Sender<()>)>,
) -> Option<(Signal, oneshot::Sender<()>)> {
    loop {
        match orders.recv().await? {
            (Order::Start, done) => drop(done.send(())),
            (Order::Stop { how }, done) => return Some((how, done)),
        }
    }
}

fn spawn(recipe: &Recipe) -> std::io::Result<Child> {
    Command::new(&recipe.program)
        .args(&recipe.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(open_log(&recipe.log)?)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Reports when the child is ready, and returns why it ended.
async fn follow(child: &mut Child, log: &Path, state: &watch::Sender<State>) -> Failure {
    let stdout = child.stdout.take();
    let pid = child.id();
    let mut last = None;
    let ended = {
        let reading = async {
            if let (Some(stdout), Some(pid)) = (stdout, pid) {
                read_records(stdout, pid, state, &mut last).await;
            }
        };
        tokio::pin!(reading);
        tokio::select! {
            () = &mut reading => child.wait().await,
            ended = child.wait() => {
                // Its last record may still be in the pipe, which processes that it started may
                // hold open.
                let _ = tokio::time::timeout(LAST_RECORD_WITHIN, reading).await;
                ended
            }
        }
    };
    if let Some(failure) = last {
        return failure;
    }
    let reason = match (ended, last_error(log)) {
        (Ok(status), Some(words)) => format!("it ended with {}: {words}", describe(status)),
        (Ok(status), None) => format!("it ended with {}", describe(status)),
        (Err(error), _) => format!("it cannot be waited for: {error}"),
    };
    Failure::new(Exit::Error, reason)
}

/// Reads all of a child's records; `last` is the failure that it reported, if any.
async fn read_records(
    stdout: impl AsyncRead + Unpin,
    pid: u32,
    state: &watch::Sender<State>,
    last: &mut Option<Failure>,
) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        match (&mut reader)
            .take(RECORD_BYTES_MAX)
            .read_line(&mut line)
            .await
        {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        let record: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if record.get("type").and_then(serde_json::Value::as_str) == Some("ready") {
            state.send_replace(State::Running { pid });
        }
        *last = output::failure_in(&record).or(last.take());
    }
}

/// Ends a child: with a signal and some patience, or at once.
async fn end(child: &mut Child, how: Signal) {
    signal(child, how);
    if tokio::time::timeout(STOP_WITHIN, child.wait())
        .await
        .is_err()
    {
        tracing::warn!(pid = child.id(), "a child does not stop; killing it");
        signal(child, Signal::KILL);
        let _ = child.wait().await;
    }
}

/// The child has not been reaped, or `id` would be `None`: the process id is still its own.
fn signal(child: &Child, how: Signal) {
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, how);
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_string(),
    }
}

/// Logs why a child died.
fn note(log: &Path, failure: &Failure) {
    use std::io::Write;
    let Ok(mut log) = open_log(log) else { return };
    let _ = writeln!(log, "error: {}", failure.message);
    if let Some(hint) = &failure.hint {
        let _ = writeln!(log, " hint: {hint}");
    }
}

/// The last error that a child wrote, to show with its death.
fn last_error(log: &Path) -> Option<String> {
    const TAIL_BYTES: u64 = 4096;
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let line = tail
        .lines()
        .rev()
        .find(|line| line.starts_with("error: "))?;
    Some(line.trim_start_matches("error: ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(directory: &Path, script: &str) -> Supervisor {
        Supervisor::new(Recipe {
            name: "child".to_string(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            log: directory.join("child.log"),
        })
    }

    fn pid(supervisor: &Supervisor) -> u32 {
        match *supervisor.watch().borrow() {
            State::Running { pid } => pid,
            ref state => panic!("{state:?}"),
        }
    }

    const READY: &str = r#"echo '{"v":1,"type":"ready"}'; exec cat"#;

    #[tokio::test]
    async fn a_child_that_dies_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = shell(directory.path(), READY);
        supervisor.start().await.unwrap();
        let first = pid(&supervisor);
        let raw = Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
        kill_process(raw, Signal::KILL).unwrap();
        let mut state = supervisor.watch();
        let back = |state: &State| matches!(state, State::Running { pid } if *pid != first);
        let waited = tokio::time::timeout(Duration::from_secs(20), state.wait_for(back)).await;
        waited.unwrap().unwrap();
        supervisor.stop().await.unwrap();
    }

    #[tokio::test]
    async fn the_input_of_a_child_stays_open_while_it_runs() {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = shell(directory.path(), READY);
        supervisor.start().await.unwrap();
        let first = pid(&supervisor);
        tokio::time::sleep(PAUSE_MIN * 2).await;
        assert_eq!(
            pid(&supervisor),
            first,
            "its standard input ended, and so did it"
        );
    }

    #[tokio::test]
    async fn a_child_that_was_killed_on_purpose_stays_down_until_it_is_started() {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = shell(directory.path(), READY);
        supervisor.start().await.unwrap();
        let first = pid(&supervisor);
        supervisor.kill().await.unwrap();
        tokio::time::sleep(PAUSE_MIN * 3).await;
        assert_eq!(*supervisor.watch().borrow(), State::Down);
        assert!(!Path::new(&format!("/proc/{first}/exe")).exists());
        supervisor.start().await.unwrap();
        assert_ne!(pid(&supervisor), first);
    }

    #[tokio::test]
    async fn a_child_that_never_starts_is_reported_in_its_own_words() {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = shell(directory.path(), "echo 'error: no such luck' >&2; exit 7");
        let failure = supervisor.start().await.unwrap_err();
        assert!(
            failure.message.contains("exit code 7: no such luck"),
            "{failure}"
        );
        supervisor.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_child_that_fails_in_order_is_quoted_with_hint_and_exit_code() {
        let directory = tempfile::tempdir().unwrap();
        let record = r#"{"v":1,"type":"error","code":7,"message":"no device","hint":"load it"}"#;
        let supervisor = shell(directory.path(), &format!("echo '{record}'; exit 7"));
        let failure = supervisor.start().await.unwrap_err();
        let expected = Failure::new(Exit::CannotMount, "child did not start: no device");
        assert_eq!(failure, expected.hint("load it"));
        supervisor.stop().await.unwrap();
        let log = fs::read_to_string(directory.path().join("child.log")).unwrap();
        assert!(
            log.starts_with("error: no device\n hint: load it\n"),
            "{log}"
        );
    }

    #[tokio::test]
    async fn a_child_ends_with_its_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = shell(directory.path(), READY);
        supervisor.start().await.unwrap();
        let path = format!("/proc/{}/exe", pid(&supervisor));
        drop(supervisor);
        for _ in 0..200 {
            if !Path::new(&path).exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("still there");
    }
}
