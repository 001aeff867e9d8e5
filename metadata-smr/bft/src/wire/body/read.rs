//! The bodies of READ and its answer.

use super::super::limits::{READ_QUERIES_MAX, REQUEST_BYTES_MAX, RESULTS_BYTES_MAX};
use super::super::message::{AnswerBody, Answered, Read, ReadAnswer};
use super::super::reader::{Field, Reader, write_bytes, write_list, write_option};
use super::{Malformed, Parsed};

pub(super) fn encode(read: &Read, bytes: &mut Vec<u8>) {
    read.session.write(bytes);
    read.nonce.write(bytes);
    read.full.write(bytes);
    write_list(bytes, &read.queries, |query, bytes| {
        write_bytes(bytes, query)
    });
}

pub(super) fn decode(reader: &mut Reader<'_>) -> Parsed<Read> {
    Ok(Read {
        session: reader.get("session")?,
        nonce: reader.get("nonce")?,
        full: reader.get("full")?,
        queries: reader.list("queries", READ_QUERIES_MAX, |reader| {
            reader.bytes("query", REQUEST_BYTES_MAX)
        })?,
    })
}

/// The length of an answer's body, roughly.
pub(super) fn answer_size(answer: &ReadAnswer) -> usize {
    let length = |answered: &Answered| match &answered.body {
        AnswerBody::Bytes(body) => body.len() + 13,
        AnswerBody::Digest(_) => 41,
        AnswerBody::NoRoom => 9,
    };
    let answers = answer.answers.iter().flatten();
    32 + answers.map(length).sum::<usize>()
}

pub(super) fn encode_answer(answer: &ReadAnswer, bytes: &mut Vec<u8>) {
    answer.nonce.write(bytes);
    answer.applied.write(bytes);
    write_option(bytes, answer.answers.as_ref(), |answers, bytes| {
        write_list(bytes, answers, |answered, bytes| {
            answered.version.write(bytes);
            match &answered.body {
                AnswerBody::Bytes(body) => {
                    bytes.push(0);
                    write_bytes(bytes, body);
                }
                AnswerBody::Digest(digest) => {
                    bytes.push(1);
                    digest.write(bytes);
                }
                AnswerBody::NoRoom => bytes.push(2),
            }
        });
    });
}

pub(super) fn decode_answer(reader: &mut Reader<'_>) -> Parsed<ReadAnswer> {
    let answered = |reader: &mut Reader<'_>| {
        Ok(Answered {
            version: reader.get("version")?,
            body: match reader.get::<u8>("answer")? {
                0 => AnswerBody::Bytes(reader.bytes("answer", RESULTS_BYTES_MAX)?),
                1 => AnswerBody::Digest(reader.get("digest")?),
                2 => AnswerBody::NoRoom,
                _ => return Err(Malformed::Impossible { field: "answer" }),
            },
        })
    };
    Ok(ReadAnswer {
        nonce: reader.get("nonce")?,
        applied: reader.get("applied")?,
        answers: reader.option("answers", |reader| {
            reader.list("answers", READ_QUERIES_MAX, answered)
        })?,
    })
}
