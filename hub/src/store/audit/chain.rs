//! Pure: what an entry's hash covers, and walking a chain. Each hash covers its entry and the hash before it, so that no
//! entry can be changed, dropped, added or moved without every later hash saying so.

use gpuheal_proto::{
    ids::{IncidentId, digest},
    time::Timestamp,
};

use super::Stored;

/// SHA-256.
pub type Hash = [u8; 32];

/// What the first entry has before it.
pub const GENESIS: Hash = [0; 32];

/// All that an entry's hash covers, but for the hash before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its chain.
    pub chain: String,
    /// From 1, without holes.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// What happened.
    pub kind: String,
    /// Who did it.
    pub actor: String,
    /// To what.
    pub subject: String,
    /// Incident, when it belongs to one.
    pub incident: Option<IncidentId>,
    /// JSON text.
    pub body: String,
}

impl Link {
    /// The entry's hash after `prev`.
    #[must_use]
    pub fn hash(&self, prev: &Hash) -> Hash {
        digest(&[
            "audit",
            &hex::encode(prev),
            &self.chain,
            &self.seq.to_string(),
            &self.at.unix_ms().to_string(),
            &self.kind,
            &self.actor,
            &self.subject,
            &self.incident.map(|id| id.to_string()).unwrap_or_default(),
            &self.body,
        ])
    }
}

/// What a walk along a chain found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Entries that are as they were written.
    pub entries: u64,
    /// Where it breaks, if it does.
    pub broken: Option<Break>,
}

/// Where and how a chain breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// Number of the first entry that is wrong or missing.
    pub seq: u64,
    /// How.
    pub reason: String,
}

/// A walk from the first entry on.
#[derive(Debug)]
pub(super) struct Walk {
    seq: u64,
    hash: Hash,
}

impl Default for Walk {
    fn default() -> Self {
        Self { seq: 0, hash: GENESIS }
    }
}

impl Walk {
    /// Number of the last good entry.
    pub(super) const fn seq(&self) -> u64 {
        self.seq
    }

    /// Takes the next entry, or says how it breaks the chain.
    pub(super) fn step(&mut self, entry: &Stored) -> Result<(), Verdict> {
        let next = self.seq + 1;
        if entry.link.seq != next {
            return Err(self.broken(next, format!("entry {next} is missing, {} follows", entry.link.seq)));
        }
        if entry.prev_hash != self.hash {
            return Err(self.broken(next, "its link to the entry before is not that entry's hash".to_owned()));
        }
        if entry.hash != entry.link.hash(&self.hash) {
            return Err(self.broken(next, "its content is not what was hashed".to_owned()));
        }
        self.seq = next;
        self.hash = entry.hash;
        Ok(())
    }

    /// The chain ended before its head.
    pub(super) fn cut_short(&self, head: u64) -> Verdict {
        self.broken(self.seq + 1, format!("entries {} to {head} are missing", self.seq + 1))
    }

    /// The chain ended where its head says; the head must agree.
    pub(super) fn end(&self, head: &Hash) -> Verdict {
        if *head == self.hash {
            Verdict { entries: self.seq, broken: None }
        } else {
            self.broken(self.seq, "the head does not hold the last entry's hash".to_owned())
        }
    }

    fn broken(&self, seq: u64, reason: String) -> Verdict {
        Verdict { entries: self.seq, broken: Some(Break { seq, reason }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(entries: u64) -> Vec<Stored> {
        let mut prev = GENESIS;
        (1..=entries)
            .map(|seq| {
                let link = Link {
                    chain: "c1".into(),
                    seq,
                    at: Timestamp::from_unix_ms(i64::try_from(seq).unwrap()),
                    kind: "decision".into(),
                    actor: "hub".into(),
                    subject: "n1".into(),
                    incident: None,
                    body: format!("{{\"n\":{seq}}}"),
                };
                let stored = Stored { hash: link.hash(&prev), prev_hash: prev, link };
                prev = stored.hash;
                stored
            })
            .collect()
    }

    fn walk(entries: &[Stored]) -> Verdict {
        let mut walk = Walk::default();
        for entry in entries {
            if let Err(broken) = walk.step(entry) {
                return broken;
            }
        }
        walk.end(&entries.last().map_or(GENESIS, |entry| entry.hash))
    }

    #[test]
    fn an_untouched_chain_is_whole() {
        assert_eq!(walk(&chain(5)), Verdict { entries: 5, broken: None });
        assert_eq!(walk(&[]), Verdict { entries: 0, broken: None });
    }

    #[test]
    fn a_change_a_hole_and_a_swap_are_found_where_they_are() {
        let mut changed = chain(5);
        changed[2].link.body = "{}".into();
        assert_eq!(walk(&changed).broken.unwrap().seq, 3);
        let mut holed = chain(5);
        holed.remove(1);
        assert_eq!(walk(&holed).broken.unwrap().seq, 2);
        let mut swapped = chain(5);
        swapped.swap(1, 2);
        assert_eq!(walk(&swapped).broken.unwrap().seq, 2);
        let mut rewritten = chain(5);
        rewritten[2].link.body = "{}".into();
        rewritten[2].hash = rewritten[2].link.hash(&rewritten[1].hash);
        assert_eq!(walk(&rewritten).broken.unwrap().seq, 4, "the next entry tells");
    }
}
