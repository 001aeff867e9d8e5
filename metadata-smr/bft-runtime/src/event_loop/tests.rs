//! The loop around a scripted core.

use super::*;
use crate::keys::NodeKey;
use crate::link::frame::Frame;
use crate::roster::ConnectionLimits;
use crate::roster::peers::Addresses;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Nanos, PublicKey, ReplicaId};
use quorumfs_bft::replica::Config;
use quorumfs_bft::step::Destination;

/// Emits a script, one list of effects per event, and records the events.
struct ScriptedCore {
    script: VecDeque<Vec<Effect>>,
    seen: Arc<Mutex<Vec<Event>>>,
}

impl Core for ScriptedCore {
    fn step(&mut self, _now: Now, event: Event, effects: &mut Effects) {
        self.seen.lock().expect("lock").push(event);
        for effect in self.script.pop_front().unwrap_or_default() {
            effects.push(effect);
        }
    }

    fn committed(&self) -> Sequence {
        Sequence(0)
    }

    fn status(&self) -> ReplicaStatus {
        quiet()
    }
}

/// The status of a replica that has done nothing yet.
pub(crate) fn quiet() -> ReplicaStatus {
    ReplicaStatus {
        replica: ReplicaId(0),
        epoch: Default::default(),
        began: Default::default(),
        ended: false,
        reborn: None,
        view: Default::default(),
        leader: ReplicaId(0),
        active: true,
        sequence: Default::default(),
        batch: Default::default(),
        time: Default::default(),
        durable: Default::default(),
        root: Default::default(),
        stable: Default::default(),
        kept: Default::default(),
        transfer: None,
        voting: quorumfs_bft::metrics::Voting::Voting,
        signers: Vec::new(),
        sessions: 0,
        waiting: 0,
        authentication: Default::default(),
        durability: Default::default(),
        counters: Default::default(),
    }
}

/// A disk that completes writes when the test tells it to.
#[derive(Default)]
struct ManualDisk {
    appended: Arc<Mutex<Vec<Token>>>,
    /// How much had been appended at each wake-up.
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Durable for ManualDisk {
    fn append(&mut self, _record: Bytes, token: Token) -> Result<bool, String> {
        self.appended.lock().expect("lock").push(token);
        Ok(false)
    }
    fn wake(&mut self) {
        let appended = self.appended.lock().expect("lock").len();
        self.woken.lock().expect("lock").push(appended);
    }
    fn flush(&mut self, _batch: WriteBatch, _root: DurableRoot) -> Result<(), String> {
        Err("the disk is full".to_owned())
    }
    fn trim(&mut self, _before: Token) -> Result<(), String> {
        Ok(())
    }
}

struct Fixture {
    inbox: Arc<Inbox>,
    published: Arc<Published>,
    roster: Arc<Roster>,
    seen: Arc<Mutex<Vec<Event>>>,
    appended: Arc<Mutex<Vec<Token>>>,
    woken: Arc<Mutex<Vec<usize>>>,
    thread: std::thread::JoinHandle<Ending>,
}

fn run(script: Vec<Vec<Effect>>) -> Fixture {
    let key = Arc::new(NodeKey::generate().expect("randomness"));
    let model = FaultModel::new(0, 1, 2).expect("model");
    let mut membership = Membership::unnamed(model);
    let keys = [key.public(), PublicKey([1; 32])];
    for (voter, key) in membership.voters.iter_mut().zip(keys) {
        voter.key = key;
    }
    let config = Config::new(ReplicaId(0), ClusterId([1; 16]), model, Bytes::new());
    let (inbox, roster) = (
        Arc::new(Inbox::default()),
        Arc::new(Roster::new(
            key.public(),
            Addresses::new(),
            ConnectionLimits::within(1024),
        )),
    );
    roster.enter(&membership, ReplicaId(0));
    roster
        .outbox(ReplicaId(1))
        .expect("peer")
        .set_connected(true);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let disk = ManualDisk::default();
    let (appended, woken) = (disk.appended.clone(), disk.woken.clone());
    let core = ScriptedCore {
        script: script.into(),
        seen: seen.clone(),
    };
    let published = Arc::new(Published::default());
    let context = LoopContext {
        inbox: inbox.clone(),
        roster: roster.clone(),
        verification: Arc::new(Verification::new(config.context(), vec![])),
        accounts: Arc::default(),
        volumes: Arc::new(Volumes::new(model, Instant::now())),
        published: published.clone(),
        signer: key,
        clock: Clock::start(),
    };
    let mut effects = Effects::default();
    effects.push(Effect::SetTimer {
        timer: Timer::Status,
        after: Nanos(0),
    });
    let event_loop = EventLoop::new(core, disk, context);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    let thread = std::thread::spawn(move || runtime.block_on(event_loop.run(effects)).0);
    Fixture {
        inbox,
        published,
        roster,
        seen,
        appended,
        woken,
        thread,
    }
}

impl Fixture {
    async fn sent(&self) -> Vec<Bytes> {
        let outbox = self.roster.outbox(ReplicaId(1)).expect("peer");
        let mut frames: Vec<Frame> = Vec::new();
        let wait = Duration::from_millis(50);
        tokio::time::sleep(wait).await;
        let _ = tokio::time::timeout(wait, outbox.take(1 << 20, &mut frames)).await;
        frames.into_iter().map(|frame| frame.payload).collect()
    }
}

fn send(frame: &'static [u8], after: Option<u64>) -> Effect {
    Effect::Send {
        to: Destination::Replicas,
        frame: Bytes::from_static(frame),
        after: after.map(Token),
    }
}

fn persist(token: u64) -> Effect {
    Effect::Persist {
        record: Bytes::new(),
        token: Token(token),
    }
}

#[tokio::test]
async fn records_that_no_frame_waits_for_are_written_soon() {
    let fixture = run(vec![vec![persist(1)]]);
    let began = Instant::now();
    while fixture.woken.lock().expect("lock").last() != Some(&1) {
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(20), "the disk is not woken");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fixture.inbox.stop();
}

#[tokio::test]
async fn a_frame_is_held_until_its_write_and_no_longer() {
    let fixture = run(vec![
        vec![
            persist(1),
            send(b"vote 1", Some(1)),
            persist(2),
            send(b"vote 2", Some(2)),
            send(b"free", None),
            send(b"also 1", Some(1)),
        ],
        vec![send(b"late 1", Some(1))],
    ]);
    assert_eq!(fixture.sent().await, ["free"]);
    assert_eq!(
        *fixture.appended.lock().expect("lock"),
        [Token(1), Token(2)]
    );
    fixture.inbox.persisted(Token(1));
    assert_eq!(fixture.sent().await, ["vote 1", "also 1", "late 1"]);
    fixture.inbox.persisted(Token(2));
    assert_eq!(fixture.sent().await, ["vote 2"]);
    fixture.inbox.stop();
    assert_eq!(fixture.thread.join().expect("loop"), Ending::Stopped);
}

#[tokio::test]
async fn a_journal_has_another_incarnation_once_that_is_durable() {
    let fixture = run(vec![vec![persist(1)], vec![send(b"done", None)]]);
    assert!(fixture.sent().await.is_empty());
    let incarnation = Incarnation([7; 16]);
    let published = &fixture.published;
    assert_eq!(published.incarnation(), Some(Incarnation::default()));
    let reborn = Some(incarnation);
    let renamed = || {
        published.set(ReplicaStatus { reborn, ..quiet() });
        published.incarnation()
    };
    assert_eq!(renamed(), None);
    fixture.inbox.persisted(Token(1));
    assert_eq!(fixture.sent().await, ["done"]);
    assert_eq!(renamed(), Some(incarnation));
    fixture.inbox.stop();
}

#[tokio::test]
async fn a_poisoned_core_is_silent_and_never_stepped_again() {
    let poison = Effect::Poison {
        reason: "damaged".to_owned(),
    };
    let fixture = run(vec![vec![
        persist(1),
        send(b"held", Some(1)),
        poison,
        send(b"no", None),
    ]]);
    let inbox = fixture.inbox.clone();
    assert!(fixture.sent().await.is_empty());
    inbox.persisted(Token(1));
    assert!(fixture.sent().await.is_empty());
    assert_eq!(fixture.seen.lock().expect("lock").len(), 1);
    let ending = fixture.thread.join().expect("loop");
    assert_eq!(ending, Ending::Poisoned("damaged".to_owned()));
}

#[tokio::test]
async fn a_disk_that_fails_ends_the_loop() {
    let flush = Effect::Flush {
        batch: WriteBatch::default(),
        root: DurableRoot {
            sequence: Default::default(),
            digest: Default::default(),
        },
    };
    let fixture = run(vec![vec![flush]]);
    let ending = fixture.thread.join().expect("loop");
    assert_eq!(ending, Ending::Poisoned("the disk is full".to_owned()));
    let fixture = run(vec![]);
    fixture.inbox.failed(Ending::DiskFull("gone".to_owned()));
    let ending = fixture.thread.join().expect("loop");
    assert_eq!(ending, Ending::DiskFull("gone".to_owned()));
}

#[tokio::test]
async fn timers_run_out_once_in_their_time_and_not_when_cancelled() {
    let set = |timer, millis| Effect::SetTimer {
        timer,
        after: Nanos::from_millis(millis),
    };
    let cancel = Effect::CancelTimer { timer: Timer::Tick };
    let fixture = run(vec![
        vec![
            set(Timer::Progress, 60),
            set(Timer::Fetch, 20),
            set(Timer::Tick, 40),
        ],
        vec![cancel],
    ]);
    tokio::time::sleep(Duration::from_millis(150)).await;
    let rung: Vec<Timer> = fixture
        .seen
        .lock()
        .expect("lock")
        .iter()
        .map(|event| match event {
            Event::Timer { timer } => *timer,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(rung, [Timer::Status, Timer::Fetch, Timer::Progress]);
    fixture.inbox.stop();
}
