//! `quorumfs mount`: the volume as a directory, for as long as this process lives.
//!
//! ```text
//! configuration, key -> lock -> session with the replicas -> kernel -> `ready`
//!     signal, `umount`, end of input -> commit pending data -> unmount -> end the session
//! ```
//!
//! With `--background` a copy of this process does that in a session of its own, and this one waits
//! until it is ready, or reports why it failed. If files are open when the process has to stop, it
//! detaches the mount from the tree at once and commits the data written so far.

use super::backup::BackupLoop;
use super::cloud_report::CloudReport;
use super::mount_options::MountOptions;
use super::mount_point;
use super::mount_report::{MountReport, PoisonedReport};
use super::mount_wait;
use super::mounts::mode_name;
use super::opened::{Access, Configured, Opened};
use super::quota::Used;
use super::sync::{self, Synced};
use super::warmup::WarmedPiece;
use crate::arguments::{General, MountArguments};
use crate::control::{ControlServer, Question};
use crate::exit::Exit;
use crate::explain::{mount_failure, vfs_failure};
use crate::failure::{CommandResult, Failure};
use crate::notify;
use crate::output::{self, Output};
use crate::stop::Stop;
use crate::unlock;
use quorumfs_fuse::{MountConfig, MountError, Mounted};
use quorumfs_gateway::metadata::MountMode;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a mount in the background may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a mount that is not ready may take to end after the request.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(20);
/// How long a stopping mount waits for processes that still use it.
const BUSY_WITHIN: Duration = Duration::from_secs(2);
/// How long a status waits for counters from the replicas.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);
const LOG: &str = "mount.log";

/// How a mount answers the request to stop.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stopped {
    /// Everything is stored and nothing is mounted any more.
    Clean,
    /// The same, and these processes had it mounted in their own trees.
    TakenFrom {
        /// Their descriptions.
        holders: Vec<String>,
    },
    /// It is still mounted.
    Failed {
        /// Why.
        message: String,
        /// The exit code of that.
        #[serde(default)]
        code: u8,
    },
}

#[derive(Serialize)]
struct Ready<'a> {
    #[serde(serialize_with = "crate::output::paths::serialize")]
    point: &'a Path,
    pid: u32,
}

/// Mounts, and stays until it is stopped.
pub(crate) async fn run(
    general: &General,
    arguments: &MountArguments,
    output: Output,
) -> CommandResult {
    let options = MountOptions::parse(&arguments.options, arguments.sloppy)?;
    let wait = arguments.wait.or(options.wait).unwrap_or_default();
    let wait = Duration::from_secs(wait.into());
    if arguments.background {
        return in_background(general, arguments, wait, output);
    }
    if arguments.detached {
        let _ = rustix::process::setsid();
    }
    let handed = arguments
        .unlocked_by_input
        .then(|| unlock::handed_over(std::io::stdin().lock()));
    // The user may be prompted, and abort, before signals are handled.
    let (configured, _) = Configured::read_with(general, handed.transpose()?)?;
    let mut stop = Stop::of_a_daemon(arguments.supervised)?;
    let configured = configured.at_tier(arguments.tier.or(options.tier));
    let point = point(&configured, arguments)?;
    let lock = configured.state().lock("mount")?;
    mount_point::clear_if_dead(&point)?;
    // Before any server is asked, and before another mount loses the volume in vain.
    quorumfs_fuse::check(&point).map_err(|error| mount_failure(&error))?;
    let access = Access::Mount {
        takeover: arguments.takeover.or(options.takeover),
        mode: mode(arguments, &options),
    };
    let opened = tokio::select! {
        opened = mount_wait::open(&configured, access, wait) => Arc::new(opened?),
        () = stop.wanted() => return Ok(Exit::Cancelled),
    };
    let mut config = MountConfig::new(point);
    config.name = source(configured.state().path());
    config.allow_other |= configured.configuration().mount.allow_other;
    config.allow_other = options.allow_other.unwrap_or(config.allow_other);
    (config.read_only, config.no_exec) = (options.read_only, options.no_exec);
    config.read_only |= opened.volume().is_reader();
    config.identities = opened.file_system().identities();
    let mounted = match quorumfs_fuse::mount(opened.file_system().clone(), config).await {
        Ok(mounted) => Arc::new(mounted),
        Err(error) => {
            let _ = opened.close().await;
            return Err(mount_failure(&error));
        }
    };
    let control = match ControlServer::bind(configured.state()) {
        Ok(control) => control,
        Err(failure) => {
            // Too late to end it in an orderly way.
            let _ = mounted.detach().await;
            let _ = opened.close().await;
            return Err(failure);
        }
    };
    let ready = Ready {
        point: mounted.mount_point(),
        pid: std::process::id(),
    };
    // The process that started this in the background has gone: do not stay there unnoticed.
    if arguments.detached && !output::is_read() {
        leave(&mounted).await?;
        control.finish().await;
        opened.close().await?;
        return Ok(Exit::Cancelled);
    }
    output.announce("ready", &ready, |ready| {
        format!("Mounted on {}.", ready.point.display())
    });
    notify::ready(&format!("Mounted on {}", ready.point.display()));
    let served = serve(&configured, &opened, &mounted, &control, &mut stop).await;
    notify::stopping("Storing written data");
    control.finish().await;
    let closed = opened.close().await;
    drop(lock);
    served?;
    closed?;
    output.record("unmounted", &ready, |ready| {
        format!("Unmounted {}.", ready.point.display())
    })?;
    Ok(Exit::Success)
}

/// How the mount stands towards others; one that shares is alone as long as there are none.
fn mode(arguments: &MountArguments, options: &MountOptions) -> MountMode {
    match arguments.exclusive || options.exclusive {
        true => MountMode::Exclusive,
        false => MountMode::Alone,
    }
}

fn point(configured: &Configured, arguments: &MountArguments) -> CommandResult<PathBuf> {
    // A typed path is relative to this directory, a configured one to the file's.
    let written = configured.configuration().mount.point.as_ref();
    let written = written.map(|point| configured.state().join(point));
    let Some(point) = arguments.point.clone().or(written) else {
        return Err(Failure::new(Exit::Usage, "no mount point is given")
            .hint("name an empty directory, here or as `point` under [mount] in quorumfs.toml"));
    };
    Ok(mount_point::resolve(&point))
}

/// The source by which `mount(8)` finds a mount in `/etc/fstab`: the state directory, without
/// links.
fn source(state: &Path) -> String {
    let place = state.canonicalize();
    let place = place.as_deref().unwrap_or(state);
    place.display().to_string()
}

/// Answers the control socket until the mount has ended, for whatever reason.
async fn serve(
    configured: &Configured,
    opened: &Arc<Opened>,
    mounted: &Arc<Mounted>,
    control: &ControlServer,
    stop: &mut Stop,
) -> CommandResult<()> {
    let began = Instant::now();
    let answer = {
        let (opened, mounted) = (Arc::clone(opened), Arc::clone(mounted));
        let begun = Arc::<sync::Begun>::default();
        move |question| {
            let (opened, mounted) = (Arc::clone(&opened), Arc::clone(&mounted));
            let begun = Arc::clone(&begun);
            async move {
                match question {
                    Question::Status => {
                        opened.spending().keep();
                        let mut report = report(&opened, &mounted, began).await;
                        count_evidence(&opened, &mut report).await;
                        ask_quota(&opened, &mut report).await;
                        ControlAnswer::Report(Box::new(report))
                    }
                    Question::Sync {
                        inode,
                        tier,
                        ticket,
                    } => {
                        let files = opened.file_system();
                        ControlAnswer::Synced(begun.answer(files, inode, tier, ticket).await)
                    }
                    Question::Warm {
                        inode,
                        offset,
                        length,
                    } => ControlAnswer::Warmed(opened.warm(inode, offset, length).await),
                    Question::Forget => {
                        opened.file_system().drop_caches();
                        ControlAnswer::Report(Box::new(report(&opened, &mounted, began).await))
                    }
                    // A mount in use stays mounted. All is committed before the answer.
                    Question::Stop => ControlAnswer::Stopped(match mounted.unmount().await {
                        Ok(holders) if holders.is_empty() => Stopped::Clean,
                        Ok(holders) => Stopped::TakenFrom {
                            holders: holders.iter().map(ToString::to_string).collect(),
                        },
                        Err(error) => Stopped::Failed {
                            message: error.to_string(),
                            code: match &error {
                                MountError::Unflushed { error, .. } => vfs_failure(error).exit,
                                _ => Exit::Held,
                            }
                            .code(),
                        },
                    }),
                }
            }
        }
    };
    let backups = async {
        match configured.may_collect() {
            Ok(()) => BackupLoop::default().run(configured, opened, None).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = control.serve(answer) => Ok(()),
        () = opened.remember() => Ok(()),
        () = backups => Ok(()),
        () = mounted.wait() => Ok(()),
        () = stop.wanted() => {
            notify::stopping("Unmounting");
            leave(mounted).await
        }
    }
}

/// One line back on the control socket.
#[derive(Serialize)]
#[serde(untagged)]
enum ControlAnswer {
    Report(Box<MountReport>),
    Stopped(Stopped),
    Synced(Synced),
    Warmed(WarmedPiece),
}

/// Stops: waits a little for processes that use the mount, then detaches it anyway.
async fn leave(mounted: &Mounted) -> CommandResult<()> {
    let began = Instant::now();
    loop {
        match mounted.unmount().await {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() > BUSY_WITHIN => {
                tracing::warn!(%error, "detaching the mount although it is in use");
                return mounted
                    .detach()
                    .await
                    .map_err(|error| mount_failure(&error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn report(opened: &Opened, mounted: &Mounted, began: Instant) -> MountReport {
    let waiting_for_commit = opened.waiting(mounted.mount_point()).await;
    let (files, blocks) = (opened.file_system().status(), opened.block_status());
    let (queries_unordered, queries_ordered) = opened.queries();
    let waiting = [
        blocks.under_replicated,
        blocks.puts_outstanding,
        blocks.unconfirmed,
        blocks.repairs_waiting,
    ];
    MountReport {
        point: mounted.mount_point().to_path_buf(),
        pid: std::process::id(),
        seconds: began.elapsed().as_secs(),
        fenced: files.fenced,
        mode: files.mode.map(|mode| mode_name(mode).to_owned()),
        heard_seconds: files.heard.map(|heard| heard.as_secs()),
        completion_queue: waiting.iter().sum::<usize>() as u64,
        waiting: waiting_for_commit,
        files_lost: files.files_lost,
        locks: files.locks as u64,
        locks_lost: files.locks_lost,
        old_epoch_slices: files.under_old_epochs.map(|old| old.slices),
        old_epoch_bytes: files.under_old_epochs.map(|old| old.bytes),
        operations: files.operations,
        queries_unordered,
        queries_ordered,
        objects_written: blocks.counters.objects_written,
        shards_refused: blocks.counters.shards_refused,
        shards_replaced: blocks.counters.shards_replaced,
        shards_repaired: blocks.counters.shards_repaired,
        sparse_packs: blocks.sparse_packs as u64,
        garbage_objects: blocks.collected.kept.objects(),
        garbage_bytes: blocks.collected.kept.bytes,
        garbage_open: blocks.collected.kept.open,
        garbage_retained: blocks.collected.kept.retained,
        garbage_unreachable: blocks.collected.kept.unreachable,
        objects_collected: blocks.counters.objects_collected,
        bytes_collected: blocks.counters.bytes_collected,
        bytes_freed: blocks.counters.bytes_freed,
        poisoned: blocks.poisoned.len() as u64,
        poisoned_by: PoisonedReport::some(&blocks.poisoned),
        memory_bytes: opened.budget().bytes,
        memory_from: opened.budget().from.to_string(),
        cache: opened.cache_report(),
        quota: None,
        budget: opened.spending().report(),
        clouds: blocks.clouds.iter().map(CloudReport::of).collect(),
    }
}

/// Adds the replicas' fault counters of the clouds, if the replicas answer soon.
async fn count_evidence(opened: &Opened, report: &mut MountReport) {
    let asked = tokio::time::timeout(COUNTED_WITHIN, opened.blocks().evidence_counts()).await;
    for (index, total) in asked.ok().and_then(Result::ok).unwrap_or_default() {
        let mut clouds = report.clouds.iter_mut();
        if let Some(cloud) = clouds.find(|cloud| cloud.index == usize::from(index.0)) {
            cloud.evidence = Some(total);
        }
    }
}

/// Adds the volume's quota, if the replicas answer soon.
async fn ask_quota(opened: &Opened, report: &mut MountReport) {
    let asked = tokio::time::timeout(COUNTED_WITHIN, opened.metadata().realm_quota()).await;
    let quota = asked.ok().and_then(Result::ok);
    report.quota = quota.map(|realm| Used::of_realm(&realm));
}

/// Ends a process that is not ready, and removes what is left of it: asked first, it unmounts and
/// ends its session itself.
fn give_up(child: &mut Child, point: &Path) {
    let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
    // It is our child and not waited for yet, so its process id is not reused.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let began = Instant::now();
    while !ended(child) && began.elapsed() < GIVEN_UP_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !ended(child) {
        let _ = child.kill();
        let _ = child.wait();
    }
    if let Err(failure) = mount_point::clear_if_dead(point) {
        tracing::warn!(%failure, "a mount that did not become ready is left behind");
    }
}

/// Starts this program again in a session of its own and waits until that process is ready.
fn in_background(
    general: &General,
    arguments: &MountArguments,
    wait: Duration,
    output: Output,
) -> CommandResult {
    let (configured, passphrase) = Configured::read_with(general, None)?;
    let point = point(&configured, arguments)?;
    let log = configured.state().join(LOG);
    let log = general.log_file.clone().unwrap_or(log);
    let open_log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log);
    let stderr = open_log.map_err(|error| Failure::file("open the log", &log, &error))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Error, format!("cannot find this program: {error}")))?;
    let mut command = std::process::Command::new(program);
    command
        .args(["mount", "--detached", "--json", "--state"])
        .arg(configured.state().path());
    if let Some(takeover) = arguments.takeover {
        command.arg(format!("--takeover={takeover}"));
    }
    command.args(arguments.exclusive.then_some("--exclusive"));
    if let Some(wait) = arguments.wait {
        command.args(["--wait", &wait.to_string()]);
    }
    if let Some(tier) = arguments.tier {
        command.args(["--tier", tier.name()]);
    }
    if let Some(filter) = &general.log {
        command.args(["--log", filter]);
    }
    command.arg("--log-file").arg(&log);
    if arguments.sloppy {
        command.arg("--sloppy");
    }
    for options in &arguments.options {
        command.args(["-o", options]);
    }
    // The terminal to ask on is here, not there.
    let input = match &passphrase {
        Some(_) => {
            command.arg("--unlocked-by-input");
            Stdio::piped()
        }
        None => Stdio::null(),
    };
    command
        .arg(&point)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(stderr);
    let mut child = command
        .spawn()
        .map_err(|error| Failure::new(Exit::Error, format!("cannot start a process: {error}")))?;
    if let (Some(passphrase), Some(mut stdin)) = (passphrase, child.stdin.take()) {
        // It fits into the pipe. If the other process is gone already, that process says why.
        let _ = stdin.write_all(passphrase.expose());
    }
    let (sender, lines) = std::sync::mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
    }
    let ready_within = READY_WITHIN + wait;
    let line = lines.recv_timeout(ready_within).unwrap_or_default();
    let record: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    if record.get("type").and_then(serde_json::Value::as_str) == Some("ready") {
        let ready = Ready {
            point: &point,
            pid: child.id(),
        };
        output.record("ready", &ready, |ready| {
            format!(
                "Mounted on {} by process {}.",
                ready.point.display(),
                ready.pid
            )
        })?;
        return Ok(Exit::Success);
    }
    give_up(&mut child, &point);
    Err(output::failure_in(&record).unwrap_or_else(|| {
        let seconds = ready_within.as_secs();
        let message = format!("the mount was not ready within {seconds} s");
        Failure::new(Exit::Error, message).hint(format!("its log is {}", log.display()))
    }))
}
