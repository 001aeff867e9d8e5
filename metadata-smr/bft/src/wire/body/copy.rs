//! The bodies of FETCH-COPY and its answer.

use super::super::message::{CopyPart, FetchCopy, FetchNodes, Nodes};
use super::super::reader::{Field, Reader, write_bytes, write_list, write_option};
use super::{FRAME_BYTES_MAX, PATH_MAX, Parsed, TRANSFER_NODES_MAX, decode_stable, encode_stable};
use crate::identity::Digest;
use crate::state::Path;

pub(super) fn encode_nodes(nodes: &Nodes, bytes: &mut Vec<u8>) {
    nodes.root.write(bytes);
    nodes.gone.write(bytes);
    write_list(bytes, &nodes.nodes, |(path, node), bytes| {
        write_bytes(bytes, path);
        write_bytes(bytes, node);
    });
}

pub(super) fn decode_nodes(reader: &mut Reader<'_>) -> Parsed<Nodes> {
    Ok(Nodes {
        root: reader.get("root")?,
        gone: reader.get("gone")?,
        nodes: reader.list("nodes", TRANSFER_NODES_MAX, |reader| {
            let path = reader.bytes("path", PATH_MAX)?;
            Ok((path, reader.bytes("node", FRAME_BYTES_MAX)?))
        })?,
    })
}

/// The length of some nodes, roughly.
pub(super) fn nodes_size(nodes: &Nodes) -> usize {
    let lengths = nodes
        .nodes
        .iter()
        .map(|(path, node)| path.len() + node.len() + 8);
    64 + lengths.sum::<usize>()
}

pub(super) fn encode_paths(root: &Digest, paths: &[Path], bytes: &mut Vec<u8>) {
    root.write(bytes);
    write_list(bytes, paths, |path, bytes| write_bytes(bytes, path));
}

pub(super) fn decode_fetch_nodes(reader: &mut Reader<'_>) -> Parsed<FetchNodes> {
    Ok(FetchNodes {
        root: reader.get("root")?,
        paths: reader.list("paths", TRANSFER_NODES_MAX, |r| r.bytes("path", PATH_MAX))?,
    })
}

pub(super) fn encode_fetch(fetch: &FetchCopy, bytes: &mut Vec<u8>) {
    fetch.session.write(bytes);
    encode_paths(&fetch.root, &fetch.paths, bytes);
}

pub(super) fn decode_fetch(reader: &mut Reader<'_>) -> Parsed<FetchCopy> {
    let session = reader.get("session")?;
    let FetchNodes { root, paths } = decode_fetch_nodes(reader)?;
    Ok(FetchCopy {
        session,
        root,
        paths,
    })
}

pub(super) fn encode_part(part: &CopyPart, bytes: &mut Vec<u8>) {
    part.refused.write(bytes);
    write_option(bytes, part.stable.as_ref(), encode_stable);
    encode_nodes(&part.nodes, bytes);
}

pub(super) fn decode_part(reader: &mut Reader<'_>) -> Parsed<CopyPart> {
    Ok(CopyPart {
        refused: reader.get("refused")?,
        stable: reader.option("stable", decode_stable)?,
        nodes: decode_nodes(reader)?,
    })
}
