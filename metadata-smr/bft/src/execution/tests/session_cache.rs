//! The cached sessions and lanes are equal to their rows.

use super::*;

/// An action of a client, or the passing of time.
#[derive(Clone, Copy, Debug)]
enum Act {
    Open(u8),
    Close(u64),
    Ask(u64, u16, u64, u32),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => (1_u8..4).prop_map(Act::Open),
        1 => (1_u64..5).prop_map(Act::Close),
        12 => (1_u64..5, 0_u16..3, 1_u64..7, 8_u32..10)
            .prop_map(|(session, lane, number, length)| Act::Ask(session, lane, number, length)),
        1 => (1_u64..800).prop_map(Act::Wait),
    ]
}

impl Bench {
    fn standing(&self, body: &Envelope) -> Standing {
        let standing = self.executor.standing(&self.space, body, self.time);
        standing.expect("memory")
    }

    /// Clears the cache, so that only the rows are left.
    fn forget(&mut self) {
        self.executor.settle(&mut self.space).expect("memory");
        self.executor.state_replaced();
    }

    fn root(&mut self) -> Digest {
        self.executor.settle(&mut self.space).expect("memory");
        self.space.root_digest().expect("memory")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_executor_with_a_cache_answers_as_one_that_reads_its_rows(
        acts in prop::collection::vec((prop::collection::vec(act(), 1..6), any::<bool>()), 1..40),
    ) {
        let (mut kept, mut read) = (Bench::new(), Bench::new());
        for (batch, settles) in acts {
            let mut length = Nanos::from_millis(1);
            let mut bodies = Vec::new();
            for act in batch {
                match act {
                    Act::Open(key) => bodies.push(open(1, key, kept.time.0)),
                    Act::Close(id) => bodies.push(signed(Message::CloseSession(CloseSession {
                        session: SessionId(id),
                    }))),
                    Act::Ask(id, lane, number, length) => {
                        bodies.push(request(id, lane, number, execute(length)));
                    }
                    Act::Wait(seconds) => length = Nanos::from_secs(seconds),
                }
            }
            for body in &bodies {
                read.forget();
                prop_assert_eq!(kept.standing(body), read.standing(body));
            }
            let done = kept.after(length, &bodies);
            read.forget();
            let expected = read.after(length, &bodies);
            prop_assert_eq!(&done.replies, &expected.replies);
            prop_assert_eq!(done.closed, expected.closed);
            if settles {
                prop_assert_eq!(kept.root(), read.root());
            }
        }
        prop_assert_eq!(kept.root(), read.root());
    }
}
