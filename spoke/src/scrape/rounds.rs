//! In which reign each exporter was asked last. A new leader knows nothing of a fault that only the one before it saw, until
//! it has asked every exporter itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::Target;

/// Shared between who asks and who wants to know.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Nothing until the exporters are known.
    last: Mutex<Option<BTreeMap<Arc<Target>, Option<u64>>>>,
}

impl Rounds {
    /// Nobody was asked yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// These exporters there are, and no others.
    pub(crate) fn expect<'a>(&self, targets: impl Iterator<Item = &'a Arc<Target>>) {
        let mut last = self.last.lock().expect("no holder of this lock panics");
        let known = last.take().unwrap_or_default();
        *last = Some(targets.map(|target| (Arc::clone(target), known.get(target).copied().flatten())).collect());
    }

    /// Whether it is known at all which exporters there are.
    #[must_use]
    pub fn known(&self) -> bool {
        self.last.lock().expect("no holder of this lock panics").is_some()
    }

    /// One was asked, whatever it answered, and what it showed is in the journal.
    pub(crate) fn asked(&self, target: &Target, reign: u64) {
        if let Some(last) = self.last.lock().expect("no holder of this lock panics").as_mut()
            && let Some(known) = last.get_mut(target)
        {
            *known = Some(reign);
        }
    }

    /// Whether all were asked in this reign.
    #[must_use]
    pub fn whole(&self, reign: u64) -> bool {
        let last = self.last.lock().expect("no holder of this lock panics");
        last.as_ref().is_some_and(|last| last.values().all(|known| *known == Some(reign)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_whole_once_every_exporter_that_there_is_was_asked_in_this_reign() {
        let target = |node: &str| Arc::new(Target { node: node.into(), url: format!("http://{node}"), start: String::new() });
        let rounds = Rounds::new();
        assert!(!rounds.known() && !rounds.whole(1), "the exporters are not known");
        rounds.expect([target("a"), target("b")].iter());
        assert!(rounds.known());
        rounds.asked(&target("a"), 1);
        assert!(!rounds.whole(1));
        rounds.asked(&target("b"), 1);
        assert!(rounds.whole(1) && !rounds.whole(2));
        rounds.asked(&target("a"), 2);
        rounds.expect([target("a")].iter());
        assert!(rounds.whole(2), "the other is gone");
        rounds.expect([target("a"), target("c")].iter());
        assert!(!rounds.whole(2), "a new one");
    }
}
