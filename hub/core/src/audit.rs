//! The audit chain: each entry's hash covers the one before it, so that nothing can be changed, left out or put in
//! between without every later hash being wrong. One chain per cluster, numbered without holes. Pure: the store keeps
//! the head row locked while it appends.

use gpuheal_proto::{ids::ClusterId, time::Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// SHA-256.
pub type Hash = [u8; 32];

/// What the first entry of a chain follows.
pub const GENESIS: Hash = [0; 32];

/// One thing that was done, refused or decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The chain.
    pub cluster: ClusterId,
    /// Its place in it, from 1.
    pub seq: u64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who: `hub`, a spoke's replica, a person.
    pub actor: String,
    /// What, in one word of a closed set that the store keeps.
    pub action: String,
    /// On what: a node, an incident, a command, a policy.
    pub subject: String,
    /// How it ended.
    pub outcome: String,
    /// Everything else.
    pub detail: serde_json::Value,
}

impl Entry {
    /// The bytes that are hashed: each field led by its length, so that no two entries meet in one text. Object keys of
    /// the detail are in order, since `serde_json` keeps its maps sorted; a number that JSON cannot tell apart (`1.0`
    /// read back as `1`) is for the writer to avoid.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let (seq, at) = (self.seq.to_string(), self.at.unix_ms().to_string());
        let detail = sorted(&self.detail).to_string();
        let fields = [self.cluster.as_str(), &seq, &at, &self.actor, &self.action, &self.subject, &self.outcome, &detail];
        let mut bytes = b"gpuheal audit 1\n".to_vec();
        for field in fields {
            bytes.extend_from_slice(&(field.len() as u64).to_be_bytes());
            bytes.extend_from_slice(field.as_bytes());
        }
        bytes
    }

    /// Its hash after `prev`.
    #[must_use]
    pub fn hash(&self, prev: &Hash) -> Hash {
        let mut hash = Sha256::new();
        hash.update(prev);
        hash.update(self.canonical());
        hash.finalize().into()
    }
}

/// Sorted whatever `serde_json`'s own map does: a feature somewhere in the build may make it keep insertion order.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(map) => {
            let sorted_map: std::collections::BTreeMap<_, _> =
                map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            sorted_map.into_iter().collect()
        }
        serde_json::Value::Array(list) => list.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// Where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A number is missing or comes twice.
    #[error("entry {got} of cluster {cluster} follows entry {after}")]
    Gap {
        /// The chain.
        cluster: ClusterId,
        /// The last good one.
        after: u64,
        /// What came.
        got: u64,
    },
    /// The hash does not follow from the entry and the one before.
    #[error("entry {seq} of cluster {cluster} does not have its hash")]
    Hash {
        /// The chain.
        cluster: ClusterId,
        /// Which.
        seq: u64,
    },
    /// An entry of another chain.
    #[error("entry {seq} belongs to cluster {got}, not {cluster}")]
    Foreign {
        /// The chain.
        cluster: ClusterId,
        /// Which.
        seq: u64,
        /// Whose it is.
        got: ClusterId,
    },
}

/// Where a chain stands: after which entry, with which hash. Begins at `0` and [`GENESIS`], or at a signed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Number of the last entry.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, hash: GENESIS }
    }
}

/// Verifies entries in order, each with the hash that was stored for it, from `head` on; the answer is the new head.
///
/// # Errors
/// At the first entry that does not follow.
pub fn verify<I: IntoIterator<Item = (Entry, Hash)>>(cluster: &ClusterId, head: Head, entries: I) -> Result<Head, Broken> {
    entries.into_iter().try_fold(head, |head, (entry, stored)| {
        if entry.cluster != *cluster {
            return Err(Broken::Foreign { cluster: cluster.clone(), seq: entry.seq, got: entry.cluster });
        }
        if entry.seq != head.seq + 1 {
            return Err(Broken::Gap { cluster: cluster.clone(), after: head.seq, got: entry.seq });
        }
        if entry.hash(&head.hash) != stored {
            return Err(Broken::Hash { cluster: cluster.clone(), seq: entry.seq });
        }
        Ok(Head { seq: entry.seq, hash: stored })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u64) -> Vec<(Entry, Hash)> {
        let cluster = ClusterId::parse("c1").unwrap();
        let mut head = GENESIS;
        let one = |seq| Entry {
            cluster: cluster.clone(),
            seq,
            at: Timestamp::from_unix_ms(i64::try_from(seq).unwrap() * 1000),
            actor: "hub".into(),
            action: "decide".into(),
            subject: format!("node n{seq}"),
            outcome: "quarantining".into(),
            detail: serde_json::json!({"b": 1, "a": [true, null, "x"]}),
        };
        let with_hash = |entry: Entry| {
            head = entry.hash(&head);
            (entry, head)
        };
        (1..=n).map(one).map(with_hash).collect()
    }

    fn check(entries: Vec<(Entry, Hash)>) -> Result<Head, Broken> {
        verify(&ClusterId::parse("c1").unwrap(), Head::default(), entries)
    }

    #[test]
    fn a_whole_chain_verifies_from_its_first_entry_and_from_a_checkpoint() {
        let entries = chain(5);
        let head = check(entries.clone()).unwrap();
        assert_eq!((head.seq, head.hash), (5, entries[4].1));
        let checkpoint = Head { seq: 2, hash: entries[1].1 };
        assert_eq!(verify(&entries[0].0.cluster, checkpoint, entries[2..].to_vec()), Ok(head));
    }

    #[test]
    fn whatever_is_changed_left_out_or_swapped_is_found() {
        let seq = |result: Result<Head, Broken>| match result.unwrap_err() {
            Broken::Gap { got, .. } => got,
            Broken::Hash { seq, .. } | Broken::Foreign { seq, .. } => seq,
        };
        let mut changed = chain(5);
        changed[2].0.outcome = "released".into();
        assert_eq!(seq(check(changed)), 3);
        let mut rehashed = chain(5);
        rehashed[2].0.detail = serde_json::json!({});
        let prev = rehashed[1].1;
        rehashed[2].1 = rehashed[2].0.hash(&prev);
        assert_eq!(seq(check(rehashed)), 4, "the next entry does not follow");
        let mut short = chain(5);
        short.remove(2);
        assert_eq!(seq(check(short)), 4);
        let mut swapped = chain(5);
        swapped.swap(1, 2);
        assert_eq!(seq(check(swapped)), 3);
        let mut foreign = chain(2);
        foreign[1].0.cluster = ClusterId::parse("c2").unwrap();
        assert_eq!(seq(check(foreign)), 2);
    }

    #[test]
    fn text_that_moves_from_one_field_to_the_next_is_another_entry() {
        let mut entry = chain(1).remove(0).0;
        let before = entry.hash(&GENESIS);
        entry.actor = "hubd".into();
        entry.action = "ecide".into();
        assert_ne!(entry.hash(&GENESIS), before);
    }
}
