//! Where an incident stands and where it may go from there. Stored as its word; every move is checked here, both by
//! who decides it and by who stores it. An incident is closed only when no mark of ours remains on the node.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! states {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// Where an incident stands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum IncidentState {
            $($(#[$doc])* #[serde(rename = $text)] $variant),+
        }

        impl IncidentState {
            /// Every state.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as stored.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The state of a word, or nothing.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

states!(
    /// Just opened, not judged.
    Open = "open",
    /// Waits: for corroboration, or for the end of the observation window.
    Watching = "watching",
    /// Written down, and nothing is due: only P2, or the mode allows no more.
    Recorded = "recorded",
    /// Waits for another incident's cooldown.
    Suppressed = "suppressed",
    /// Waits for a budget, a rate, a stop, a freeze, an opt-out or somebody else's work to end.
    Blocked = "blocked",
    /// Waits for a person's word.
    AwaitingApproval = "awaiting_approval",
    /// A command that marks is under way.
    Quarantining = "quarantining",
    /// A command that drains is under way.
    Draining = "draining",
    /// Marked, nothing under way: waits for the signs of recovery.
    Validating = "validating",
    /// Recovered, or a person's word: the command that undoes our marks is under way.
    Releasing = "releasing",
    /// A person undid a part: the command that undoes the rest is under way.
    Overriding = "overriding",
    /// A command failed or its end is unknown: a person must look. Marks may remain.
    Failed = "failed",
    /// Tried too often: marked, and a person was called.
    Escalated = "escalated",
    /// Over: no mark of ours remains.
    Released = "released",
    /// Over by a person's hand.
    Overridden = "overridden",
    /// Over: the node is gone.
    Gone = "gone",
    /// Over: a record of P2 faults alone; nothing was ever done to the node.
    Filed = "filed",
);

impl fmt::Display for IncidentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A move that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an incident cannot go from {from} to {to}")]
pub struct InvalidTransition {
    from: IncidentState,
    to: IncidentState,
}

impl IncidentState {
    /// No mark remains and nothing more will happen.
    #[must_use]
    pub const fn closed(self) -> bool {
        use IncidentState::{
            AwaitingApproval, Blocked, Draining, Escalated, Failed, Filed, Gone, Open, Overridden, Overriding, Quarantining,
            Recorded, Released, Releasing, Suppressed, Validating, Watching,
        };
        match self {
            Released | Overridden | Gone | Filed => true,
            Open | Watching | Recorded | Suppressed | Blocked | AwaitingApproval | Quarantining | Draining | Validating
            | Releasing | Overriding | Failed | Escalated => false,
        }
    }

    /// Waits and is judged again, with a reason and a time.
    #[must_use]
    pub const fn waiting(self) -> bool {
        matches!(self, Self::Watching | Self::Suppressed | Self::Blocked | Self::AwaitingApproval)
    }

    /// Moves on. Staying where one is, is always allowed.
    ///
    /// # Errors
    /// When the table has no such move.
    pub fn go(self, to: Self) -> Result<Self, InvalidTransition> {
        if self == to || (!self.closed() && self.leads_to(to)) { Ok(to) } else { Err(InvalidTransition { from: self, to }) }
    }

    /// An open incident may go to any open state, for faults and people come as they like, with these exceptions: none
    /// goes back to `Open`, `Filed` comes only from a record, and `Overridden` from where a person's hand was seen.
    fn leads_to(self, to: Self) -> bool {
        use IncidentState::{Filed, Open, Recorded, Watching};
        match to {
            Open => false,
            Filed => matches!(self, Open | Recorded | Watching),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_incident_goes_nowhere() {
        for from in IncidentState::ALL.iter().filter(|state| state.closed()) {
            for to in IncidentState::ALL.iter().filter(|to| *to != from) {
                assert!(from.go(*to).is_err(), "{from} to {to}");
            }
        }
    }

    #[test]
    fn only_a_record_is_filed_and_none_is_opened_twice() {
        assert!(IncidentState::Recorded.go(IncidentState::Filed).is_ok());
        assert!(IncidentState::Validating.go(IncidentState::Filed).is_err());
        assert!(IncidentState::Watching.go(IncidentState::Open).is_err());
    }

    #[test]
    fn every_word_reads_back() {
        for state in IncidentState::ALL {
            assert_eq!(IncidentState::parse(state.as_str()), Some(*state));
        }
    }
}
