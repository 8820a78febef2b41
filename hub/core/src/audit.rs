//! The audit chain: each hash covers its entry and the hash before it, so that no entry can be changed, dropped, added or
//! moved without every later hash saying so. One chain per cluster and one of the fleet's own, numbered without holes.
//! Pure, and the only place that knows what a hash covers: the store keeps the head locked while entries are added.

use gpuheal_proto::{
    ids::{IncidentId, digest},
    time::Timestamp,
};

/// SHA-256.
pub type Hash = [u8; 32];

/// What the first entry of a chain follows.
pub const GENESIS: Hash = [0; 32];

/// Something that happened, before it has a place in a chain. Its body is the JSON text that is hashed and stored, byte
/// for byte: nobody has to write the same JSON twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What happened, in a word.
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

/// A fact at its place in its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its chain.
    pub chain: String,
    /// From 1, without holes.
    pub seq: u64,
    /// What it tells.
    pub fact: Fact,
    /// Hash of the entry before.
    pub prev_hash: Hash,
    /// Its own hash.
    pub hash: Hash,
}

/// Where a chain stands: after which entry, with which hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the last entry; 0: there is none.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, hash: GENESIS }
    }
}

/// The hash of a fact at its place, after `prev`.
#[must_use]
pub fn hash(chain: &str, seq: u64, fact: &Fact, prev: &Hash) -> Hash {
    digest(&[
        "audit",
        &hex::encode(prev),
        chain,
        &seq.to_string(),
        &fact.at.unix_ms().to_string(),
        &fact.kind,
        &fact.actor,
        &fact.subject,
        &fact.incident.map(|id| id.to_string()).unwrap_or_default(),
        &fact.body,
    ])
}

/// Gives facts their places after `head`, in their order.
#[must_use]
pub fn link(chain: &str, head: Head, facts: Vec<Fact>) -> Vec<Entry> {
    let mut prev_hash = head.hash;
    let place = |(seq, fact): (u64, Fact)| {
        let hash = hash(chain, seq, &fact, &prev_hash);
        let entry = Entry { chain: chain.to_owned(), seq, fact, prev_hash, hash };
        prev_hash = hash;
        entry
    };
    (head.seq + 1..).zip(facts).map(place).collect()
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    head: Head,
}

impl Walk {
    /// Number of the last good entry.
    #[must_use]
    pub const fn seq(&self) -> u64 {
        self.head.seq
    }

    /// Takes the next entry of `chain`.
    ///
    /// # Errors
    /// How it breaks the chain.
    pub fn step(&mut self, chain: &str, entry: &Entry) -> Result<(), Verdict> {
        let next = self.head.seq + 1;
        if entry.chain != chain {
            return Err(self.broken(next, format!("it belongs to chain {}", entry.chain)));
        }
        if entry.seq != next {
            return Err(self.broken(next, format!("entry {next} is missing, {} follows", entry.seq)));
        }
        if entry.prev_hash != self.head.hash {
            return Err(self.broken(next, "its link to the entry before is not that entry's hash".to_owned()));
        }
        if entry.hash != hash(chain, next, &entry.fact, &self.head.hash) {
            return Err(self.broken(next, "its content is not what was hashed".to_owned()));
        }
        self.head = Head { seq: next, hash: entry.hash };
        Ok(())
    }

    /// The entries ended here: the stored head must agree.
    #[must_use]
    pub fn end(&self, head: &Head) -> Verdict {
        if head.seq > self.head.seq {
            self.broken(self.head.seq + 1, format!("entries {} to {} are missing", self.head.seq + 1, head.seq))
        } else if head.hash == self.head.hash {
            Verdict { entries: self.head.seq, broken: None }
        } else {
            self.broken(self.head.seq, "the head does not hold the last entry's hash".to_owned())
        }
    }

    fn broken(&self, seq: u64, reason: String) -> Verdict {
        Verdict { entries: self.head.seq, broken: Some(Break { seq, reason }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(n: i64) -> Fact {
        Fact {
            at: Timestamp::from_unix_ms(n),
            kind: "decision".into(),
            actor: "hub".into(),
            subject: "n1".into(),
            incident: None,
            body: format!("{{\"n\":{n}}}"),
        }
    }

    fn chain(entries: i64) -> Vec<Entry> {
        link("c1", Head::default(), (1..=entries).map(fact).collect())
    }

    fn walk(entries: &[Entry]) -> Verdict {
        let mut walk = Walk::default();
        for entry in entries {
            if let Err(broken) = walk.step("c1", entry) {
                return broken;
            }
        }
        walk.end(&entries.last().map_or_else(Head::default, |entry| Head { seq: entry.seq, hash: entry.hash }))
    }

    #[test]
    fn an_untouched_chain_is_whole_however_it_was_written() {
        assert_eq!(walk(&chain(5)), Verdict { entries: 5, broken: None });
        assert_eq!(walk(&[]), Verdict { entries: 0, broken: None });
        let mut parts = chain(2);
        let head = Head { seq: 2, hash: parts[1].hash };
        parts.extend(link("c1", head, (3..=5).map(fact).collect()));
        assert_eq!(parts, chain(5), "in one append or in two");
    }

    #[test]
    fn a_change_a_hole_and_a_swap_are_found_where_they_are() {
        let mut changed = chain(5);
        changed[2].fact.body = "{}".into();
        assert_eq!(walk(&changed).broken.unwrap().seq, 3);
        let mut holed = chain(5);
        holed.remove(1);
        assert_eq!(walk(&holed).broken.unwrap().seq, 2);
        let mut swapped = chain(5);
        swapped.swap(1, 2);
        assert_eq!(walk(&swapped).broken.unwrap().seq, 2);
        let mut foreign = chain(5);
        foreign[3].chain = "c2".into();
        assert_eq!(walk(&foreign).broken.unwrap().seq, 4);
        let mut rewritten = chain(5);
        rewritten[2].fact.body = "{}".into();
        rewritten[2].hash = hash("c1", 3, &rewritten[2].fact, &rewritten[1].hash);
        assert_eq!(walk(&rewritten).broken.unwrap().seq, 4, "the next entry tells");
    }

    #[test]
    fn a_head_that_is_ahead_or_another_is_found() {
        let entries = chain(3);
        let mut walk = Walk::default();
        entries.iter().for_each(|entry| walk.step("c1", entry).unwrap());
        assert_eq!(walk.end(&Head { seq: 5, hash: GENESIS }).broken.unwrap().reason, "entries 4 to 5 are missing");
        assert_eq!(walk.end(&Head { seq: 3, hash: GENESIS }).broken.unwrap().seq, 3);
    }

    #[test]
    fn text_that_moves_from_one_field_to_the_next_is_another_entry() {
        let (before, mut after) = (fact(1), fact(1));
        after.actor = "hubn".into();
        after.subject = "1".into();
        assert_ne!(hash("c1", 1, &before, &GENESIS), hash("c1", 1, &after, &GENESIS));
    }
}
