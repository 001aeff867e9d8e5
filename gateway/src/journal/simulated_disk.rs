//! A disk with the faults that a disk may have: for tests.
//!
//! Appended bytes that are not synced exist as long as the machine runs. After a power loss, any of
//! their sectors may be on the disk and any may not, in whatever order they were written; a missing
//! one is zeros, or some earlier content. A call that a power loss interrupts was done in part. A
//! failed sync has lost any of its bytes, and the next one does not report that.

use super::disk::Disk;
use super::framing::Generation;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR_BYTES: usize = 512;

/// Numbers from a seed (splitmix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// True once in `times`.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[derive(Default, Clone)]
struct File {
    /// The bytes that a read returns.
    bytes: Vec<u8>,
    /// The bytes that are certainly on the disk.
    durable: Vec<u8>,
}

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DiskFault {
    /// Power is lost in the middle of a call.
    PowerLoss,
    /// A call fails, done in part.
    Refusal,
}

struct SimulatedDiskState {
    files: BTreeMap<Generation, File>,
    aside: Vec<Generation>,
    current: Option<Generation>,
    dice: Dice,
    /// After so many calls.
    fault: Option<(u64, DiskFault)>,
    off: bool,
    free: u64,
}

/// Clones are the same disk.
#[derive(Clone)]
pub(super) struct SimulatedDisk(Arc<Mutex<SimulatedDiskState>>);

impl SimulatedDisk {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SimulatedDiskState {
            files: BTreeMap::new(),
            aside: Vec::new(),
            current: None,
            dice: Dice::new(seed),
            fault: None,
            off: false,
            free: u64::MAX,
        })))
    }

    fn state(&self) -> MutexGuard<'_, SimulatedDiskState> {
        self.0.lock().unwrap()
    }

    /// Plans a fault after so many calls.
    pub(super) fn fault_in(&self, calls: u64, fault: DiskFault) {
        self.state().fault = Some((calls, fault));
    }

    /// Whether power was lost.
    pub(super) fn is_off(&self) -> bool {
        self.state().off
    }

    /// Loses power, if it is on, and restores it.
    pub(super) fn restart(&self) {
        let mut state = self.state();
        let state = &mut *state;
        for file in state.files.values_mut() {
            *file = torn(file, &mut state.dice);
        }
        state.off = false;
        state.fault = None;
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        self.state().fault = None;
    }

    pub(super) fn files(&self) -> Vec<Generation> {
        self.state().files.keys().copied().collect()
    }

    pub(super) fn aside(&self) -> Vec<Generation> {
        self.state().aside.clone()
    }

    /// Changes a file without the journal's knowledge.
    pub(super) fn change(&self, file: Generation, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = state.files.entry(file).or_default();
        change(&mut file.bytes);
        file.durable = file.bytes.clone();
    }

    pub(super) fn take(&self, file: Generation) -> Vec<u8> {
        self.state().files.remove(&file).unwrap().bytes
    }

    pub(super) fn set_free(&self, bytes: u64) {
        self.state().free = bytes;
    }
}

/// A file after a power loss: any sectors of its unsynced bytes.
fn torn(file: &File, dice: &mut Dice) -> File {
    let (old, new) = (&file.durable, &file.bytes);
    let mut bytes = old.clone();
    if new.len() > old.len() {
        let more = dice.below((new.len() - old.len()) as u64 + 1) as usize;
        let sectors = (old.len() + more) / SECTOR_BYTES * SECTOR_BYTES;
        let rubbish = if dice.one_in(2) { 0 } else { dice.roll() as u8 };
        bytes.resize(sectors.max(old.len()), rubbish);
        // Often most of it is there.
        let lost = [2, 20][dice.below(2) as usize];
        for at in (old.len()..bytes.len()).step_by(SECTOR_BYTES) {
            let end = (at + SECTOR_BYTES).min(bytes.len());
            if !dice.one_in(lost) {
                bytes[at..end].copy_from_slice(&new[at..end]);
            }
        }
    }
    File {
        durable: bytes.clone(),
        bytes,
    }
}

impl SimulatedDiskState {
    /// Counts a call; returns its fault.
    fn call(&mut self) -> io::Result<Option<DiskFault>> {
        if self.off {
            return Err(io::Error::other("power is off"));
        }
        let fault = match &mut self.fault {
            Some((0, fault)) => Some(*fault),
            Some((calls, _)) => {
                *calls -= 1;
                None
            }
            None => None,
        };
        if fault.is_some() {
            self.fault = None;
        }
        self.off |= fault == Some(DiskFault::PowerLoss);
        Ok(fault)
    }

    fn written(&mut self) -> io::Result<&mut File> {
        let current = self.current.ok_or(io::ErrorKind::NotFound)?;
        Ok(self.files.get_mut(&current).unwrap())
    }
}

fn outcome(fault: Option<DiskFault>) -> io::Result<()> {
    match fault {
        None => Ok(()),
        Some(DiskFault::Refusal) => Err(io::ErrorKind::StorageFull.into()),
        Some(DiskFault::PowerLoss) => Err(io::Error::other("power is off")),
    }
}

impl Disk for SimulatedDisk {
    fn list(&mut self) -> io::Result<Vec<Generation>> {
        Ok(self.files().into_iter().rev().collect())
    }

    fn read(&mut self, file: Generation) -> io::Result<Vec<u8>> {
        let state = self.state();
        let file = state.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.bytes.clone())
    }

    fn settle(&mut self, file: Generation) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        let file = state.files.get_mut(&file).ok_or(io::ErrorKind::NotFound)?;
        if fault.is_none() {
            file.durable = file.bytes.clone();
        }
        outcome(fault)
    }

    fn create(&mut self, file: Generation, header: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        assert!(!state.files.contains_key(&file), "{file:?} is there");
        let mut made = File {
            bytes: header.to_vec(),
            durable: header.to_vec(),
        };
        if fault.is_some() {
            made.durable.clear();
            if state.dice.one_in(2) {
                return outcome(fault);
            }
        }
        state.files.insert(file, made);
        state.current = Some(file);
        outcome(fault)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        let part = state.dice.below(bytes.len() as u64 + 1) as usize;
        let bytes = if fault.is_some() {
            &bytes[..part]
        } else {
            bytes
        };
        state.written()?.bytes.extend_from_slice(bytes);
        outcome(fault)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        match fault {
            None => {
                let file = state.written()?;
                file.durable = file.bytes.clone();
            }
            Some(DiskFault::PowerLoss) => {}
            Some(DiskFault::Refusal) => {
                // Lost bytes are lost, and their pages look clean.
                let current = state.current.ok_or(io::ErrorKind::NotFound)?;
                let SimulatedDiskState { files, dice, .. } = &mut *state;
                let file = files.get_mut(&current).unwrap();
                *file = torn(file, dice);
            }
        }
        outcome(fault)
    }

    fn remove(&mut self, file: Generation) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        if fault.is_none() || state.dice.one_in(2) {
            state.files.remove(&file);
        }
        outcome(fault)
    }

    fn put_aside(&mut self, file: Generation) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.call()?;
        if fault.is_none() {
            state.aside.push(file);
        }
        outcome(fault)
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        Ok(self.state().free)
    }
}
