//! The VIEW-CHANGE of a cluster whose votes are not signed: claims instead of certificates.

use super::{Parsed, encode_stable, nested};
use crate::certificate::{CommitCertificate, PreparedCertificate};
use crate::identity::View;
use crate::wire::body::decode_stable;
use crate::wire::limits::{BATCHES_KEPT, FRAME_BYTES_MAX, WINDOW};
use crate::wire::message::{Accepted, Claims, Kind, ViewChange};
use crate::wire::reader::{Field, Reader, write_bytes, write_list, write_option};

pub(super) fn encode(change: &ViewChange, claims: &Claims, bytes: &mut Vec<u8>) {
    change.signer.write(bytes);
    write_option(bytes, claims.stable.as_ref(), encode_stable);
    write_list(bytes, &change.base, |executed, bytes| {
        executed.sequence.write(bytes);
        executed.digest.write(bytes);
    });
    write_list(bytes, &change.prepared, |prepared, bytes| {
        write_bytes(bytes, prepared.proposal.frame());
    });
    write_list(bytes, &claims.accepted, |accepted, bytes| {
        accepted.sequence.write(bytes);
        accepted.digest.write(bytes);
        accepted.view.write(bytes);
    });
}

pub(super) fn decode(reader: &mut Reader<'_>) -> Parsed<ViewChange> {
    let signer = reader.get("signer")?;
    let stable = reader.option("stable", decode_stable)?;
    let base = reader.list("executed", WINDOW + 1, |reader| {
        Ok(CommitCertificate {
            view: View(0),
            sequence: reader.get("sequence")?,
            digest: reader.get("digest")?,
            votes: Vec::new(),
        })
    })?;
    let prepared = reader.list("prepared", WINDOW, |reader| {
        let frame = reader.bytes("proposal", FRAME_BYTES_MAX)?;
        Ok(PreparedCertificate {
            proposal: nested(frame, &[Kind::Proposal])?,
            votes: Vec::new(),
        })
    })?;
    let accepted = reader.list("accepted", WINDOW * BATCHES_KEPT, |reader| {
        Ok(Accepted {
            sequence: reader.get("sequence")?,
            digest: reader.get("digest")?,
            view: reader.get("view")?,
        })
    })?;
    Ok(ViewChange {
        signer,
        base,
        prepared,
        claims: Some(Box::new(Claims { stable, accepted })),
    })
}
