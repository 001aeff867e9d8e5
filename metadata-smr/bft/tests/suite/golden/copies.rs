//! The messages of clients that copy the state.

use super::{checkpoint, signed, stable, unsigned};
use bytes::Bytes;
use quorumfs_bft::identity::{Lane, RequestNumber, SessionId};
use quorumfs_bft::wire::message::{CopyPart, FetchCopy, Nodes, Request, RequestOperation};
use quorumfs_bft::wire::{Envelope, Message};
use std::sync::Arc;

pub(super) fn messages() -> Vec<(&'static str, Arc<Envelope>)> {
    let ordering = Request {
        session: SessionId(5),
        lane: Lane(3),
        number: RequestNumber(9),
        operations: vec![RequestOperation::Checkpoint],
    };
    let fetch = FetchCopy {
        session: SessionId(5),
        root: checkpoint().root,
        paths: vec![Bytes::new(), Bytes::from_static(&[2, 16])],
    };
    let part = CopyPart {
        refused: false,
        stable: None,
        nodes: Nodes {
            root: checkpoint().root,
            gone: false,
            nodes: vec![(Bytes::from_static(&[2, 16]), Bytes::from_static(b"node"))],
        },
    };
    let gone = CopyPart {
        refused: false,
        stable: Some(stable()),
        nodes: Nodes {
            root: checkpoint().root,
            gone: true,
            nodes: Vec::new(),
        },
    };
    let part = Message::CopyPart(Box::new(part));
    let gone = Message::CopyPart(Box::new(gone));
    vec![
        ("request_checkpoint", signed(0, Message::Request(ordering))),
        ("fetch_copy", unsigned(Message::FetchCopy(fetch))),
        ("copy_part", unsigned(part)),
        ("copy_part_gone", unsigned(gone)),
    ]
}
