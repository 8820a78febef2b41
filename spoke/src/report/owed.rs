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
    /// The highest epoch under which all that was asked for is acked.
    acked_term: u64,
}

impl Owed {
    /// This is told to a new audience; what the one before did not ack is of no more meaning.
    pub fn begin(&mut self, audience: Audience, statuses: BTreeMap<String, u64>) {
        (self.audience, self.statuses) = (Some(audience), statuses);
        self.settle();
    }

    /// The hub has committed a status.
    pub fn ack(&mut self, id: &str, seq: u64) {
        if self.statuses.get(id).is_some_and(|told| *told <= seq) {
            self.forgive(id);
        }
    }

    /// Nobody can tell of it any more.
    pub fn forgive(&mut self, id: &str) {
        self.statuses.remove(id);
        self.settle();
    }

    fn settle(&mut self) {
        self.acked_term = self.acked_term.max(self.whole_for().map_or(0, |audience| audience.asked_term));
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

    /// The highest epoch under which all that a hub has asked for is acked.
    #[must_use]
    pub const fn acked_term(&self) -> u64 {
        self.acked_term
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
        owed.ack("c1", 1);
        owed.ack("c2", 4);
        assert_eq!((owed.whole_for(), owed.owed_to(to(7, 0))), (None, vec!["c1".to_owned()]), "an earlier word about c1");
        owed.ack("c1", 2);
        assert_eq!((owed.whole_for(), owed.acked_term()), (Some(to(7, 0)), 0));
        owed.begin(to(8, 3), statuses);
        assert_eq!((owed.whole_for(), owed.owed_to(to(7, 0))), (None, vec![]), "another session");
        owed.begin(to(8, 4), BTreeMap::from([("c3".to_owned(), 1)]));
        owed.forgive("c3");
        assert_eq!((owed.whole_for(), owed.acked_term()), (Some(to(8, 4)), 4), "a person deleted it");
        owed.begin(to(9, 0), BTreeMap::new());
        assert_eq!((owed.whole_for(), owed.acked_term()), (Some(to(9, 0)), 4), "who does not ask may know it from before");
    }
}
