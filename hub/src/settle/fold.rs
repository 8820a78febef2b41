//! Pure: what one reported state does to the stored one.

use gpuheal_proto::command::CommandState;

use super::Reported;

/// What a report does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// It moves the command on.
    Takes(CommandState),
    /// It tells what really happened after a final state was assumed or told.
    Corrects(CommandState),
    /// The spoke cannot take it now; the same bytes may go again.
    NotNow,
    /// It was known.
    Stale,
}

impl Fold {
    /// In the word that is stored.
    #[must_use]
    pub const fn effect(self) -> &'static str {
        match self {
            Self::Takes(_) => "applied",
            Self::Corrects(_) => "correction",
            Self::NotNow => "not_now",
            Self::Stale => "stale",
        }
    }
}

/// How far a state is along the way.
const fn rank(state: CommandState) -> u8 {
    match state {
        CommandState::Proposed | CommandState::AwaitingApproval => 0,
        CommandState::Signed => 1,
        CommandState::Dispatched => 2,
        CommandState::Received => 3,
        CommandState::Started => 4,
        CommandState::Expired
        | CommandState::Succeeded
        | CommandState::Failed
        | CommandState::Unknown
        | CommandState::Refused
        | CommandState::Cancelled => 5,
    }
}

/// Folds a report into what is stored. Reports of one command are numbered by its HealAction: only a higher number tells
/// anything.
#[must_use]
pub fn fold(stored: CommandState, stored_seq: u64, reported: Reported, seq: u64) -> Fold {
    let reported = match reported {
        Reported::NotNow if rank(stored) < rank(CommandState::Received) => return Fold::NotNow,
        Reported::NotNow | Reported::Unreadable => return Fold::Stale,
        Reported::State(state) => state,
    };
    if seq <= stored_seq {
        return Fold::Stale;
    }
    if stored.terminal() {
        return if reported == stored { Fold::Stale } else { Fold::Corrects(reported) };
    }
    if rank(reported) < rank(stored) { Fold::Stale } else { Fold::Takes(reported) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommandState::*;

    #[test]
    fn a_status_that_was_taken_before_changes_nothing() {
        assert_eq!(fold(Started, 2, Reported::State(Started), 2), Fold::Stale);
        assert_eq!(fold(Succeeded, 3, Reported::State(Succeeded), 3), Fold::Stale);
        assert_eq!(fold(Succeeded, 3, Reported::State(Started), 2), Fold::Stale);
    }

    #[test]
    fn a_result_that_overtook_the_note_of_its_sending_is_taken() {
        assert_eq!(fold(Signed, 0, Reported::State(Succeeded), 3), Fold::Takes(Succeeded));
        assert_eq!(fold(Started, 2, Reported::State(Started), 3), Fold::Takes(Started), "progress");
    }

    #[test]
    fn a_late_real_result_corrects_what_was_assumed() {
        assert_eq!(fold(Expired, 0, Reported::State(Started), 1), Fold::Corrects(Started));
        assert_eq!(fold(Unknown, 2, Reported::State(Succeeded), 3), Fold::Corrects(Succeeded));
        assert_eq!(fold(Cancelled, 0, Reported::State(Succeeded), 3), Fold::Corrects(Succeeded));
    }

    #[test]
    fn not_now_moves_nothing_and_counts_only_before_the_intent() {
        assert_eq!(fold(Dispatched, 0, Reported::NotNow, 0), Fold::NotNow);
        assert_eq!(fold(Started, 2, Reported::NotNow, 0), Fold::Stale);
        assert_eq!(fold(Expired, 0, Reported::NotNow, 0), Fold::Stale);
    }

    #[test]
    fn no_report_leads_back() {
        for stored in CommandState::ALL.iter().copied().filter(|state| !state.terminal()) {
            for reported in [Received, Started, Succeeded, Failed, Unknown, Refused, Cancelled] {
                if let Fold::Takes(to) = fold(stored, 1, Reported::State(reported), 2) {
                    assert!(rank(to) >= rank(stored), "{stored} to {to}");
                }
            }
        }
    }
}
