//! The pause after acting on a node: reserved with the decision, running from the first effect, void when the command
//! came to nothing. It holds back *new* incidents' plans and nothing else.

use std::time::Duration;

use gpuheal_proto::{ids::IncidentId, time::Timestamp};
use serde::{Deserialize, Serialize};

/// Where a cooldown stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CooldownState {
    /// A command was decided and nothing of it has been heard.
    Reserved,
    /// Something was done: the pause ends then.
    Running {
        /// Its end.
        until: Timestamp,
    },
    /// The command came to nothing.
    Void,
}

/// A node's cooldown row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    /// Whose.
    pub incident: IncidentId,
    /// Where it stands.
    pub state: CooldownState,
}

/// What a decision does to the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum CooldownOp {
    /// Leave it.
    Keep,
    /// Put `Reserved` for this incident.
    Reserve,
    /// Put `Running` for this incident.
    Run {
        /// Its end.
        until: Timestamp,
    },
    /// Put `Void`.
    Void,
}

impl Cooldown {
    /// Whether it holds back a plan of `incident` at `now`; the answer says until when, `None` = until heard of.
    #[must_use]
    pub fn holds_back(&self, incident: Option<IncidentId>, now: Timestamp) -> Option<Option<Timestamp>> {
        if incident == Some(self.incident) {
            return None;
        }
        match self.state {
            CooldownState::Void => None,
            CooldownState::Reserved => Some(None),
            CooldownState::Running { until } if now < until => Some(Some(until)),
            CooldownState::Running { .. } => None,
        }
    }
}

/// The end of a pause that began with an effect at `effect_at`.
#[must_use]
pub const fn ends(effect_at: Timestamp, span: Duration) -> Timestamp {
    effect_at.after(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuheal_proto::ids::uuid_v7;

    fn incident(n: u8) -> IncidentId {
        IncidentId::from_uuid(uuid_v7(Timestamp::EPOCH, &[n; 32]))
    }

    #[test]
    fn a_cooldown_holds_back_other_incidents_until_its_end_and_never_its_own() {
        let end = Timestamp::from_unix_ms(900_000);
        let row = Cooldown { incident: incident(1), state: CooldownState::Running { until: end } };
        assert_eq!(row.holds_back(Some(incident(1)), Timestamp::EPOCH), None);
        assert_eq!(row.holds_back(Some(incident(2)), Timestamp::EPOCH), Some(Some(end)));
        assert_eq!(row.holds_back(None, end), None, "at the end itself it is over");
    }

    #[test]
    fn a_reserved_cooldown_holds_without_an_end_and_a_void_one_not_at_all() {
        let row = Cooldown { incident: incident(1), state: CooldownState::Reserved };
        assert_eq!(row.holds_back(None, Timestamp::EPOCH), Some(None));
        let row = Cooldown { incident: incident(1), state: CooldownState::Void };
        assert_eq!(row.holds_back(None, Timestamp::EPOCH), None);
    }
}
