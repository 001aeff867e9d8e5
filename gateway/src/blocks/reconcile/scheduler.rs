//! The scheduler: begins the rounds of all tasks when they are due.
//!
//! ```text
//!            ┌──────────── next ◄───────────────┐
//!            ▼                                  │
//!   Now ──► run ──────────────────────────────► ask again
//!   At ───► wait for the instant ──► run ─────► ask again
//!    └────► notified before it ───────────────► ask again
//!   Notified ► wait ──► notified ─────────────► ask again
//!   Never ► no further rounds
//! ```
//!
//! Invariants:
//! * **A task has at most one round at a time**; rounds of different tasks run concurrently.
//! * **No notification is lost**: one that comes during a round is seen when the round ends.
//! * **Nothing depends on chance**: tasks begin in the order of their list, and each decides by the
//!   clock and its own queue alone. On one thread the same events lead to the same order of rounds.
//! * A panic ends the task that it happened in and no other: each has a task of the runtime to
//!   itself.
//! * When the scheduler is dropped, rounds that are under way are aborted at their next await.

use super::task::{Due, Task, TaskProgress, TaskStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::task::AbortHandle;
use tokio::time::sleep_until;

/// The rounds of one task.
#[derive(Debug, Default)]
struct Rounds {
    begun: AtomicU64,
    is_running: AtomicBool,
}

/// A round under way; it ends when this is dropped, also by a panic.
struct Round<'a>(&'a Rounds);

impl<'a> Round<'a> {
    fn begin(rounds: &'a Rounds) -> Self {
        rounds.begun.fetch_add(1, Ordering::Relaxed);
        rounds.is_running.store(true, Ordering::Relaxed);
        Self(rounds)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Relaxed);
    }
}

/// A task whose rounds are begun here.
struct Scheduled {
    task: Arc<dyn Task>,
    rounds: Arc<Rounds>,
    runs: AbortHandle,
}

/// The tasks of one store. Dropping it aborts all of them.
pub(in crate::blocks) struct Scheduler {
    tasks: Vec<Scheduled>,
}

impl Scheduler {
    /// Starts the tasks, in this order. Must be called within a Tokio runtime.
    pub(super) fn start(tasks: Vec<Arc<dyn Task>>) -> Self {
        let start = |task: Arc<dyn Task>| {
            let rounds = Arc::new(Rounds::default());
            let attended = attend(Arc::clone(&task), Arc::clone(&rounds));
            Scheduled {
                task,
                rounds,
                runs: tokio::spawn(attended).abort_handle(),
            }
        };
        Self {
            tasks: tasks.into_iter().map(start).collect(),
        }
    }

    /// Ends all tasks; a round that is under way is aborted.
    pub(in crate::blocks) fn stop(&self) {
        for task in &self.tasks {
            task.runs.abort();
        }
    }

    /// The tasks as an operator sees them, in their order.
    pub(in crate::blocks) fn status(&self) -> Vec<TaskStatus> {
        let status = |scheduled: &Scheduled| {
            let TaskProgress { waiting, done } = scheduled.task.progress();
            TaskStatus {
                name: scheduled.task.name(),
                running: scheduled.rounds.is_running.load(Ordering::Relaxed),
                ended: scheduled.runs.is_finished(),
                rounds: scheduled.rounds.begun.load(Ordering::Relaxed),
                waiting,
                done,
            }
        };
        self.tasks.iter().map(status).collect()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until the task is notified.
async fn notified(task: &dyn Task) {
    match task.wakes() {
        Some(wakes) => wakes.notified().await,
        None => std::future::pending().await,
    }
}

/// Does the rounds of one task, until there are no further ones.
async fn attend(task: Arc<dyn Task>, rounds: Arc<Rounds>) {
    loop {
        match task.next() {
            Due::Now => {}
            Due::At(when) => tokio::select! {
                biased;
                () = sleep_until(when) => {}
                () = notified(&*task) => continue,
            },
            Due::Notified => {
                notified(&*task).await;
                continue;
            }
            Due::Never => return,
        }
        let _round = Round::begin(&rounds);
        task.run().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::time::Duration;
    use tokio::sync::Notify;
    use tokio::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    /// What happened, with the time since the start.
    type Events = Arc<Mutex<Vec<(&'static str, Duration)>>>;

    /// A task that works off a queue of pauses, or has a round every so often.
    struct Example {
        name: &'static str,
        queue: Mutex<VecDeque<Duration>>,
        wakes: Notify,
        every: Option<Duration>,
        begun: Instant,
        events: Events,
        panics: bool,
    }

    impl Example {
        fn new(name: &'static str, events: &Events) -> Self {
            Self {
                name,
                queue: Mutex::default(),
                wakes: Notify::new(),
                every: None,
                begun: Instant::now(),
                events: Arc::clone(events),
                panics: false,
            }
        }

        fn push(&self, pause: Duration) {
            self.queue.lock().unwrap().push_back(pause);
            self.wakes.notify_one();
        }

        fn tell(&self, what: &'static str) {
            let now = self.begun.elapsed();
            self.events.lock().unwrap().push((what, now));
        }
    }

    #[async_trait::async_trait]
    impl Task for Example {
        fn name(&self) -> &'static str {
            self.name
        }

        fn next(&self) -> Due {
            match self.every {
                Some(every) if every.is_zero() => Due::Never,
                Some(every) => Due::At(Instant::now() + every),
                None if self.queue.lock().unwrap().is_empty() => Due::Notified,
                None => Due::Now,
            }
        }

        fn wakes(&self) -> Option<&Notify> {
            self.every.is_none().then_some(&self.wakes)
        }

        async fn run(&self) {
            assert!(!self.panics, "planted");
            self.tell(self.name);
            let pause = self.queue.lock().unwrap().pop_front();
            tokio::time::sleep(pause.unwrap_or_default()).await;
            self.tell("end");
        }

        fn progress(&self) -> TaskProgress {
            TaskProgress {
                waiting: self.queue.lock().unwrap().len() as u64,
                done: 0,
            }
        }
    }

    fn told(events: &Events) -> Vec<(&'static str, u64)> {
        let events = events.lock().unwrap();
        let seconds = |(what, when): &(&'static str, Duration)| (*what, when.as_secs());
        events.iter().map(seconds).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_has_one_round_at_a_time_and_different_tasks_run_concurrently() {
        let events = Events::default();
        let (one, two) = (Example::new("one", &events), Example::new("two", &events));
        let (one, two) = (Arc::new(one), Arc::new(two));
        let scheduler = Scheduler::start(vec![one.clone(), two.clone()]);
        tokio::task::yield_now().await;
        one.push(2 * SECOND);
        one.push(2 * SECOND);
        two.push(5 * SECOND);
        tokio::time::sleep(SECOND).await;
        let status = scheduler.status();
        assert!(status.iter().all(|task| task.running && !task.ended));
        assert_eq!((status[0].waiting, status[0].rounds), (1, 1));
        tokio::time::sleep(9 * SECOND).await;
        let rounds = [
            ("one", 0),
            ("two", 0),
            ("end", 2),
            ("one", 2),
            ("end", 4),
            ("end", 5),
        ];
        assert_eq!(told(&events), rounds);
        assert!(scheduler.status().iter().all(|task| !task.running));
    }

    #[tokio::test(start_paused = true)]
    async fn a_notification_during_a_round_is_not_lost_and_an_instant_is_kept() {
        let events = Events::default();
        let queue = Arc::new(Example::new("queue", &events));
        let clock = Example {
            every: Some(4 * SECOND),
            ..Example::new("clock", &events)
        };
        let _scheduler = Scheduler::start(vec![queue.clone(), Arc::new(clock)]);
        queue.push(3 * SECOND);
        tokio::time::sleep(SECOND).await;
        queue.push(Duration::ZERO);
        tokio::time::sleep(6 * SECOND).await;
        let rounds = [
            ("queue", 0),
            ("end", 3),
            ("queue", 3),
            ("end", 3),
            ("clock", 4),
            ("end", 4),
        ];
        assert_eq!(told(&events), rounds);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_its_own_task_and_never_means_never() {
        let events = Events::default();
        let bad = Example {
            panics: true,
            ..Example::new("bad", &events)
        };
        let never = Example {
            every: Some(Duration::ZERO),
            ..Example::new("never", &events)
        };
        let (bad, good) = (Arc::new(bad), Arc::new(Example::new("good", &events)));
        let scheduler = Scheduler::start(vec![bad.clone(), Arc::new(never), good.clone()]);
        bad.push(SECOND);
        tokio::time::sleep(SECOND).await;
        good.push(Duration::ZERO);
        tokio::time::sleep(SECOND).await;
        assert_eq!(told(&events), [("good", 1), ("end", 1)]);
        let ended: Vec<_> = scheduler.status().iter().map(|task| task.ended).collect();
        assert_eq!(ended, [true, true, false]);
        assert!(!scheduler.status()[0].running);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_scheduler_aborts_every_round() {
        let events = Events::default();
        let task = Arc::new(Example::new("task", &events));
        let scheduler = Scheduler::start(vec![task.clone()]);
        task.push(3 * SECOND);
        tokio::time::sleep(SECOND).await;
        drop(scheduler);
        task.push(SECOND);
        tokio::time::sleep(9 * SECOND).await;
        assert_eq!(told(&events), [("task", 0)]);
        assert_eq!(Arc::strong_count(&task), 1);
    }
}
