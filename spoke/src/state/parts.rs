//! A snapshot or a change in parts that fit a message. Pure.

use std::sync::Arc;

use gpuheal_proto::{
    limits::{MESSAGE_BYTES_MAX, SNAPSHOT_NODES_MAX, SNAPSHOT_PARTS_MAX},
    link::v1::{self, cluster_state::Body},
};
use prost::Message as _;

/// Bytes of nodes in a part: half of a message. Beside them fit the sources, the UIDs of nodes that are gone, and in one part the
/// owner's ConfigMap of 64 KiB with 32 errors of 1 KiB: 992 KiB of 1,024.
const PART_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;
/// Bytes of sources in a part: a quarter.
const SOURCES_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4;
/// Bytes of UIDs in a part: an eighth, 3,400 of them.
const GONE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 8;
/// What tag and length add to each.
const ITEM_BYTES: usize = 4;

/// More than a hub takes as one snapshot: it would lack nodes, and those would count as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot has {parts} parts, at most {SNAPSHOT_PARTS_MAX} are taken")]
pub(super) struct TooManyParts {
    /// How many it has.
    pub(super) parts: usize,
}

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
///
/// # Errors
/// When a hub would not take so many.
pub(super) fn snapshot(
    nodes: impl Iterator<Item = (Arc<str>, usize)>,
    config: &v1::ClusterConfig,
    sources: Vec<v1::SourceState>,
) -> Result<Vec<Part>, TooManyParts> {
    let (mut nodes, mut sources) = (split(nodes, PART_BYTES_MAX).into_iter(), sources_split(sources).into_iter());
    let parts = nodes.len().max(sources.len()).max(1);
    if parts > SNAPSHOT_PARTS_MAX {
        return Err(TooManyParts { parts });
    }
    let part = |at: usize| {
        let part = v1::SnapshotPart {
            part: at as u32 + 1,
            parts: parts as u32,
            nodes: Vec::new(),
            config: (at == 0).then(|| config.clone()),
            sources: sources.next().unwrap_or_default(),
        };
        Part::Snapshot(part, nodes.next().unwrap_or_default())
    };
    Ok((0..parts).map(part).collect())
}

/// A change's parts.
pub(super) fn delta(delta: v1::StateDelta) -> Vec<Part> {
    let v1::StateDelta { changed, gone_uids, mut config, sources, .. } = delta;
    let mut changed = split(sized(changed, v1::NodeState::encoded_len), PART_BYTES_MAX).into_iter();
    let mut gone_uids = split(sized(gone_uids, String::len), GONE_BYTES_MAX).into_iter();
    let mut sources = sources_split(sources).into_iter();
    let parts = changed.len().max(gone_uids.len()).max(sources.len()).max(1);
    let part = |_| v1::StateDelta {
        changed: changed.next().unwrap_or_default(),
        gone_uids: gone_uids.next().unwrap_or_default(),
        config: config.take(),
        sources: sources.next().unwrap_or_default(),
        digest: None,
    };
    (0..parts).map(part).map(|delta| Part::Ready(Body::Delta(delta))).collect()
}

fn sources_split(sources: Vec<v1::SourceState>) -> Vec<Vec<v1::SourceState>> {
    split(sized(sources, v1::SourceState::encoded_len), SOURCES_BYTES_MAX)
}

fn sized<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> impl Iterator<Item = (T, usize)> {
    items.into_iter().map(move |item| {
        let bytes = size(&item);
        (item, bytes)
    })
}

/// Groups in their order, each of so many bytes, and of as many as a part may have of nodes, or of one alone.
fn split<T>(items: impl Iterator<Item = (T, usize)>, bytes_max: usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for (item, size) in items {
        let size = size + ITEM_BYTES;
        match groups.last_mut() {
            Some(group) if group.len() < SNAPSHOT_NODES_MAX && bytes + size <= bytes_max => group.push(item),
            _ => {
                groups.push(vec![item]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::fits;

    fn source(n: usize) -> v1::SourceState {
        v1::SourceState { source: format!("exporter n{n}"), reason: "x".repeat(1024), ..v1::SourceState::default() }
    }

    fn config() -> v1::ClusterConfig {
        v1::ClusterConfig { yaml: "x".repeat(64 << 10), errors: vec!["x".repeat(1024); 32], ..v1::ClusterConfig::default() }
    }

    #[test]
    fn a_change_of_everything_at_once_is_told_whole_in_messages_that_fit() {
        let node = |n: usize| v1::NodeState { name: format!("n{n}"), boot_id: "x".repeat(400), ..v1::NodeState::default() };
        let all = v1::StateDelta {
            changed: (0..3000).map(node).collect(),
            gone_uids: (0..9000).map(|n| format!("{n:036}")).collect(),
            config: Some(config()),
            sources: (0..3000).map(source).collect(),
            digest: None,
        };
        let mut told = v1::StateDelta::default();
        for part in delta(all.clone()) {
            let body = part.body(|_| None);
            fits(&v1::ClusterState { body: Some(body.clone()), ..v1::ClusterState::default() }).unwrap();
            let Body::Delta(delta) = body else { panic!("not a change") };
            told.changed.extend(delta.changed);
            told.gone_uids.extend(delta.gone_uids);
            told.sources.extend(delta.sources);
            told.config = told.config.or(delta.config);
        }
        assert_eq!(told, all);
    }

    #[test]
    fn the_fullest_parts_of_a_snapshot_fit_and_name_each_source_once() {
        let nodes = (0..3000).map(|n| (Arc::from(format!("n{n}")), 4000));
        let tell = |name: &str| Some(v1::NodeState { name: name.into(), boot_id: "x".repeat(3990), ..v1::NodeState::default() });
        let sources: Vec<_> = (0..9000).map(source).collect();
        let (mut told, mut named) = (Vec::new(), 0);
        for part in snapshot(nodes, &config(), sources.clone()).unwrap() {
            let body = part.body(tell);
            fits(&v1::ClusterState { body: Some(body.clone()), ..v1::ClusterState::default() }).unwrap();
            let Body::Snapshot(part) = body else { panic!("not a snapshot") };
            told.extend(part.sources);
            named += part.nodes.len();
        }
        assert_eq!((told, named), (sources, 3000));
    }

    #[test]
    fn a_snapshot_of_more_parts_than_a_hub_takes_is_not_begun() {
        let of = |nodes: usize| {
            let nodes = (0..nodes).map(|n| (Arc::from(format!("n{n}")), 10));
            snapshot(nodes, &v1::ClusterConfig::default(), Vec::new()).map(|parts| parts.len())
        };
        let most = SNAPSHOT_PARTS_MAX * SNAPSHOT_NODES_MAX;
        assert_eq!(of(most), Ok(SNAPSHOT_PARTS_MAX));
        assert_eq!(of(most + 1), Err(TooManyParts { parts: SNAPSHOT_PARTS_MAX + 1 }));
        assert_eq!(of(0), Ok(1));
    }
}
