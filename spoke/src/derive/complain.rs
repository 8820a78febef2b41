//! Warnings about what others send us: each source is named once a minute at most, with how much went unsaid since, so
//! that a broken exporter neither stays unseen nor fills the log.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

/// Between two warnings about one source.
const EVERY: Duration = Duration::from_secs(60);
/// Sources that are remembered: above the exporters of the largest cluster. Beyond it the oldest is forgotten, which
/// costs one more warning.
const SOURCES_MAX: usize = 4096;

/// When each source was last warned about, and how much came since. Moments are of one clock that never goes back.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    sources: Mutex<BTreeMap<String, (Duration, u64)>>,
}

impl Complaints {
    /// Counts `count` more of `source`. Gives how many to warn of now, those that went unsaid included; nothing while the
    /// last warning is too young.
    pub(super) fn due(&self, source: &str, count: u64, now: Duration) -> Option<u64> {
        let mut sources = self.sources.lock().expect("no holder of this lock panics");
        if let Some((told_at, unsaid)) = sources.get_mut(source) {
            *unsaid += count;
            if now.saturating_sub(*told_at) < EVERY {
                return None;
            }
            *told_at = now;
            return Some(std::mem::take(unsaid));
        }
        if sources.len() >= SOURCES_MAX {
            let oldest = sources.iter().min_by_key(|(_, (told_at, _))| *told_at).map(|(source, _)| source.clone());
            oldest.and_then(|oldest| sources.remove(&oldest));
        }
        sources.insert(source.to_owned(), (now, 0));
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_warned_about_once_a_minute_with_what_went_unsaid() {
        let complaints = Complaints::default();
        let at = Duration::from_secs;
        assert_eq!(complaints.due("a", 2, at(100)), Some(2));
        assert_eq!(complaints.due("a", 3, at(101)), None);
        assert_eq!(complaints.due("b", 1, at(101)), Some(1), "another source is another matter");
        assert_eq!(complaints.due("a", 4, at(160)), Some(7));
        assert_eq!(complaints.due("a", 1, at(161)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let complaints = Complaints::default();
        for source in 0..SOURCES_MAX as u64 + 10 {
            complaints.due(&source.to_string(), 1, Duration::from_secs(source));
        }
        assert_eq!(complaints.sources.lock().unwrap().len(), SOURCES_MAX);
    }
}
