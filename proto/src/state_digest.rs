//! A digest of what a cluster's leader has told of its nodes, which the hub makes again from what it holds: where the two differ, what
//! the hub would act by is not how the cluster is. It is made of what a decision stands on, and of nothing that versions
//! of this protocol may hold in another form: one that knows a field more must not differ from one that does not.

use sha2::{Digest as _, Sha256};

use crate::link::v1;

/// What of one node goes into the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeWord<'a> {
    /// Which machine.
    pub uid: &'a str,
    /// The last plan revision that wrote to it.
    pub plan_revision: u64,
    /// Whether it is Ready; what is unspecified is unknown.
    pub ready: v1::Readiness,
    /// Cordoned, by anybody.
    pub unschedulable: bool,
    /// Our label is on it.
    pub labelled: bool,
    /// Our taint is on it.
    pub tainted: bool,
    /// The cordon is ours.
    pub cordoned_by_us: bool,
    /// Its owner keeps us off.
    pub opted_out: bool,
}

impl NodeWord<'_> {
    /// This node's share of the sum: the first 8 bytes of a SHA-256, big-endian.
    #[must_use]
    pub fn share(&self) -> u64 {
        let ready = match self.ready {
            v1::Readiness::Ready => b'R',
            v1::Readiness::NotReady => b'N',
            v1::Readiness::Unknown | v1::Readiness::Unspecified => b'U',
        };
        let flags = [self.unschedulable, self.labelled, self.tainted, self.cordoned_by_us, self.opted_out];
        let flags = flags.iter().fold(0_u8, |bits, flag| bits << 1 | u8::from(*flag));
        let hash = Sha256::new()
            .chain_update(self.plan_revision.to_be_bytes())
            .chain_update([ready, flags])
            .chain_update(self.uid)
            .finalize();
        hash.iter().take(8).fold(0, |share, byte| share << 8 | u64::from(*byte))
    }
}

impl<'a> From<&'a v1::NodeState> for NodeWord<'a> {
    fn from(node: &'a v1::NodeState) -> Self {
        let mark = node.mark.as_ref();
        Self {
            uid: &node.uid,
            plan_revision: node.plan_revision,
            ready: v1::Readiness::try_from(node.ready).unwrap_or_default(),
            unschedulable: node.unschedulable,
            labelled: mark.is_some_and(|mark| mark.labelled),
            tainted: mark.is_some_and(|mark| mark.tainted),
            cordoned_by_us: mark.is_some_and(|mark| mark.cordoned_by_us),
            opted_out: node.opted_out,
        }
    }
}

/// The digest of nodes from their shares, in any order.
#[must_use]
pub fn digest(shares: impl Iterator<Item = u64>) -> v1::StateDigest {
    shares.fold(v1::StateDigest::default(), |all, share| v1::StateDigest {
        nodes: all.nodes.saturating_add(1),
        sum: all.sum.wrapping_add(share),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str) -> v1::NodeState {
        v1::NodeState { uid: uid.into(), plan_revision: 7, ready: v1::Readiness::Ready.into(), ..Default::default() }
    }

    fn of(nodes: &[v1::NodeState]) -> v1::StateDigest {
        digest(nodes.iter().map(|node| NodeWord::from(node).share()))
    }

    #[test]
    fn the_order_of_nodes_is_nothing_and_what_a_decision_stands_on_is_everything() {
        let whole = of(&[node("a"), node("b")]);
        assert_eq!(whole, of(&[node("b"), node("a")]));
        let mark = |mark: v1::Mark| v1::NodeState { mark: Some(mark), ..node("b") };
        let others = [
            node("c"),
            v1::NodeState { plan_revision: 8, ..node("b") },
            v1::NodeState { ready: v1::Readiness::NotReady.into(), ..node("b") },
            v1::NodeState { unschedulable: true, ..node("b") },
            v1::NodeState { opted_out: true, ..node("b") },
            mark(v1::Mark { labelled: true, ..Default::default() }),
            mark(v1::Mark { tainted: true, ..Default::default() }),
            mark(v1::Mark { cordoned_by_us: true, ..Default::default() }),
        ];
        let mut sums: Vec<u64> = others.iter().map(|other| of(&[node("a"), other.clone()]).sum).chain([whole.sum]).collect();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), others.len() + 1, "each of them is told apart");
        assert_ne!(of(&[node("a"), node("a")]), of(&[]), "what comes twice does not cancel out");
        assert_ne!(of(&[node("a")]), whole);
    }

    /// Both sides may be of other versions: these bytes are the protocol's.
    #[test]
    fn a_share_is_the_same_in_every_version() {
        let node = node("uid-1");
        let word = NodeWord { unschedulable: true, tainted: true, ..NodeWord::from(&node) };
        assert_eq!(format!("{:016x}", word.share()), "22c01bc89d062b9a");
    }

    #[test]
    fn a_readiness_of_a_later_version_is_unknown() {
        let with = |ready: i32| NodeWord::from(&v1::NodeState { ready, ..node("a") }).share();
        assert_eq!((with(99), with(0)), (with(v1::Readiness::Unknown.into()), with(v1::Readiness::Unknown.into())));
    }
}
