//! Locks between processes: of ranges and of whole files, held, waited for and released.

use crate::common::MountedVolume;
use quorumfs_gateway::metadata::MountMode;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Executes the lines that it reads, and prints the result of each.
const PROGRAM: &str = "import fcntl as f, os, struct, sys\n\
    def posix(how, of, start, length, wait=False):\n\
    \x20   f.lockf(of, how if wait or how == f.LOCK_UN else how | f.LOCK_NB, length, start)\n\
    def ofd(kind, of, start, length):\n\
    \x20   asked = struct.pack('hhqqi4x', kind, os.SEEK_SET, start, length, 0)\n\
    \x20   f.fcntl(of, f.F_OFD_SETLK, asked)\n\
    def flock(how, of):\n\
    \x20   f.flock(of, how | f.LOCK_NB)\n\
    def opened():\n\
    \x20   return os.open('file', os.O_RDWR)\n\
    print('ready', flush=True)\n\
    for line in sys.stdin:\n\
    \x20   try:\n\
    \x20       exec(line)\n\
    \x20       print('done', flush=True)\n\
    \x20   except OSError as error:\n\
    \x20       print('refused' if error.errno in (11, 13) else error, flush=True)\n";

const DONE: &str = "done";
/// EAGAIN or EACCES: POSIX leaves the choice.
const REFUSED: &str = "refused";

/// A separate process; killed when dropped.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    /// One that has the file open as `a`.
    fn start(world: &MountedVolume) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .current_dir(world.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut process = Self {
            child,
            orders,
            answers,
        };
        assert_eq!(process.answer(), "ready");
        assert_eq!(process.does("a = opened()"), DONE);
        process
    }

    fn begin(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    #[track_caller]
    fn answer(&self) -> String {
        let answer = self.answers.recv_timeout(Duration::from_secs(30));
        answer.expect("it hangs or has ended")
    }

    #[track_caller]
    fn does(&mut self, order: &str) -> String {
        self.begin(order);
        self.answer()
    }

    /// Does it, once the kernel has told the mount that an open file is closed: `close` does not
    /// wait for that.
    #[track_caller]
    fn does_soon(&mut self, order: &str) {
        let end = Instant::now() + Duration::from_secs(5);
        while self.does(order) == REFUSED {
            assert!(Instant::now() < end, "refused: {order}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn waits(&self) -> bool {
        let answer = self.answers.recv_timeout(Duration::from_millis(300));
        answer.is_err()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes on a mount: one for which the kernel keeps the locks, one that keeps them itself,
/// and one for which the servers keep them.
fn two_processes() -> impl Iterator<Item = (MountedVolume, Process, Process)> {
    let modes = [MountMode::Exclusive, MountMode::Alone, MountMode::Shared];
    modes.into_iter().map(|mode| {
        let world = MountedVolume::in_mode(mode);
        fs::write(world.path("file"), "content").unwrap();
        let (first, second) = (Process::start(&world), Process::start(&world));
        (world, first, second)
    })
}

#[test]
fn a_range_that_another_process_has_locked_is_refused_and_others_are_granted() {
    for (_world, mut first, mut second) in two_processes() {
        assert_eq!(first.does("posix(f.LOCK_EX, a, 100, 50)"), DONE);
        for range in ["100, 50", "149, 1", "0, 101", "120, 0"] {
            for how in ["LOCK_EX", "LOCK_SH"] {
                let order = format!("posix(f.{how}, a, {range})");
                assert_eq!(second.does(&order), REFUSED, "{order}");
            }
        }
        for range in ["0, 100", "150, 0"] {
            let order = format!("posix(f.LOCK_EX, a, {range})");
            assert_eq!(second.does(&order), DONE, "{order}");
            assert_eq!(first.does(&order), REFUSED, "{order}");
        }
        // One part is released and another is shared.
        assert_eq!(first.does("posix(f.LOCK_UN, a, 100, 10)"), DONE);
        assert_eq!(first.does("posix(f.LOCK_SH, a, 110, 10)"), DONE);
        assert_eq!(second.does("posix(f.LOCK_EX, a, 100, 10)"), DONE);
        assert_eq!(second.does("posix(f.LOCK_EX, a, 110, 10)"), REFUSED);
        assert_eq!(second.does("posix(f.LOCK_SH, a, 110, 10)"), DONE);
        assert_eq!(second.does("posix(f.LOCK_SH, a, 119, 2)"), REFUSED);
    }
}

#[test]
fn locks_of_a_process_go_with_it_and_with_any_descriptor_that_it_closes() {
    for (_world, mut first, mut second) in two_processes() {
        let lock = "posix(f.LOCK_EX, a, 0, 0)";
        assert_eq!(first.does(lock), DONE);
        assert_eq!(second.does(lock), REFUSED);
        assert_eq!(first.does("b = opened(); os.close(b)"), DONE);
        assert_eq!(second.does(lock), DONE, "closed by another descriptor");
        assert_eq!(first.does(lock), REFUSED);
        second.kill();
        assert_eq!(first.does(lock), DONE, "its process was killed");
    }
}

#[test]
fn locks_of_an_open_file_go_with_its_last_descriptor_and_conflict_within_a_process() {
    for (_world, mut first, mut second) in two_processes() {
        assert_eq!(first.does("b = opened(); c = os.dup(a)"), DONE);
        assert_eq!(first.does("ofd(f.F_WRLCK, a, 100, 50)"), DONE);
        assert_eq!(first.does("ofd(f.F_WRLCK, c, 100, 50)"), DONE);
        assert_eq!(first.does("ofd(f.F_RDLCK, b, 149, 1)"), REFUSED);
        assert_eq!(first.does("posix(f.LOCK_EX, a, 149, 1)"), REFUSED);
        assert_eq!(second.does("ofd(f.F_WRLCK, a, 120, 0)"), REFUSED);
        assert_eq!(second.does("posix(f.LOCK_SH, a, 120, 1)"), REFUSED);
        assert_eq!(second.does("ofd(f.F_WRLCK, a, 150, 0)"), DONE);
        assert_eq!(first.does("os.close(b); os.close(a)"), DONE);
        assert_eq!(second.does("ofd(f.F_WRLCK, a, 100, 50)"), REFUSED);
        assert_eq!(first.does("os.close(c)"), DONE);
        second.does_soon("ofd(f.F_WRLCK, a, 100, 50)");
        assert_eq!(first.does("a = opened()"), DONE);
        assert_eq!(first.does("ofd(f.F_WRLCK, a, 100, 50)"), REFUSED);
        second.kill();
        first.does_soon("ofd(f.F_WRLCK, a, 0, 0)");
    }
}

#[test]
fn locks_of_whole_files_conflict_between_descriptors_and_not_with_those_of_ranges() {
    for (world, mut first, mut second) in two_processes() {
        assert_eq!(first.does("b = opened(); flock(f.LOCK_EX, a)"), DONE);
        assert_eq!(first.does("flock(f.LOCK_EX, b)"), REFUSED);
        assert_eq!(second.does("flock(f.LOCK_SH, a)"), REFUSED);
        assert_eq!(second.does("posix(f.LOCK_EX, a, 0, 0)"), DONE);
        assert_eq!(first.does("flock(f.LOCK_SH, a)"), DONE);
        assert_eq!(first.does("flock(f.LOCK_SH, b)"), DONE);
        assert_eq!(second.does("flock(f.LOCK_SH, a)"), DONE);
        assert_eq!(second.does("flock(f.LOCK_EX, a)"), REFUSED);
        // A process that asks for more and is refused has lost its lock in an exclusive mount, as
        // Linux does it, and has it still in others.
        assert_eq!(first.does("os.close(b)"), DONE);
        if world.mode != MountMode::Exclusive {
            assert_eq!(first.does("flock(f.LOCK_EX, a)"), REFUSED);
            assert_eq!(second.does("flock(f.LOCK_UN, a)"), DONE);
        }
        first.does_soon("flock(f.LOCK_EX, a)");
        assert_eq!(second.does("flock(f.LOCK_SH, a)"), REFUSED);
        first.kill();
        second.does_soon("flock(f.LOCK_EX, a)");
    }
}

#[test]
fn who_waits_for_a_lock_gets_it_once_it_is_let_go_and_can_be_killed() {
    for (world, mut first, mut second) in two_processes() {
        let mut third = Process::start(&world);
        let wait = "posix(f.LOCK_EX, a, 5, 10, wait=True)";
        assert_eq!(first.does("posix(f.LOCK_EX, a, 0, 10)"), DONE);
        second.begin(wait);
        third.begin(wait);
        assert!(second.waits() && third.waits());
        second.kill();
        assert!(third.waits());
        // Others are served meanwhile.
        assert_eq!(fs::read(world.path("file")).unwrap(), b"content");
        assert_eq!(first.does("posix(f.LOCK_UN, a, 0, 10)"), DONE);
        assert_eq!(third.answer(), DONE);
        assert_eq!(first.does("posix(f.LOCK_EX, a, 14, 1)"), REFUSED);

        first.begin("posix(f.LOCK_EX, a, 0, 0, wait=True)");
        assert!(first.waits());
        third.kill();
        assert_eq!(first.answer(), DONE, "the holder was killed");
    }
}
