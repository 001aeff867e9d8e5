//! The commands that the documentation tells people to type, typed as they stand.
//!
//! A fenced `console` block is a session. A line that begins with a machine's prompt (`laptop$ `)
//! is a command. Lines after a trailing backslash belong to it. The lines up to the next prompt are
//! its output, where `…` stands for anything. A block under a comment that begins with `<!-- yours`
//! is different for each reader; the test has its own in its place.
//!
//! Each machine is a home directory. `ssh` and `scp` are two scripts that change into another one.
//! All of them, and the servers of the clouds, are in namespaces of their own, with a loopback on
//! which every port is free and every host's name leads to it; they end with the test, as do all
//! processes in them. So the test runs itself a second time, inside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_backends::location::Location;
use quorumfs_tests::harness;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Machines of the documents. The first is where a session begins.
const MACHINES: [&str; 8] = ["laptop", "desktop", "bob", "a", "b", "c", "d", "e"];
const CONTAINER: &str = "my-bucket";
/// Longer than everything in the documents takes together, on a busy machine.
const SESSION_SECONDS_MAX: &str = "400";
/// With the servers' start.
const SECONDS_MAX: &str = "450";

/// One command of a session, and what it prints.
#[derive(Debug, PartialEq, Eq)]
struct Typed {
    machine: String,
    command: String,
    printed: Vec<String>,
}

/// A block of a document: commands, or what each reader has to say differently.
#[derive(Debug, PartialEq, Eq)]
enum PageBlock {
    Typed(Vec<Typed>),
    Yours,
}

fn prompt(line: &str) -> Option<(&str, &str)> {
    let (machine, command) = line.split_once("$ ")?;
    MACHINES.contains(&machine).then_some((machine, command))
}

/// The sessions of a document, in order.
fn sessions(document: &str) -> Vec<PageBlock> {
    let mut sessions = Vec::new();
    let mut lines = document.lines();
    let mut yours = false;
    while let Some(line) = lines.next() {
        if line != "```console" {
            yours = line.starts_with("<!-- yours");
            continue;
        }
        let block = lines.by_ref().take_while(|line| *line != "```");
        let typed = typed(block);
        match yours {
            true => sessions.push(PageBlock::Yours),
            // A block of another prompt shows what is typed on machines that no test has.
            false if typed.is_empty() => {}
            false => sessions.push(PageBlock::Typed(typed)),
        }
    }
    sessions
}

fn typed<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for line in lines {
        let continued = all.last_mut().filter(|last| last.command.ends_with('\\'));
        match (continued, prompt(line)) {
            (Some(last), _) => {
                last.command.push('\n');
                last.command.push_str(line);
            }
            (None, Some((machine, command))) => all.push(Typed {
                machine: machine.into(),
                command: command.into(),
                printed: Vec::new(),
            }),
            (None, None) => {
                if let Some(last) = all.last_mut() {
                    last.printed.push(line.into());
                }
            }
        }
    }
    all
}

/// Whether a line is as the document shows it, where `…` stands for anything.
fn matches(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap()) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        match (parts.peek(), rest.find(part)) {
            (None, _) => return rest.ends_with(part),
            (Some(_), Some(at)) => rest = &rest[at + part.len()..],
            (Some(_), None) => return false,
        }
    }
    rest.is_empty()
}

/// Whether a command printed what the document shows. A line of `…` alone stands for any number of
/// lines.
fn prints(shown: &[String], lines: &[&str]) -> bool {
    let Some((first, later)) = shown.split_first() else {
        return lines.is_empty();
    };
    if first == "…" {
        return (0..=lines.len()).any(|skipped| prints(later, &lines[skipped..]));
    }
    let Some((line, rest)) = lines.split_first() else {
        return false;
    };
    matches(first, line) && prints(later, rest)
}

/// The machines, their homes and the programs that lead from one to another.
struct World {
    directory: tempfile::TempDir,
    emulators: Vec<Emulator>,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let world = Self {
            emulators: Vec::new(),
            directory,
        };
        for machine in MACHINES {
            fs::create_dir_all(world.home(machine)).unwrap();
        }
        for directory in ["mnt/nas", "mnt/usb", "bin"] {
            fs::create_dir_all(world.path(directory)).unwrap();
        }
        let mut hosts = String::from("127.0.0.1 localhost\n");
        for machine in MACHINES {
            writeln!(hosts, "127.0.0.1 {machine}.example").unwrap();
        }
        fs::write(world.path("hosts"), hosts).unwrap();
        symlink(harness::binary(), world.path("bin/quorumfs")).unwrap();
        let machines = world.path("machines").display().to_string();
        world.program(
            "ssh",
            &format!(
                "#!/bin/sh\nhost=${{1%.example}}; shift\ncd {machines}/$host || exit 255\n\
                 export HOME={machines}/$host\nexec sh -c \"$*\"\n"
            ),
        );
        world.program(
            "scp",
            &format!(
                "#!/bin/sh\n[ \"$1\" = -q ] && shift\nfor file; do\n  case $file in\n  \
                 *.example:*) file={machines}/${{file%%.example:*}}/${{file#*.example:}} ;;\n  \
                 esac\n  set -- \"$@\" \"$file\"; shift\ndone\nexec cp -p \"$@\"\n"
            ),
        );
        world
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn home(&self, machine: &str) -> PathBuf {
        self.path("machines").join(machine)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Starts a provider's server, and says what the document's reader would: where it is. Its
    /// credentials lie in the laptop's home.
    async fn cloud(&mut self, variable: &str, server: Server, credentials: &str) -> String {
        let directory = self.path(server.name());
        fs::create_dir(&directory).unwrap();
        let emulator = Emulator::start(server, &directory).await.unwrap();
        let text = emulator.location(CONTAINER, "volume");
        let location: Location = text.parse().unwrap();
        let file = emulator.credentials();
        let created = location.create_container(file.as_deref()).await;
        created.unwrap();
        let kept = self.home("laptop").join(credentials);
        match file {
            Some(file) => drop(fs::copy(file, kept).unwrap()),
            // It takes any, and none is sent.
            None => fs::write(kept, "{}").unwrap(),
        }
        self.emulators.push(emulator);
        format!("{variable}='{text}'\n")
    }

    /// Types all of it, and returns each command with what it printed and how long it took. The
    /// last is the one that failed, if one did.
    fn type_all(&self, sessions: &[PageBlock], yours: &str) -> Vec<(String, i32, f64)> {
        let mut script = format!(
            "mount --bind {0}/hosts /etc/hosts && mount --bind {0}/mnt /mnt || exit 99\n\
             export PATH={0}/bin:$PATH; unset XDG_DATA_HOME QUORUMFS_STATE QUORUMFS_LOG\n\
             machine() {{ eval \"directory_$now=\\$PWD\"; now=$1; export HOME={0}/machines/$1\n\
             eval cd \"\\${{directory_$1:-$HOME}}\"; }}\nnow=laptop; machine laptop; cd\n",
            self.directory.path().display()
        );
        for session in sessions {
            let PageBlock::Typed(all) = session else {
                script.push_str(yours);
                continue;
            };
            for typed in all {
                let quoted = typed.command.replace('\'', r"'\''");
                writeln!(
                    script,
                    "machine {}; began=$(date +%s.%N)\neval '{quoted}' 2>&1; code=$?\n\
                     echo; echo \"@@ $code $began $(date +%s.%N)\"\n[ $code = 0 ] || exit 1",
                    typed.machine
                )
                .unwrap();
            }
        }
        let file = self.path("session.sh");
        fs::write(&file, script).unwrap();
        // Ended before this process is, so that what was printed until then is shown.
        let mut command = Command::new("timeout");
        command.args([SESSION_SECONDS_MAX, "bash"]).arg(&file);
        command.stdin(Stdio::null());
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut all = Vec::new();
        let mut text = String::new();
        for line in printed.lines() {
            let Some(end) = line.strip_prefix("@@ ") else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            let mut numbers = end.split(' ').map(|number| number.parse::<f64>().unwrap());
            let mut next = || numbers.next().unwrap();
            let (code, began, ended) = (next(), next(), next());
            all.push((std::mem::take(&mut text), code as i32, ended - began));
        }
        assert!(text.trim().is_empty(), "cut short after:\n{text}");
        all
    }
}

fn document(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join("docs").join(name)).unwrap()
}

/// Set in the run inside of the namespaces.
const INSIDE: &str = "QUORUMFS_TEST_INSIDE";

#[test]
fn what_the_documents_say_to_type_does_what_they_say() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(type_the_documents());
    }
    harness::require_fuse();
    harness::require_private_mounts();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", SECONDS_MAX, "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let status = command
        .args([
            "--net",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
        ])
        .args(["--kill-child=KILL", "--mount-proc", "sh", "-c"])
        // The shell stays: it reaps the replicas that end, so that `tail --pid` sees them end.
        .arg("ip link set lo up && \"$0\" --exact --nocapture \"$1\"; exit $?")
        .arg(std::env::current_exe().unwrap())
        .arg("documents::what_the_documents_say_to_type_does_what_they_say")
        .env(INSIDE, "1")
        .env("QUORUMFS", harness::binary())
        .stdin(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "what failed stands above");
}

async fn type_the_documents() {
    let mut world = World::new().await;
    let mut yours = String::new();
    for (variable, server, credentials) in [
        ("AWS", Server::Versitygw, "aws.credentials"),
        ("AZURE", Server::Azurite, "azure.credentials"),
        ("GOOGLE", Server::FakeGcs, "google.json"),
    ] {
        yours.push_str(&world.cloud(variable, server, credentials).await);
    }
    yours.push_str(
        "NAS=/mnt/nas/volume; mkdir -p $NAS\nCREDENTIALS='--cloud-credentials \
         aws=aws.credentials --cloud-credentials azure=azure.credentials'\n",
    );

    let mut all = sessions(&document("QUICKSTART.md"));
    all.extend(sessions(&document("OPERATIONS.md")));
    let began = Instant::now();
    let results = tokio::task::block_in_place(|| world.type_all(&all, &yours));
    let typed = all.iter().filter_map(|session| match session {
        PageBlock::Typed(typed) => Some(typed),
        PageBlock::Yours => None,
    });
    let typed: Vec<_> = typed.flatten().collect();
    for (typed, (printed, code, seconds)) in typed.iter().zip(&results) {
        println!("{seconds:6.1} s  {}$ {}", typed.machine, typed.command);
        assert_eq!(*code, 0, "{} failed:\n{printed}", typed.command);
        let lines: Vec<_> = printed.strip_suffix('\n').unwrap().lines().collect();
        // The empty line before a command's end is the test's own.
        let lines = match lines.split_last() {
            Some((&"", lines)) => lines,
            _ => &lines,
        };
        assert!(
            prints(&typed.printed, lines),
            "`{}` prints otherwise than the document shows:\n{printed}\nshown:\n{}",
            typed.command,
            typed.printed.join("\n")
        );
    }
    assert_eq!(typed.len(), results.len(), "not all of it was typed");
    println!("{:6.1} s  in all", began.elapsed().as_secs_f64());
    for mut emulator in world.emulators {
        emulator.stop().await;
    }
}

#[test]
fn a_document_is_read_as_it_is_meant() {
    let text = "# A\n\n```console\na$ first \\\n    more\nit … done\n…\nb$ second\n```\n\n\
                <!-- yours: each reader's own -->\n```console\na$ X=1\n```\n```toml\na$ = 1\n```\n";
    let typed = |machine: &str, command: &str, printed: &[&str]| Typed {
        machine: machine.into(),
        command: command.into(),
        printed: printed.iter().map(ToString::to_string).collect(),
    };
    let first = typed("a", "first \\\n    more", &["it … done", "…"]);
    let expected = [
        PageBlock::Typed(vec![first, typed("b", "second", &[])]),
        PageBlock::Yours,
    ];
    assert_eq!(sessions(text), expected);

    let shown = ["it … done".to_string(), "…".into()];
    assert!(prints(&shown, &["it is done"]));
    assert!(prints(&shown, &["it is done", "and", "more"]));
    assert!(!prints(&shown, &["it is done now"]));
    assert!(!prints(&shown[..1], &["it is done", "and"]));
    assert!(!prints(&shown, &[]));
}
