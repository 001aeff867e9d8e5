//! Replicas that are far apart: a core around which each frame takes its time.
//!
//! ```text
//!   client ──── half of i's ────► replica i ──── half of i's ────► client
//!   replica j ── half of the mean of i's and j's ──► replica i
//! ```
//!
//! Each replica has a round trip, which is that of the clients to it; between two replicas it is
//! the mean of theirs. If all are equal, all ways are equally long. Only the frames of the protocol
//! take their time: a connection is made at once, and nothing limits the bandwidth.
//!
//! # What always holds
//!
//! * Each link has one delay. So its frames, and its begin or end, arrive in the order in which
//!   they came, and none is lost: the queue has no bound.
//! * A frame to a client that waits for a write begins its way when the write is durable.
//! * What was signed comes back to the core before anything else, as without this.
//! * The core's own tick is kept, although the queue needs the same timer.

use quorumfs_bft::identity::{Monotonic, Nanos, Now, Sequence};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer, Timer, Token};
use quorumfs_bft_runtime::event_loop::Core;
use std::collections::BTreeMap;

/// What is under way, the first to arrive first; what arrives at the same time in the order in
/// which it left.
struct DelayQueue<T> {
    waiting: BTreeMap<(Monotonic, u64), T>,
    count: u64,
}

impl<T> DelayQueue<T> {
    fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            count: 0,
        }
    }

    fn push(&mut self, due: Monotonic, item: T) {
        self.waiting.insert((due, self.count), item);
        self.count += 1;
    }

    /// Takes the next one, if it has arrived.
    fn take_due(&mut self, now: Monotonic) -> Option<T> {
        let first = self.waiting.first_entry()?;
        let (due, _) = *first.key();
        (due <= now).then(|| first.remove())
    }

    fn next_due(&self) -> Option<Monotonic> {
        let (due, _) = self.waiting.keys().next()?;
        Some(*due)
    }
}

/// How long frames are under way to and from one replica: one way.
pub(super) struct OneWays {
    clients: Nanos,
    /// By the number of the other replica.
    replicas: Vec<Nanos>,
}

impl OneWays {
    /// Those of a replica, by the round trips of all replicas; `None` without any.
    pub(super) fn of(replica: u16, round_trips_ms: &[u64]) -> Option<Self> {
        let nanos = |ms: &u64| Nanos::from_millis(*ms).0;
        let own = round_trips_ms.get(usize::from(replica)).map(nanos)?;
        let replicas = round_trips_ms.iter().map(nanos);
        Some(Self {
            clients: Nanos(own / 2),
            replicas: replicas.map(|other| Nanos((own + other) / 4)).collect(),
        })
    }

    fn to(&self, peer: Peer) -> Nanos {
        match peer {
            Peer::Client(_) => self.clients,
            Peer::Replica(replica) => {
                let way = self.replicas.get(usize::from(replica.0));
                way.copied().unwrap_or_default()
            }
        }
    }
}

/// Something under way.
enum Delayed {
    /// To this replica.
    Here(Event),
    /// To clients.
    Away(Effect),
}

/// A core that is far from all others.
pub(super) struct DistantCore<C> {
    core: C,
    ways: OneWays,
    queue: DelayQueue<Delayed>,
    /// Frames to clients that wait for a write.
    held: BTreeMap<Token, Vec<Effect>>,
    persisted: Option<Token>,
    /// When the core's own tick is due.
    tick: Option<Monotonic>,
    /// How many messages are being signed.
    signing: u32,
}

impl<C: Core> DistantCore<C> {
    pub(super) fn new(core: C, ways: OneWays) -> Self {
        Self {
            core,
            ways,
            queue: DelayQueue::new(),
            held: BTreeMap::new(),
            persisted: None,
            tick: None,
            signing: 0,
        }
    }

    /// How long an event is under way to this replica.
    fn way_of(&self, event: &Event) -> Nanos {
        match event {
            Event::Received { from, .. } => self.ways.to(*from),
            Event::Connected { replica } => self.ways.to(Peer::Replica(*replica)),
            Event::Disconnected { connection } => self.ways.to(Peer::Client(*connection)),
            Event::Signed { .. }
            | Event::Persisted { .. }
            | Event::Flushed { .. }
            | Event::Timer { .. } => Nanos(0),
        }
    }

    fn feed(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let mut emitted = Effects::default();
        self.core.step(now, event, &mut emitted);
        for effect in emitted.drain() {
            self.emit(now, effect, effects);
        }
    }

    fn emit(&mut self, now: Now, effect: Effect, effects: &mut Effects) {
        match effect {
            Effect::SetTimer {
                timer: Timer::Tick,
                after,
            } => self.tick = Some(now.monotonic.plus(after)),
            Effect::CancelTimer { timer: Timer::Tick } => self.tick = None,
            Effect::Send {
                to: Destination::Client(_),
                after: Some(token),
                ..
            } if self.persisted < Some(token) => {
                self.held.entry(token).or_default().push(effect);
            }
            Effect::Send {
                to: Destination::Client(_),
                ..
            }
            | Effect::Show { .. } => self.send_away(now, effect),
            Effect::Sign { .. } => {
                self.signing += 1;
                effects.push(effect);
            }
            effect => effects.push(effect),
        }
    }

    fn send_away(&mut self, now: Now, effect: Effect) {
        let due = now.monotonic.plus(self.ways.clients);
        self.queue.push(due, Delayed::Away(effect));
    }

    /// A write is durable, and so is every one before it.
    fn persisted(&mut self, now: Now, token: Token) {
        self.persisted = self.persisted.max(Some(token));
        while let Some(entry) = self.held.first_entry()
            && Some(*entry.key()) <= self.persisted
        {
            for effect in entry.remove() {
                self.send_away(now, effect);
            }
        }
    }

    /// Delivers what has arrived, until the core has to sign something: the signed message comes
    /// back as the next event, and then this goes on.
    fn deliver(&mut self, now: Now, effects: &mut Effects) {
        while self.signing == 0
            && let Some(arrived) = self.queue.take_due(now.monotonic)
        {
            match arrived {
                Delayed::Here(event) => self.feed(now, event, effects),
                Delayed::Away(effect) => effects.push(effect),
            }
        }
        if self.signing == 0 && self.tick.is_some_and(|at| at <= now.monotonic) {
            self.tick = None;
            let timer = Timer::Tick;
            self.feed(now, Event::Timer { timer }, effects);
        }
    }

    fn set_timer(&self, now: Now, effects: &mut Effects) {
        let next = [self.queue.next_due(), self.tick].into_iter().flatten();
        if let Some(at) = next.min() {
            effects.push(Effect::SetTimer {
                timer: Timer::Tick,
                after: at.since(now.monotonic),
            });
        }
    }
}

impl<C: Core> Core for DistantCore<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let way = self.way_of(&event);
        if way > Nanos(0) {
            // Nothing is sent in this step: a direct answer to a client would be charged to it.
            let due = now.monotonic.plus(way);
            self.queue.push(due, Delayed::Here(event));
            self.set_timer(now, effects);
            return;
        }
        match event {
            Event::Timer { timer: Timer::Tick } => {}
            event => {
                match &event {
                    Event::Signed { .. } => self.signing = self.signing.saturating_sub(1),
                    Event::Persisted { token } => self.persisted(now, *token),
                    _ => {}
                }
                self.feed(now, event, effects);
            }
        }
        self.deliver(now, effects);
        self.set_timer(now, effects);
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::{ConnectionId, ReplicaId, Time};

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Now {
        Now {
            clock: Time(0),
            monotonic: Monotonic(ms * MS),
        }
    }

    #[test]
    fn each_link_keeps_its_order_and_nothing_is_lost_at_the_end() {
        let mut queue = DelayQueue::new();
        // A link for each of five delays; frames leave at any time, many at the same one.
        for number in 0..1000_u64 {
            let (link, left) = (number * 7 % 5, number / 3);
            queue.push(Monotonic(left + link * 10), (link, number));
        }
        let mut arrived: Vec<(u64, u64)> = Vec::new();
        for now in 0..400 {
            while let Some(item) = queue.take_due(Monotonic(now)) {
                let (link, number) = item;
                assert_eq!(now, number / 3 + link * 10, "on time");
                arrived.push(item);
            }
        }
        assert_eq!(arrived.len(), 1000);
        assert_eq!(queue.next_due(), None);
        for link in 0..5 {
            let of = arrived.iter().filter(|(of, _)| *of == link);
            let numbers: Vec<u64> = of.map(|(_, number)| *number).collect();
            assert_eq!(numbers.len(), 200);
            assert!(numbers.is_sorted());
        }
    }

    #[test]
    fn two_replicas_are_as_far_apart_as_the_mean_of_their_round_trips() {
        let ways = OneWays::of(1, &[10, 20, 30, 0]).unwrap();
        assert_eq!(ways.clients, Nanos(10 * MS));
        let to = |replica| ways.to(Peer::Replica(ReplicaId(replica))).0;
        assert_eq!([to(0), to(2), to(3)], [7_500_000, 12_500_000, 5 * MS]);
        assert_eq!(ways.to(Peer::Client(ConnectionId(9))), Nanos(10 * MS));
        assert!(OneWays::of(1, &[]).is_none());
    }

    /// Answers the connection of a replica to the client of the same number, after the write of
    /// that number, and sets a tick.
    #[derive(Default)]
    struct Echo {
        seen: Vec<String>,
    }

    impl Core for Echo {
        fn step(&mut self, _: Now, event: Event, effects: &mut Effects) {
            self.seen.push(format!("{event:?}"));
            if let Event::Connected { replica } = event {
                effects.push(Effect::Send {
                    to: Destination::Client(ConnectionId(replica.0.into())),
                    frame: vec![0].into(),
                    after: Some(Token(replica.0.into())),
                });
                effects.push(Effect::SetTimer {
                    timer: Timer::Tick,
                    after: Nanos(3 * MS),
                });
            }
        }

        fn status(&self) -> ReplicaStatus {
            panic!("not asked for")
        }

        fn committed(&self) -> Sequence {
            Sequence(0)
        }
    }

    fn step(core: &mut DistantCore<Echo>, ms: u64, event: Event) -> (Vec<Effect>, Option<u64>) {
        let mut effects = Effects::default();
        core.step(at(ms), event, &mut effects);
        let (mut others, mut timer) = (Vec::new(), None);
        for effect in effects.drain() {
            match effect {
                Effect::SetTimer {
                    timer: Timer::Tick,
                    after,
                } => timer = Some(ms + after.0 / MS),
                other => others.push(other),
            }
        }
        (others, timer)
    }

    #[test]
    fn frames_take_their_way_in_and_out_and_the_cores_own_tick_comes_in_time() {
        let ways = OneWays::of(0, &[20, 20, 60]).unwrap();
        let mut core = DistantCore::new(Echo::default(), ways);
        let connected = |number| Event::Connected {
            replica: ReplicaId(number),
        };
        let tick = || Event::Timer { timer: Timer::Tick };
        assert_eq!(step(&mut core, 0, connected(2)).1, Some(20));
        // The nearer one arrives first.
        assert_eq!(step(&mut core, 1, connected(1)).1, Some(11));
        assert_eq!(step(&mut core, 10, tick()).1, Some(11));
        assert!(core.core.seen.is_empty());
        // It arrives; the answer waits for its write, and the core for its tick.
        let (sent, timer) = step(&mut core, 11, tick());
        assert!(sent.is_empty() && core.core.seen.len() == 1);
        assert_eq!(timer, Some(14));
        let (sent, timer) = step(&mut core, 12, Event::Persisted { token: Token(1) });
        assert!(sent.is_empty());
        assert_eq!(timer, Some(14));
        assert_eq!(step(&mut core, 14, tick()).1, Some(20));
        assert!(core.core.seen.last().unwrap().contains("Tick"));
        // The other one; its write is not durable yet.
        assert_eq!(step(&mut core, 20, tick()).1, Some(22));
        // The answer arrives ten milliseconds after its write.
        let (sent, timer) = step(&mut core, 22, tick());
        assert_eq!((sent.len(), timer), (1, Some(23)));
        assert_eq!(step(&mut core, 23, tick()).1, None);
        let (sent, timer) = step(&mut core, 40, Event::Persisted { token: Token(2) });
        assert_eq!((sent.len(), timer), (0, Some(50)));
        let (sent, timer) = step(&mut core, 51, tick());
        assert_eq!((sent.len(), timer), (1, None));
    }
}
