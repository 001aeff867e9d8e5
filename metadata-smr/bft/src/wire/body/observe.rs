//! The bodies of messages to and from observers.

use super::super::limits::WATCHES_PER_SESSION_MAX;
use super::super::reader::{Field, Reader, write_list};
use super::{Malformed, Parsed};
use crate::observer::{NumberedReport, Observe, Observed, Report, WatchEvent, WatchRefusal};

pub(super) fn encode(observe: &Observe, bytes: &mut Vec<u8>) {
    observe.reports.write(bytes);
    observe.session.write(bytes);
}

pub(super) fn decode(reader: &mut Reader<'_>) -> Parsed<Observe> {
    Ok(Observe {
        reports: reader.get("reports")?,
        session: reader.get("session")?,
    })
}

pub(super) fn encode_observed(observed: &Observed, bytes: &mut Vec<u8>) {
    match observed {
        Observed::Accepted { applied, last } => {
            bytes.push(0);
            applied.write(bytes);
            last.write(bytes);
        }
        Observed::Refused(WatchRefusal::Full) => bytes.push(1),
        Observed::Refused(WatchRefusal::NoSession) => bytes.push(2),
    }
}

pub(super) fn decode_observed(reader: &mut Reader<'_>) -> Parsed<Observed> {
    Ok(match reader.get::<u8>("observed")? {
        0 => Observed::Accepted {
            applied: reader.get("applied")?,
            last: reader.get("last event")?,
        },
        1 => Observed::Refused(WatchRefusal::Full),
        2 => Observed::Refused(WatchRefusal::NoSession),
        _ => return Err(Malformed::Impossible { field: "observed" }),
    })
}

pub(super) fn encode_report(report: &NumberedReport, bytes: &mut Vec<u8>) {
    report.number.write(bytes);
    // Writing into a vector cannot fail.
    let _ = borsh::BorshSerialize::serialize(&report.report, bytes);
}

pub(super) fn decode_report(reader: &mut Reader<'_>) -> Parsed<NumberedReport> {
    Ok(NumberedReport {
        number: reader.get("number")?,
        report: borsh::from_slice::<Report>(&reader.rest())
            .map_err(|_| Malformed::Impossible { field: "report" })?,
    })
}

pub(super) fn encode_event(event: &WatchEvent, bytes: &mut Vec<u8>) {
    event.session.write(bytes);
    event.sequence.write(bytes);
    event.previous.write(bytes);
    write_list(bytes, &event.watches, Field::write);
}

pub(super) fn decode_event(reader: &mut Reader<'_>) -> Parsed<WatchEvent> {
    Ok(WatchEvent {
        session: reader.get("session")?,
        sequence: reader.get("sequence")?,
        previous: reader.get("previous event")?,
        watches: reader.list("watches", WATCHES_PER_SESSION_MAX, |r| r.get("watch"))?,
    })
}
