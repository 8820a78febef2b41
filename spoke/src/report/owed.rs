//! What one audience has yet to ack of what is told again to it: only then does the hub know every command that is open here.

use std::collections::BTreeMap;

/// Whom all is told again: a reign, a session, and how often its hub has asked for everything.
pub type Audience = (u64, u64, u64);

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

    /// The hub has committed a status.
    pub fn ack(&mut self, id: &str, seq: u64) {
        if self.statuses.get(id).is_some_and(|told| *told <= seq) {
            self.statuses.remove(id);
        }
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
        assert_eq!(owed.whole_for(), None, "nobody was told");
        owed.begin((1, 7, 0), statuses.clone());
        owed.ack("c1", 1);
        owed.ack("c2", 4);
        assert_eq!(owed.whole_for(), None, "an earlier word about c1");
        owed.ack("c1", 2);
        assert_eq!(owed.whole_for(), Some((1, 7, 0)));
        owed.begin((1, 8, 0), statuses);
        assert_eq!(owed.whole_for(), None, "another session");
        owed.begin((1, 8, 1), BTreeMap::new());
        assert_eq!(owed.whole_for(), Some((1, 8, 1)), "nothing is open");
    }
}
