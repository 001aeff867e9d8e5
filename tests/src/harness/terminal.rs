//! A terminal for a program, on which the test types.

use super::eventually;
use super::running::{Finished, Running};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PROMPT_WITHIN: Duration = Duration::from_secs(60);

/// Runs a program whose standard input and standard error are the terminal; its output is captured.
pub(super) fn run(mut command: Command, typed: &[&str]) -> (Finished, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let open = || {
        let mut options = File::options();
        let terminal = options.read(true).write(true);
        OwnedFd::from(terminal.open(name.to_str().unwrap()).unwrap())
    };
    // Prompts go to the program's standard error, which is the terminal as well.
    let terminal = open();
    command.stdin(open());
    let running = Running::start_on(command, open());
    let mut master = File::from(master);
    let seen = Arc::new(Mutex::new(String::new()));
    let reader = {
        let (mut master, seen) = (master.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails once the other side is closed.
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        })
    };
    for (number, line) in typed.iter().enumerate() {
        eventually("there is a prompt", PROMPT_WITHIN, || {
            let prompted = seen.lock().unwrap().matches(": ").count() > number;
            prompted && !has_echo(&terminal)
        });
        master.write_all(line.as_bytes()).unwrap();
    }
    let finished = running.wait();
    assert!(has_echo(&terminal), "the terminal is left without echo");
    drop((terminal, master));
    reader.join().unwrap();
    let seen = seen.lock().unwrap().clone();
    (finished, seen)
}

/// Whether the terminal shows typed characters.
fn has_echo(terminal: impl AsFd) -> bool {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    modes.contains(LocalModes::ECHO | LocalModes::ISIG)
}
