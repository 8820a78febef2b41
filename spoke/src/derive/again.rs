//! After faults were lost, on their way to the hub or by the hub's database: what stands is journaled anew, as standing, node by
//! node. Later records remember those faults as told, so nothing else would tell of them; evidence speaks only of faults that the
//! hub knows, and what was acked long ago is in no journal any more. What the journal has no room for is tried again.

use std::collections::BTreeSet;

use gpuheal_proto::{fault::Witness, ids::NodeUid};
use tokio::sync::watch;

use super::Derive;
use crate::journal::Journal;

/// Nodes whose faults are yet to be told again.
pub(super) struct Again {
    lost: watch::Receiver<u64>,
    seen: u64,
    owed: BTreeSet<NodeUid>,
    /// Of these alerts alone were told, since another replica led.
    owed_by_leader: BTreeSet<NodeUid>,
}

impl Again {
    pub(super) fn new(journal: &Journal) -> Self {
        Self { lost: journal.lost(), seen: 0, owed: BTreeSet::new(), owed_by_leader: BTreeSet::new() }
    }

    /// Until the journal says once more that faults are lost.
    pub(super) async fn due(&mut self) {
        let seen = self.seen;
        if self.lost.wait_for(|lost| *lost != seen).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Everything that stands is to be told again.
    pub(super) fn owe_all(&mut self, derive: &Derive) {
        let nodes = derive.nodes_with_faults();
        tracing::warn!(nodes = nodes.len(), "faults were lost, what stands is told again");
        self.owed.extend(nodes);
    }

    pub(super) fn owes_nothing(&self) -> bool {
        self.owed.is_empty() && self.owed_by_leader.is_empty()
    }

    /// Tells what is owed, as far as the journal takes it. A standby tells of alerts alone: its other memory is the inventory's. Once it
    /// leads it owes the rest, since nobody asks again in a session that goes on.
    pub(super) async fn go_on(&mut self, derive: &Derive) {
        let lost = *self.lost.borrow_and_update();
        if std::mem::replace(&mut self.seen, lost) != lost {
            self.owe_all(derive);
        }
        if derive.leads() {
            self.owed.append(&mut self.owed_by_leader);
        }
        while let Some(uid) = self.owed.first().cloned() {
            let leads = derive.leads();
            let tells = |witness| leads || witness == Witness::Alert;
            if derive.take(&[uid.clone()].into(), false, |held| held.again(&uid, tells)).await.is_err() {
                return;
            }
            self.owed.remove(&uid);
            if !leads {
                self.owed_by_leader.insert(uid);
            }
        }
    }
}
