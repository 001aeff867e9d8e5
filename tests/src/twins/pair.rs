//! Both twins, and a chapter of steps on them.

use super::act::Outcome;
use super::compare::{self, Both};
use super::differences::{Mapped, now, same};
use super::picture::{Picture, Time};
use super::place::Place;
use super::step::{Operation, Step, Text};
use super::user::USERS;
use super::worker::{Worker, WorkerCommand, WorkerReply};
use crate::harness::drop_caches;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole trees are compared after this many steps.
const WHOLE_EVERY: usize = 64;
/// One of this many comparisons of paths includes content.
const CONTENT_EVERY: usize = 4;

/// Two directories that should be the same after every step.
#[derive(Debug)]
pub struct Pair<'a> {
    program: &'a Path,
    reference: &'a Path,
    ours: &'a mut Place,
    defect: Option<&'a str>,
    name: String,
    workers: Both<Vec<Worker>>,
    began: Time,
    steps: usize,
    mapped: Mapped,
}

type TreePictures = BTreeMap<Text, Picture>;

impl<'a> Pair<'a> {
    /// Creates two empty directories of this name.
    ///
    /// # Panics
    /// If they cannot be made.
    #[must_use]
    pub fn new(
        program: &'a Path,
        reference: &'a Path,
        ours: &'a mut Place,
        defect: Option<&'a str>,
        name: &str,
    ) -> Self {
        for root in [reference, ours.root()] {
            let directory = root.join(name);
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut pair = Self {
            program,
            reference,
            ours,
            defect,
            name: name.to_owned(),
            workers: (Vec::new(), Vec::new()),
            began: now(),
            steps: 0,
            mapped: Mapped::new(),
        };
        pair.start();
        pair
    }

    fn directories(&self) -> Both<PathBuf> {
        (
            self.reference.join(&self.name),
            self.ours.root().join(&self.name),
        )
    }

    /// Starts new processes for all users: no file is open, and umasks have their initial value.
    fn start(&mut self) {
        self.stop();
        let (reference, ours) = self.directories();
        let on_tmpfs = matches!(self.ours, Place::Tmpfs(_));
        for user in 0..USERS.len() {
            let start = |directory: &Path, on_tmpfs, defect| {
                Worker::start(self.program, directory, user, on_tmpfs, defect)
            };
            self.workers.0.push(start(&reference, true, None));
            self.workers.1.push(start(&ours, on_tmpfs, self.defect));
        }
    }

    fn stop(&mut self) {
        self.workers = (Vec::new(), Vec::new());
    }

    fn both(&mut self, user: usize, command: &WorkerCommand) -> Both<WorkerReply> {
        let workers = (&mut self.workers.0[user], &mut self.workers.1[user]);
        workers.0.send(command);
        workers.1.send(command);
        (workers.0.receive(), workers.1.receive())
    }

    fn look(
        &mut self,
        paths: &[Text],
        content: bool,
    ) -> Result<Both<Vec<Option<Picture>>>, String> {
        match self.both(0, &WorkerCommand::Look(paths.to_vec(), content)) {
            (WorkerReply::Looked(reference), WorkerReply::Looked(ours)) => {
                Ok((reference.map_err(at("tmpfs"))?, ours.map_err(at("ours"))?))
            }
            other => Err(format!("unexpected reply: {other:?}")),
        }
    }

    fn scan(&mut self) -> Result<Both<TreePictures>, String> {
        match self.both(0, &WorkerCommand::Scan(true)) {
            (WorkerReply::Scanned(reference), WorkerReply::Scanned(ours)) => {
                Ok((reference.map_err(at("tmpfs"))?, ours.map_err(at("ours"))?))
            }
            other => Err(format!("unexpected reply: {other:?}")),
        }
    }

    /// The tree of the reference.
    ///
    /// # Panics
    /// If it cannot be scanned.
    pub fn reference(&mut self) -> TreePictures {
        let worker = &mut self.workers.0[0];
        worker.send(&WorkerCommand::Scan(false));
        match worker.receive() {
            WorkerReply::Scanned(Ok(tree)) => tree,
            other => panic!("tmpfs: {other:?}"),
        }
    }

    /// Compares the whole trees.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn compare(&mut self) -> compare::CheckResult {
        let trees = self.scan()?;
        compare::trees((&trees.0, &trees.1), self.began, &self.mapped)
    }

    /// Executes a step, and compares; returns the reference's outcome.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn step(&mut self, step: &Step) -> Result<Option<Outcome>, String> {
        self.steps += 1;
        let outcome = match step {
            Step::Does { user, operation } => Some(self.execute(*user, operation)?),
            Step::DropCaches => {
                drop_caches();
                None
            }
            Step::Wait(milliseconds) => {
                std::thread::sleep(Duration::from_millis(*milliseconds));
                None
            }
            Step::Remount => {
                self.stop();
                self.ours.remount();
                self.start();
                None
            }
            Step::Kill => {
                self.kill()?;
                None
            }
        };
        if outcome.is_none() || self.steps.is_multiple_of(WHOLE_EVERY) {
            self.compare()?;
        }
        Ok(outcome)
    }

    fn execute(&mut self, user: usize, operation: &Operation) -> Result<Outcome, String> {
        let mut paths: Vec<Text> = Vec::new();
        for path in operation.paths() {
            for path in [path.clone(), path.parent()] {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        let before = self.look(&paths, false)?;
        let began = now();
        let replies = self.both(user, &WorkerCommand::Do(operation.clone()));
        let after = self.look(&paths, self.steps.is_multiple_of(CONTENT_EVERY))?;
        let (reference, ours) = match replies {
            (WorkerReply::Did(a, b, c), WorkerReply::Did(d, e, f)) => ((a, b, c), (d, e, f)),
            other => return Err(format!("unexpected reply: {other:?}")),
        };
        if !same(operation, &reference.0, &ours.0) {
            let mut description = outcomes(&reference.0, &ours.0);
            for (number, path) in paths.iter().enumerate() {
                let (left, right) = (&before.0[number], &before.1[number]);
                description +=
                    &format!("\n  {path:?} was\n    tmpfs: {left:?}\n    ours:  {right:?}");
            }
            for (left, right) in reference.1.iter().zip(&ours.1) {
                description +=
                    &format!("\n  an open file was\n    tmpfs: {left:?}\n    ours:  {right:?}");
            }
            return Err(description);
        }
        let times = (self.began, began);
        let (old, new) = ((&before.0[..], &before.1[..]), (&after.0[..], &after.1[..]));
        if let Operation::Map { .. } = operation {
            let file = reference.2[0].iter();
            self.mapped.extend(file.map(|it| (it.inode, it.modified)));
        }
        compare::path_states(&paths, old, new, times, operation, &self.mapped)?;
        for (number, slot) in operation.slots().into_iter().enumerate() {
            let place = format!("open file {slot}");
            let now = (&reference.2[number], &ours.2[number]);
            compare::still(&place, now, self.began, &self.mapped)?;
            let was = (&reference.1[number], &ours.1[number]);
            if let ((Some(a), Some(b)), (Some(c), Some(d))) = (was, now)
                && a.inode == c.inode
            {
                compare::moved(&place, (a, b), (c, d), began, operation)?;
            }
        }
        Ok(reference.0)
    }

    fn kill(&mut self) -> compare::CheckResult {
        match self.both(0, &WorkerCommand::SyncAll) {
            (WorkerReply::Synced(Ok(_)), WorkerReply::Synced(Ok(_))) => {}
            other => return Err(format!("sync: {other:?}")),
        }
        // Files stay open while the mount is killed.
        self.ours.kill();
        self.stop();
        self.ours.mount_again();
        self.start();
        Ok(())
    }

    /// Removes both directories.
    ///
    /// # Errors
    /// If a directory cannot be removed.
    pub fn remove(mut self) -> compare::CheckResult {
        self.stop();
        let (reference, ours) = self.directories();
        for directory in [reference, ours] {
            let place = directory.display();
            fs::remove_dir_all(&directory).map_err(|error| format!("remove {place}: {error}"))?;
        }
        Ok(())
    }
}

fn at(twin: &'static str) -> impl Fn(String) -> String {
    move |error| format!("{twin}: {error}")
}

fn outcomes(reference: &Outcome, ours: &Outcome) -> String {
    let text = |outcome: &Outcome| match outcome {
        Ok(value) => format!("{value:?}"),
        Err(code) => std::io::Error::from_raw_os_error(*code).to_string(),
    };
    format!(
        "the outcome differs\n    tmpfs: {}\n    ours:  {}",
        text(reference),
        text(ours)
    )
}
