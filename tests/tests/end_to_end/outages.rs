//! Live mounts that lose all of their servers or all of their clouds for a while: calls end in time
//! with an error, and the mounts go on by themselves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, eventually, mount_in_background, require_fuse};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Without servers, a call is answered from the cache at once; a request that needs them fails
/// within five seconds, and a call makes two such requests.
const SOON: Duration = Duration::from_secs(15);
/// A request that waits for a cloud fails within 30 seconds, and a call makes at most two that
/// fail.
const PATIENCE: Duration = Duration::from_secs(75);

type CallResult = io::Result<()>;

/// A call that was started and may hang.
struct PendingCall {
    name: &'static str,
    began: Instant,
    outcome: Receiver<CallResult>,
}

fn call(name: &'static str, work: impl FnOnce() -> CallResult + Send + 'static) -> PendingCall {
    let (sender, outcome) = channel();
    let began = Instant::now();
    std::thread::spawn(move || sender.send(work()));
    PendingCall {
        name,
        began,
        outcome,
    }
}

impl PendingCall {
    #[track_caller]
    fn ends(self) -> Result<(), Errno> {
        self.ends_within(PATIENCE)
    }

    #[track_caller]
    fn ends_within(self, patience: Duration) -> Result<(), Errno> {
        let left = patience.saturating_sub(self.began.elapsed());
        let outcome = self.outcome.recv_timeout(left);
        let outcome = outcome.unwrap_or_else(|_| panic!("{} hangs", self.name));
        println!(
            "{}: {outcome:?} after {:?}",
            self.name,
            self.began.elapsed()
        );
        outcome.map_err(|error| Errno::from_io_error(&error).unwrap())
    }
}

fn write_and_sync(mut file: &File, content: &[u8]) -> CallResult {
    file.write_all(content)?;
    file.sync_all()
}

#[test]
fn without_any_server_every_call_ends_in_time_and_the_mount_goes_on_once_they_are_back() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    // Any other mount asks the replicas at an `open`, since another one may have begun.
    let _ = mount_in_background(&cluster, &point, &["--exclusive"]);
    // No open files: a new program closes those that it inherits, and would wait for that as well.
    let content = "known".repeat(20_000);
    let known = point.join("known");
    fs::write(&known, &content).unwrap();
    assert_eq!(fs::read_to_string(&known).unwrap(), content);
    // A call that changes a directory blocks others in it until it is answered: each has its own.
    let directories = ["unknown", "listed", "made", "created"].map(|name| point.join(name));
    for directory in &directories {
        fs::create_dir(directory).unwrap();
    }
    (0..4).for_each(|number| cluster.kill_one(number));

    // Once when the mount has just lost the servers, and once when it has noticed that long ago.
    for name in ["new", "newer"] {
        let [unknown, listed, made, created] = directories.clone();
        let (known, unknown) = (known.clone(), unknown.join(name));
        let (directory, file) = (made.join(name), created.join(name));
        let content = content.clone();
        let queries = [
            call("reading", move || {
                let found = fs::read_to_string(known)?;
                assert!(found == content);
                Ok(())
            }),
            call("looking up", move || match fs::metadata(unknown) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                found => found.map(drop),
            }),
            call("listing", move || {
                fs::read_dir(listed)?.try_for_each(|entry| entry.map(drop))
            }),
        ];
        let changes = [
            call("mkdir", move || fs::create_dir(directory)),
            call("creating", move || File::create(file).map(drop)),
        ];
        let [reading, looking, listing] = queries;
        assert_eq!(reading.ends_within(SOON), Ok(()), "it is cached");
        for look in [looking, listing] {
            if let Err(errno) = look.ends_within(SOON) {
                assert_eq!(errno, Errno::TIMEDOUT);
            }
        }
        for change in changes {
            let outcome = change.ends_within(SOON);
            assert_eq!(outcome, Err(Errno::TIMEDOUT), "no server executes it");
        }
    }

    cluster.start();
    eventually("it goes on", PATIENCE, || {
        fs::create_dir(point.join("after")).is_ok()
    });
    for name in ["new", "newer"] {
        // Either may have been executed later.
        let made = fs::create_dir(directories[2].join(name)).map_err(|error| error.kind());
        assert!(matches!(made, Ok(()) | Err(io::ErrorKind::AlreadyExists)));
    }
    assert_eq!(fs::read_to_string(&known).unwrap(), content);
    cluster.quorumfs().run_with(["umount"]).ok();
    let cat = cluster.quorumfs().run_with(["cat", "/known"]).ok();
    assert!(cat.stdout == content.as_bytes());
    cluster.stop();
}

fn move_clouds(cluster: &Cluster, away: bool) {
    for index in 0..4 {
        let here = cluster.cloud(index);
        let there = here.with_extension("away");
        let (from, to) = if away { (here, there) } else { (there, here) };
        fs::rename(from, to).unwrap();
    }
}

#[test]
fn calls_wait_for_clouds_that_are_away_for_a_moment() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let content = "content".repeat(900_000);
    let source = cluster.directory().join("source");
    fs::write(&source, &content).unwrap();
    let path = source.to_str().unwrap();
    let program = || cluster.quorumfs();
    program().run_with(["put", path, "/file"]).ok();
    // With an empty memory.
    let _ = mount_in_background(&cluster, &point, &[]);
    move_clouds(&cluster, true);
    let (file, copy) = (point.join("file"), point.join("copy"));
    let bytes = content.clone();
    let calls = [
        call("reading", {
            let content = content.clone();
            move || fs::read(file).map(|found| assert!(found == content.as_bytes()))
        }),
        call("copying", move || {
            let new = File::create(copy)?;
            write_and_sync(&new, bytes.as_bytes())
        }),
    ];
    let put = program().args(["put", path, "/put"]).start();
    let cat = program().args(["cat", "/file"]).start();
    std::thread::sleep(Duration::from_secs(3));
    move_clouds(&cluster, false);
    for call in calls {
        assert_eq!(call.ends(), Ok(()));
    }
    put.wait().ok();
    assert!(cat.wait().ok().stdout == content.as_bytes());
    for name in ["/copy", "/put"] {
        let cat = program().run_with(["cat", name]).ok();
        assert!(cat.stdout == content.as_bytes(), "{name}");
    }
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.stop();
}

#[test]
fn without_any_cloud_calls_for_uncached_content_fail_in_time_and_succeed_once_they_are_back() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mount = || mount_in_background(&cluster, &point, &[]);
    let _ = mount();
    let content = "content".repeat(300_000);
    fs::write(point.join("file"), &content).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    // With an empty memory.
    let _ = mount();
    move_clouds(&cluster, true);
    let in_mount = |name: &str| point.join(name);
    let reading = |path: &Path| {
        let path = path.to_owned();
        call("reading", move || fs::read(path).map(drop))
    };
    let read = |path: &Path| reading(path).ends();
    let (one, other) = (reading(&in_mount("file")), reading(&in_mount("file")));
    assert_eq!(one.ends(), Err(Errno::IO));
    assert_eq!(other.ends(), Err(Errno::IO));
    // The servers have names, attributes and tiny content.
    let found = fs::metadata(in_mount("file")).unwrap();
    assert_eq!(found.len(), content.len() as u64);
    fs::create_dir(in_mount("directory")).unwrap();
    fs::write(in_mount("directory/tiny"), "tiny").unwrap();
    assert_eq!(read(&in_mount("directory/tiny")), Ok(()));
    let new = File::create(in_mount("new")).unwrap();
    let (writing, bytes) = (new.try_clone().unwrap(), content.clone());
    let syncing = call("syncing", move || {
        write_and_sync(&writing, bytes.as_bytes())
    });
    assert_eq!(syncing.ends(), Err(Errno::IO));
    assert_eq!(read(&in_mount("new")), Ok(()), "it is in memory");

    move_clouds(&cluster, false);
    eventually("pending data is committed", PATIENCE, || {
        new.sync_all().is_ok()
    });
    eventually("old content is readable", PATIENCE, || {
        fs::read(in_mount("file")).is_ok_and(|found| found == content.as_bytes())
    });
    drop(new);
    cluster.quorumfs().run_with(["umount"]).ok();
    let cat = ["cat", "/file", "/new", "/directory/tiny"];
    let cat = cluster.quorumfs().run_with(cat).ok();
    assert!(cat.stdout == format!("{content}{content}tiny").as_bytes());
    cluster.stop();
}
