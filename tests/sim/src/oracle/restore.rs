//! A database that was restored from an older backup. Until a cluster has shown more than it knows, it cannot know that it
//! has forgotten anything.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_hub::link::hello::Seen;
use gpuheal_proto::{
    ids::{ClusterId, FaultKey},
    time::Timestamp,
};

use super::Oracle;
use crate::memory::{Cluster, Command, Memory};

/// The last restore.
#[derive(Clone, Debug)]
pub(super) struct Restored {
    /// When the loss was known: somebody raised the epoch, or a Hello told of a later one or of a higher command.
    known: Option<Timestamp>,
    /// Clusters that have said what they have seen.
    heard: BTreeSet<ClusterId>,
    /// It was not the first: a term may come again then that only one cluster had seen.
    again: bool,
    /// It, or a backup before it, was loaded into a server that went on, and nobody raised the epoch: no hub can tell before a cluster
    /// does, and what was commanded meanwhile stays out.
    in_place: bool,
    at: Timestamp,
}

/// What was on its way to a replica when the database was restored has come by then.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

impl Oracle {
    /// The database was restored from a backup of that moment: what was acked since is the journals' to send again.
    /// An epoch that was raised from an older one may have been in force before: that is no new one.
    pub fn is_restored(&mut self, backup: Timestamp, db: &Memory, in_place: bool, now: Timestamp) {
        self.acked.retain(|_, at| *at <= backup);
        let new = self.numbers.iter().all(|(_, term, _)| *term < db.hub_term);
        let again = self.restored.is_some();
        self.restored = Some(Restored {
            known: new.then_some(now),
            heard: BTreeSet::new(),
            again,
            in_place: in_place || self.was_restored_in_place(),
            at: now,
        });
    }

    /// An ack of what is not there: it was committed, and on its way when a restore took it away.
    #[must_use]
    pub fn was_on_its_way(&self, db: &Memory, cluster: &ClusterId, key: &FaultKey, now: Timestamp) -> bool {
        let lately = self.restored.as_ref().is_some_and(|restored| now.since(restored.at) < ON_ITS_WAY);
        lately && db.clusters.get(cluster).is_none_or(|rows| !rows.faults.contains_key(key))
    }

    /// Whether the database was restored so that no hub can know it before each cluster was heard.
    #[must_use]
    pub(super) fn was_restored_in_place(&self) -> bool {
        self.restored.as_ref().is_some_and(|restored| restored.in_place)
    }

    /// A replica says what it has seen, before the hub has taken it in.
    pub fn hello_arrives(&mut self, db: &Memory, cluster: &ClusterId, says: Seen, now: Timestamp) {
        let Some(restored) = &mut self.restored else { return };
        let rows = db.clusters.get(cluster);
        let another = |command: &Command| command.cmd_seq == says.cmd_seq && says.cmd_id.is_some_and(|id| id != command.planned.id);
        let unknown =
            says.cmd_seq > rows.map_or(0, Cluster::last_number) || rows.is_some_and(|rows| rows.commands.values().any(another));
        let lost = says.term.max(says.term_heard) > db.hub_term || (says.term == db.hub_term && unknown);
        if lost && restored.known.is_none() {
            restored.known = Some(now);
        }
        if says.term > 0 && says.cmd_seq > 0 {
            restored.heard.insert(cluster.clone());
        }
    }

    /// Whoever decided this for a cluster knew of all that was to be known: nothing was ever lost, or the loss was known and
    /// the cluster had told what it had seen.
    pub(super) fn informed(&self, cluster: &ClusterId, created: Timestamp) -> bool {
        self.restored.as_ref().is_none_or(|restored| {
            !restored.again && restored.known.is_some_and(|known| created > known) && restored.heard.contains(cluster)
        })
    }
}
