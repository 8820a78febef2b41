//! A snapshot or a change in parts that fit a message. Pure.

use std::sync::Arc;

use gpuheal_proto::{
    limits::{MESSAGE_BYTES_MAX, SNAPSHOT_NODES_MAX},
    link::v1::{self, cluster_state::Body},
};
use prost::Message as _;

/// Bytes of nodes in a part: half of a message, so that sources and the ConfigMap fit beside them.
const PART_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// A message to come. What a snapshot says of its nodes is made only when its turn comes: 5,000 nodes are 20 MiB.
#[derive(Debug)]
pub(super) enum Part {
    /// Whole.
    Ready(Body),
    /// Without its nodes, which are these.
    Snapshot(v1::SnapshotPart, Vec<Arc<str>>),
}

impl Part {
    /// That nothing happened.
    pub(super) fn nothing() -> Self {
        Self::Ready(Body::Delta(v1::StateDelta::default()))
    }

    /// What all nodes are with this change, as its last part says it. A snapshot needs none: it says all there is.
    pub(super) fn sum_up(&mut self, digest: impl FnOnce() -> v1::StateDigest) {
        if let Self::Ready(Body::Delta(delta)) = self {
            delta.digest = Some(digest());
        }
    }

    /// The message, with what is to be said of each node now.
    pub(super) fn body(self, tell: impl FnMut(&str) -> Option<v1::NodeState>) -> Body {
        match self {
            Self::Ready(body) => body,
            Self::Snapshot(part, names) => {
                let mut tell = tell;
                Body::Snapshot(v1::SnapshotPart { nodes: names.iter().filter_map(|name| tell(name)).collect(), ..part })
            }
        }
    }
}

/// The snapshot's parts from the nodes' names and sizes; at least one, for a cluster without a GPU node says that too.
pub(super) fn snapshot(
    nodes: impl Iterator<Item = (Arc<str>, usize)>,
    config: &v1::ClusterConfig,
    sources: Vec<v1::SourceState>,
) -> Vec<Part> {
    let mut groups = split(nodes);
    if groups.is_empty() {
        groups.push(Vec::new());
    }
    let total = groups.len() as u32;
    let each = SNAPSHOT_NODES_MAX.max(sources.len().div_ceil(groups.len()));
    let mut sources = sources.into_iter();
    let part = |(at, names): (usize, Vec<Arc<str>>)| {
        let part = v1::SnapshotPart {
            part: at as u32 + 1,
            parts: total,
            nodes: Vec::new(),
            config: (at == 0).then(|| config.clone()),
            sources: sources.by_ref().take(each).collect(),
        };
        Part::Snapshot(part, names)
    };
    groups.into_iter().enumerate().map(part).collect()
}

/// A change's parts.
pub(super) fn delta(delta: v1::StateDelta) -> Vec<Part> {
    let v1::StateDelta { changed, gone_uids, config, sources, .. } = delta;
    let mut parts = split(changed.into_iter().map(|node| {
        let size = node.encoded_len();
        (node, size)
    }))
    .into_iter();
    let first = v1::StateDelta { changed: parts.next().unwrap_or_default(), gone_uids, config, sources, digest: None };
    let rest = parts.map(|changed| v1::StateDelta { changed, ..v1::StateDelta::default() });
    std::iter::once(first).chain(rest).map(|delta| Part::Ready(Body::Delta(delta))).collect()
}

fn split<T>(nodes: impl Iterator<Item = (T, usize)>) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for (node, size) in nodes {
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
