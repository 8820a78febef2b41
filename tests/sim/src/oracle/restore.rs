//! A database that was restored from an older backup. Until a cluster has shown more than it knows, it cannot know that it
//! has forgotten anything.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_proto::{
    ids::{ClusterId, FaultKey},
    link::v1,
    time::Timestamp,
};

use super::Oracle;
use crate::memory::{Cluster, Memory};

/// The last restore.
#[derive(Clone, Debug)]
pub(super) struct Restored {
    /// When the loss was known: somebody raised the epoch, or a Hello told of a later one or of a higher command.
    known: Option<Timestamp>,
    /// Clusters that have said what they have seen.
    heard: BTreeSet<ClusterId>,
    /// It was not the first: a term may come again then that only one cluster had seen.
    again: bool,
    at: Timestamp,
}

/// What was on its way to a replica when the database was restored has come by then.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

impl Oracle {
    /// The database was restored from a backup of that moment: what was acked since is the journals' to send again.
    /// An epoch that was raised from an older one may have been in force before: that is no new one.
    pub fn is_restored(&mut self, backup: Timestamp, db: &Memory, now: Timestamp) {
        self.acked.retain(|_, at| *at <= backup);
        let new = self.numbers.iter().all(|(_, term, _)| *term < db.hub_term);
        let again = self.restored.is_some();
        self.restored = Some(Restored { known: new.then_some(now), heard: BTreeSet::new(), again, at: now });
    }

    /// An ack of what is not there: it was committed, and on its way when a restore took it away.
    #[must_use]
    pub fn was_on_its_way(&self, db: &Memory, cluster: &ClusterId, key: &FaultKey, now: Timestamp) -> bool {
        let lately = self.restored.as_ref().is_some_and(|restored| now.since(restored.at) < ON_ITS_WAY);
        lately && db.clusters.get(cluster).is_none_or(|rows| !rows.faults.contains_key(key))
    }

    /// Whether the database was ever restored.
    #[must_use]
    pub const fn was_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// A replica says what it has seen, before the hub has taken it in.
    pub fn hello_arrives(&mut self, db: &Memory, cluster: &ClusterId, hello: &v1::Hello, now: Timestamp) {
        let Some(restored) = &mut self.restored else { return };
        let number = db.clusters.get(cluster).map_or(0, Cluster::last_number);
        let lost = hello.hub_term_seen.max(hello.hub_term_heard) > db.hub_term
            || (hello.hub_term_seen == db.hub_term && hello.cmd_seq_seen > number);
        if lost && restored.known.is_none() {
            restored.known = Some(now);
        }
        if hello.hub_term_seen > 0 && hello.cmd_seq_seen > 0 {
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
