//! What one audience has yet to ack of the commands that are held here: only then does the hub know every one that is open or whose
//! mark stands. What is over and let go is history, which nobody waits for.

use std::collections::BTreeMap;

use crate::ports::Audience;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Owed {
    audience: Option<Audience>,
    /// The number of the status that is told, by command.
    statuses: BTreeMap<String, u64>,
}

impl Owed {
    /// This is told to a new audience; what the one before did not ack is of no more meaning.
    pub fn begin(&mut self, audience: Audience, statuses: BTreeMap<String, u64>) {
        *self = Self { audience: Some(audience), statuses };
    }

    /// The hub has committed a status under an epoch of its database. False: that is an older one than it has asked under, and what it
    /// committed may be lost.
    pub fn ack(&mut self, id: &str, seq: u64, term: u64) -> bool {
        let counts = self.audience.is_none_or(|audience| audience.asked_term <= term);
        if counts && self.statuses.get(id).is_some_and(|told| *told <= seq) {
            self.forgive(id);
        }
        counts
    }

    /// Nobody can tell of it any more.
    pub fn forgive(&mut self, id: &str) {
        self.statuses.remove(id);
    }

    /// Whether a hub that may never have had this command is owed it.
    #[must_use]
    pub fn is_owed(&self, id: &str) -> bool {
        self.statuses.contains_key(id)
    }

    /// The commands that this audience has not acked; none for another.
    #[must_use]
    pub fn owed_to(&self, audience: Audience) -> Vec<String> {
        if self.audience == Some(audience) { self.statuses.keys().cloned().collect() } else { Vec::new() }
    }

    /// The audience that has acked all that was told again to it.
    #[must_use]
    pub fn whole_for(&self) -> Option<Audience> {
        self.audience.filter(|_| self.statuses.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audience_knows_all_once_it_has_acked_every_status_that_was_told_again_to_it() {
        let (mut owed, statuses) = (Owed::default(), BTreeMap::from([("c1".to_owned(), 2), ("c2".to_owned(), 1)]));
        let to = |session, asked_term| Audience { reign: 1, session, asked_term };
        assert_eq!(owed.whole_for(), None, "nobody was told");
        owed.begin(to(7, 0), statuses.clone());
        assert!(owed.ack("c1", 1, 2));
        assert!(owed.ack("c2", 4, 2));
        assert_eq!((owed.whole_for(), owed.owed_to(to(7, 0))), (None, vec!["c1".to_owned()]), "an earlier word about c1");
        assert!(owed.ack("c1", 2, 2));
        assert_eq!(owed.whole_for(), Some(to(7, 0)));
        owed.begin(to(8, 3), statuses);
        assert_eq!((owed.whole_for(), owed.owed_to(to(7, 0))), (None, vec![]), "another session");
        assert!(!owed.ack("c1", 2, 2));
        assert!(owed.ack("c2", 1, 3));
        assert_eq!((owed.whole_for(), owed.owed_to(to(8, 3))), (None, vec!["c1".to_owned()]), "an ack of before may be lost");
        owed.forgive("c1");
        assert_eq!(owed.whole_for(), Some(to(8, 3)), "a person deleted it");
    }
}
