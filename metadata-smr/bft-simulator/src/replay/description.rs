//! Descriptions of events and effects, for traces and differences.

use quorumfs_bft::recording::Entry;
use quorumfs_bft::step::{Destination, Effect, Event, Peer};
use quorumfs_bft::wire::{Envelope, Header, Message};

/// The description of the start.
pub(super) const START: &str = "the start";

pub(super) fn event(event: Option<&Event>) -> String {
    match event {
        None => START.to_owned(),
        Some(Event::Received { from, message: it }) => {
            let what = message(it.header(), it.message());
            match from {
                Peer::Replica(id) => format!("replica {id} sends {what}"),
                Peer::Client(connection) => format!("connection {connection} sends {what}"),
            }
        }
        Some(Event::Signed { message: it }) => {
            format!("signed: {}", message(it.header(), it.message()))
        }
        Some(Event::Persisted { token }) => format!("record {} is durable", token.0),
        Some(Event::Flushed { sequence }) => format!("the state after {sequence} is durable"),
        Some(Event::Timer { timer }) => format!("timer {timer:?}"),
        Some(Event::Connected { replica }) => format!("replica {replica} is connected"),
        Some(Event::Disconnected { connection }) => format!("connection {connection} has ended"),
    }
}

pub(super) fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Sign { message: it } => format!("Sign {}", message(it.header(), it.message())),
        Effect::Persist { record, token } => {
            format!("Persist record {} of {} bytes", token.0, record.len())
        }
        Effect::Send { to, frame, after } => {
            let what = match Envelope::decode(frame.clone()) {
                Ok(it) => message(it.header(), it.message()),
                Err(error) => format!("something else ({error})"),
            };
            let to = match to {
                Destination::Replica(id) => format!("replica {id}"),
                Destination::Replicas => "all replicas".to_owned(),
                Destination::Client(connection) => format!("connection {connection}"),
            };
            let after = after.map_or(String::new(), |it| format!(" after record {}", it.0));
            format!("Send {what} to {to}{after}")
        }
        Effect::Show { to, frame } => {
            format!("Show {} bytes to {} observers", frame.len(), to.len())
        }
        Effect::Flush { batch, root } => {
            let (rows, sequence) = (batch.entries.len(), root.sequence);
            format!("Flush {rows} rows of the state after {sequence}")
        }
        other => format!("{other:?}"),
    }
}

pub(super) fn entry(entry: &Entry) -> String {
    match entry {
        Entry::JournalRecord { token, .. } => format!("record {} of the journal", token.0),
        Entry::Event { event: it, .. } => format!("an event ({})", event(Some(it))),
        Entry::Read { key: at, .. } => format!("a read of {}", key(at)),
        Entry::Effects { effects } => format!("an outcome of {} effects", effects.len()),
        Entry::End { why } => format!("its end ({why})"),
    }
}

pub(super) fn key(key: &[u8]) -> String {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("row {digits}")
}

fn message(header: &Header, message: &Message) -> String {
    let view = header.view;
    match message {
        Message::Request(it) => format!(
            "Request {} of lane {} of session {}",
            it.number, it.lane, it.session
        ),
        Message::Stray(it) => format!("a message of session {}, unknown here", it.session),
        Message::Proposal(it) => format!(
            "Proposal of {} with {} requests in view {view}",
            it.sequence,
            it.requests.len()
        ),
        Message::Prepare(it) => format!("Prepare {} by {} in view {view}", it.sequence, it.signer),
        Message::Commit(it) => format!("Commit {} by {} in view {view}", it.sequence, it.signer),
        Message::Checkpoint(it) => {
            format!("Checkpoint {} by {}", it.checkpoint.sequence, it.signer)
        }
        Message::Status(it) => format!("Status: {} in view {view}", it.committed),
        Message::Reply(it) => format!(
            "Reply to {} of lane {} of session {} at {}",
            it.number, it.lane, it.session, it.version
        ),
        Message::Committed(it) => format!("Committed {}", it.batch.sequence),
        Message::FetchCommitted(it) => format!("FetchCommitted from {}", it.from),
        other => format!("{:?} in view {view}", other.kind()),
    }
}
