//! Telling people: one Kubernetes Event per incident and level, and notices for whoever listens. Nothing leaves the hub
//! in mode observe. What was done, and under which incident and command, the spoke adds to the Event itself: it alone
//! knows.

use std::time::Duration;

use gpuheal_proto::{
    command::Step,
    time::Timestamp,
    words::{Action, Level, Mode},
};

use super::{Notice, Urgency, case::Case, judge::Judged};

/// An Event that could not be posted is tried again this late, doubled each time, and [`TRIES_MAX`] times in all: a
/// cluster that refuses Events for good must not fill with refusals.
const RETRY: Duration = Duration::from_secs(5 * 60);
const TRIES_MAX: u32 = 3;

impl Case<'_> {
    /// The level and the words to post now, when there is something that was not told yet at its level.
    pub(super) fn news(&mut self) -> Option<(Level, String)> {
        let may = |one: &&Judged<'_>| one.live() && one.stance.mode >= Mode::Notify && self.settings.response.notify;
        let due: Vec<&Judged<'_>> = self.judged.iter().filter(may).filter(|one| one.tell_at.is_some()).collect();
        let later = due.iter().filter_map(|one| one.tell_at).filter(|at| self.now < *at).min();
        let worst = due.iter().filter(|one| one.tell_at.is_some_and(|at| at <= self.now)).max_by_key(|one| one.classified.level);
        let news = worst.map(|one| (one.classified.level, one.reason.clone(), one.name()));
        if let Some(at) = later {
            self.again(at);
        }
        let (level, reason, name) = news?;
        if self.progress.told >= Some(level) || self.snapshot.node.opted_out {
            return None;
        }
        let (tries, last) = self.progress.untold(level);
        if let (Some(doublings), Some(last)) = (tries.checked_sub(1), last) {
            let until = last.after(RETRY * 2_u32.pow(doublings.min(TRIES_MAX)));
            if tries >= TRIES_MAX {
                return None;
            }
            if self.now < until {
                self.again(until);
                return None;
            }
        }
        Some((level, format!("{name}: {reason}")))
    }

    /// The step for it, with a notice beside it.
    pub(super) fn tell(&mut self, news: Option<(Level, String)>) -> Option<Step> {
        let (level, message) = news?;
        let urgency = match level {
            Level::P0 => Urgency::Page,
            Level::P1 => Urgency::Warn,
            Level::P2 => Urgency::Info,
        };
        self.decision.notify.push(Notice { urgency, text: format!("{message}; incident {}", self.id()) });
        Some(Step::Notify { message })
    }

    /// A command that posts the Event and does nothing else.
    /// A node that no state has shown yet has no plan revision to go with: it is told of once it is shown. In a cluster that is not
    /// taken over yet the next one may be that of a command which the database has lost, and would keep it from being taken over.
    pub(super) fn tell_alone(&mut self) {
        if self.snapshot.node.seen_at == Timestamp::EPOCH || !self.snapshot.cluster.taken_over() {
            return;
        }
        let Some((level, message)) = self.news() else { return };
        let reason = self.decision.reasons.first().cloned().unwrap_or_else(|| message.clone());
        let Some(step) = self.tell(Some((level, message))) else { return };
        let mut words = self.words(&[], &reason);
        words.level = level.to_string();
        let command = self.plan().command(Action::Notify, vec![step], words, false);
        self.send(command);
    }
}
