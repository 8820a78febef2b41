//! Faults of which the hub asks how they stand, since whoever leads has told nothing of them: another replica found them. What is not
//! known here is taken up, so that its end is seen.

use std::collections::BTreeMap;

use gpuheal_proto::{
    fault::{Asked, NodeRef},
    ids::NodeUid,
    limits,
    link::v1,
};

use super::Derive;

impl Derive {
    /// Takes up what it does not know. Who does not lead leaves it: the next leader is asked in its own session.
    pub(super) async fn take_up(&self, asked: Vec<v1::FaultAsked>) {
        if !self.leads() {
            return;
        }
        let mut of_node: BTreeMap<NodeUid, (NodeRef, Vec<Asked>)> = BTreeMap::new();
        for asked in asked.into_iter().take(limits::EVIDENCE_MAX) {
            match Asked::try_from(asked) {
                Ok(asked) => {
                    // A machine under the name of one that went is another.
                    let node = self.node_named(asked.fault.node.name.as_str()).filter(|node| node.uid == asked.fault.node.uid);
                    if let Some(node) = node {
                        of_node.entry(node.uid.clone()).or_insert_with(|| (node, Vec::new())).1.push(asked);
                    }
                }
                Err(error) => tracing::warn!(%error, "the hub asks how a fault stands that is none"),
            }
        }
        for (uid, (node, asked)) in of_node {
            let (settings, now) = (self.deps.settings.detect(), self.now());
            // A journal that refuses has said so. What is taken up without it is asked for again after a restart.
            let taken = self.take(&[uid].into(), false, |held| held.take_up(&node, &asked, &settings, now)).await;
            if taken.is_ok_and(|outcome| !outcome.touched.is_empty()) {
                let faults: Vec<_> = asked.iter().map(|asked| asked.fault.key.to_string()).collect();
                tracing::info!(node.name = %node.name, faults = %faults.join(" "), "the hub asks how faults stand that another replica found");
            }
        }
    }
}
