//! The expected content of the database after a number of transactions, kept without a database.
//!
//! A transaction follows from the seed, its number and the content before it, so that the number of
//! transactions determines every row. Accounts pay one another; each transfer has a note, sometimes
//! too long for a page. Accounts are opened and closed, and the transfers of an account are deleted
//! with it. Both are bounded, so that a long run is as large as a short one.

use crate::kills::manifest::content;
use quorumfs_bft_simulator::random::Random;
use std::collections::BTreeMap;

/// The minimum and the maximum number of open accounts.
const ACCOUNTS: std::ops::RangeInclusive<usize> = 4..=300;
/// How many transfers are remembered, approximately.
const TRANSFERS_MAX: usize = 3000;
/// How many transfers a transaction forgets, if there are too many.
const FORGOTTEN: usize = 200;
const NOTE_BYTES_MAX: u64 = 300;
/// Longer than several pages.
const LONG_NOTE_BYTES_MAX: u64 = 40 << 10;

/// An account that pays and is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) balance: i64,
    /// How often the balance was changed; the database's trigger counts that.
    pub(super) changes: i64,
}

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) source: i64,
    pub(super) target: i64,
    pub(super) amount: i64,
    /// The note's length; its bytes follow from the transfer.
    pub(super) note_bytes: usize,
}

/// A part of a transaction.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Open {
        id: i64,
        name: String,
        balance: i64,
    },
    /// The balance goes to the heir; the account's transfers and its count of changes are deleted.
    Close {
        id: i64,
        heir: i64,
    },
    Pay {
        id: i64,
        transfer: Transfer,
    },
    /// Deletes all transfers with smaller numbers.
    Forget {
        below: i64,
    },
}

/// A transaction.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) number: u64,
    /// Done and rolled back within the transaction, before the rest.
    pub(super) undone: Vec<Change>,
    pub(super) changes: Vec<Change>,
}

/// The expected content; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) seed: u64,
    /// How many transactions were executed.
    pub(super) done: u64,
    pub(super) accounts: BTreeMap<i64, Account>,
    pub(super) transfers: BTreeMap<i64, Transfer>,
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Executes transactions until there were this many.
    pub(super) fn advance(&mut self, done: u64) {
        while self.done < done {
            let transaction = self.next();
            self.apply(&transaction);
        }
    }

    /// The bytes of a transfer's note.
    pub(super) fn note(&self, id: i64, length: usize) -> Vec<u8> {
        content(&[self.seed, id.unsigned_abs()], 0, length)
    }

    /// The next transaction.
    pub(super) fn next(&self) -> Transaction {
        let number = self.done + 1;
        let mut random = Random::new(self.seed.wrapping_mul(0x9e37_79b9) ^ number);
        let mut after = self.clone_of_accounts();
        let undone = match random.chance(1, 10) {
            true => after.clone_of_accounts().changes(&mut random, number, 500),
            false => Vec::new(),
        };
        let mut changes = after.changes(&mut random, number, 0);
        if self.transfers.len() > TRANSFERS_MAX {
            let below = self.transfers.keys().nth(FORGOTTEN).copied();
            changes.push(Change::Forget {
                below: below.unwrap_or_default(),
            });
        }
        Transaction {
            number,
            undone,
            changes,
        }
    }

    /// Executes a transaction.
    pub(super) fn apply(&mut self, transaction: &Transaction) {
        assert_eq!(transaction.number, self.done + 1);
        for change in &transaction.changes {
            self.change(change);
        }
        self.done = transaction.number;
    }

    fn clone_of_accounts(&self) -> Self {
        Self {
            seed: self.seed,
            done: self.done,
            accounts: self.accounts.clone(),
            transfers: BTreeMap::new(),
        }
    }

    fn pick(&self, random: &mut Random) -> i64 {
        let index = random.index(self.accounts.len());
        *self.accounts.keys().nth(index).expect("it has so many")
    }

    /// One to four changes, each possible after those before it. `from` separates the numbers of
    /// rows that are made in one transaction.
    fn changes(&mut self, random: &mut Random, number: u64, from: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for step in 0..random.between(1, 4) {
            let id = i64::try_from(number * 1000 + from + step).unwrap();
            let change = if self.accounts.len() < *ACCOUNTS.start() {
                Self::open(id, random)
            } else {
                match random.below(20) {
                    0..=2 if self.accounts.len() < *ACCOUNTS.end() => Self::open(id, random),
                    0 | 3 => {
                        let (closed, heir) = self.two(random);
                        Change::Close { id: closed, heir }
                    }
                    _ => self.pay(id, random),
                }
            };
            self.change(&change);
            changes.push(change);
        }
        changes
    }

    fn open(id: i64, random: &mut Random) -> Change {
        Change::Open {
            id,
            name: format!("account {:016x} {id}", random.next()),
            balance: i64::try_from(random.between(0, 100_000)).unwrap(),
        }
    }

    fn two(&self, random: &mut Random) -> (i64, i64) {
        let first = self.pick(random);
        loop {
            let second = self.pick(random);
            if second != first {
                return (first, second);
            }
        }
    }

    fn pay(&self, id: i64, random: &mut Random) -> Change {
        let (source, target) = self.two(random);
        let least = random.below(1000).cast_signed();
        let amount = least.min(self.accounts[&source].balance);
        let note_bytes = match random.chance(1, 40) {
            true => random.below(LONG_NOTE_BYTES_MAX),
            false => random.below(NOTE_BYTES_MAX),
        };
        let transfer = Transfer {
            source,
            target,
            amount,
            note_bytes: usize::try_from(note_bytes).unwrap(),
        };
        Change::Pay { id, transfer }
    }

    fn add(&mut self, id: i64, amount: i64) {
        let account = self.accounts.get_mut(&id).expect("it is open");
        account.balance += amount;
        account.changes += 1;
    }

    fn change(&mut self, change: &Change) {
        match change.clone() {
            Change::Open { id, name, balance } => {
                let account = Account {
                    name,
                    balance,
                    changes: 0,
                };
                self.accounts.insert(id, account);
            }
            Change::Close { id, heir } => {
                let closed = self.accounts.remove(&id).expect("it is open");
                self.add(heir, closed.balance);
                self.transfers
                    .retain(|_, it| it.source != id && it.target != id);
            }
            Change::Pay { id, transfer } => {
                self.add(transfer.source, -transfer.amount);
                self.add(transfer.target, transfer.amount);
                self.transfers.insert(id, transfer);
            }
            Change::Forget { below } => self.transfers = self.transfers.split_off(&below),
        }
    }
}
