//! A snapshot or a change in parts that fit a message. Pure.

use std::collections::BTreeMap;

use gpuheal_proto::{
    limits::{MESSAGE_BYTES_MAX, SNAPSHOT_NODES_MAX},
    link::v1::{self, cluster_state::Body},
};
use prost::Message as _;

/// Bytes of nodes in a part: half of a message, so that sources and the ConfigMap fit beside them.
const PART_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// The snapshot's parts; at least one, for a cluster without a GPU node says that too.
pub(super) fn snapshot(
    nodes: &BTreeMap<String, v1::NodeState>,
    config: &v1::ClusterConfig,
    sources: &[v1::SourceState],
) -> Vec<Body> {
    let mut parts: Vec<_> = split(nodes.values().cloned().collect());
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let total = parts.len() as u32;
    let mut sources = sources.chunks(SNAPSHOT_NODES_MAX.max(sources.len().div_ceil(parts.len())));
    let part = |(at, nodes): (usize, Vec<v1::NodeState>)| {
        Body::Snapshot(v1::SnapshotPart {
            part: at as u32 + 1,
            parts: total,
            nodes,
            config: (at == 0).then(|| config.clone()),
            sources: sources.next().map(<[_]>::to_vec).unwrap_or_default(),
        })
    };
    parts.into_iter().enumerate().map(part).collect()
}

/// A change's parts.
pub(super) fn delta(delta: v1::StateDelta) -> Vec<Body> {
    let v1::StateDelta { changed, gone_uids, config, sources } = delta;
    let mut parts = split(changed).into_iter();
    let first = v1::StateDelta { changed: parts.next().unwrap_or_default(), gone_uids, config, sources };
    let rest = parts.map(|changed| v1::StateDelta { changed, ..v1::StateDelta::default() });
    std::iter::once(first).chain(rest).map(Body::Delta).collect()
}

fn split(nodes: Vec<v1::NodeState>) -> Vec<Vec<v1::NodeState>> {
    let mut parts: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0;
    for node in nodes {
        let size = node.encoded_len();
        match parts.last_mut() {
            Some(part) if part.len() < SNAPSHOT_NODES_MAX && bytes + size <= PART_BYTES_MAX => part.push(node),
            _ => {
                parts.push(vec![node]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    parts
}
