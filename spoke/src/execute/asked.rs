//! Commands of which the hub asks how they stand, since nobody has told it their end: told by the leader, acked before or not,
//! once all that there is has been listed. What is not on record here is not told: the hub's own deadlines speak for it.

use std::{collections::BTreeSet, sync::Arc};

use super::{Back, hand::HandLoop};
use crate::report;

/// Ids that may wait: two rounds of a hub's asking, at 2,048 each. More is asked for again at the next session.
const ASKED_MAX: usize = 4096;

/// What one session asked for, until it is told.
#[derive(Debug, Default)]
pub(super) struct Asked {
    session: Option<u64>,
    ids: BTreeSet<String>,
}

impl HandLoop {
    pub(super) fn asked_for(&mut self, ids: Vec<String>) {
        let session = self.ctx.deps.attachment.borrow().generation;
        if self.asked.session != session {
            self.asked = Asked { session, ids: BTreeSet::new() };
        }
        let room = ASKED_MAX.saturating_sub(self.asked.ids.len());
        if ids.len() > room {
            tracing::warn!(
                asked = ids.len(),
                room,
                "the hub asks for more commands than can wait: the rest is asked for at the next session"
            );
        }
        self.asked.ids.extend(ids.into_iter().take(room));
        self.answer_asked();
    }

    /// A session that is over asks for nothing: the next one does.
    pub(super) fn answer_asked(&mut self) {
        if self.asked.ids.is_empty() || self.ctx.reign().is_none() || !self.ctx.actions.ready() {
            return;
        }
        let Asked { session, ids } = std::mem::take(&mut self.asked);
        let told = report::asked(ids.iter().filter_map(|id| self.ctx.actions.get(id)).collect());
        told.iter().for_each(|told| self.ctx.reports.will_tell(&told.action));
        let ctx = Arc::clone(&self.ctx);
        self.tasks.spawn(async move {
            report::tell_again(&ctx.reports, told, || ctx.deps.attachment.borrow().generation == session).await;
            Back::Done
        });
    }
}
