//! Sources that are no node's: Alertmanager, and our own watches of the cluster. Pure.

use std::time::Duration;

use gpuheal_proto::{link::v1, time::Timestamp};

use crate::watch::STALE_AFTER;

/// Alertmanager as this replica knows it. It speaks only when something happens, so that silence is no fault; and what
/// the other replica took is not known here.
pub(super) fn alertmanager(last: Option<Timestamp>, off: bool) -> v1::SourceState {
    let (state, reason) = match last {
        _ if off => ("off", "webhooks are switched off by policy"),
        Some(_) => ("fresh", ""),
        None => ("unused", "no webhook has come to this replica since it started"),
    };
    source("alertmanager", last, state, reason.to_owned())
}

/// Our watches by their age, which must be that of an event or a bookmark. `now` is the hub's time.
pub(super) fn watches(ages: &[(&'static str, Option<Duration>)], now: Option<Timestamp>) -> Vec<v1::SourceState> {
    let one = |&(kind, age): &(&'static str, Option<Duration>)| {
        let last = age.zip(now).map(|(age, now)| now.before(age));
        let (state, reason) = match age {
            Some(age) if age <= STALE_AFTER => ("fresh", String::new()),
            Some(_) => ("stale", format!("neither an event nor a bookmark for more than {}s", STALE_AFTER.as_secs())),
            None => ("stale", "not listed yet".to_owned()),
        };
        source(&format!("{kind} watch"), last, state, reason)
    };
    ages.iter().map(one).collect()
}

fn source(name: &str, last: Option<Timestamp>, state: &str, reason: String) -> v1::SourceState {
    v1::SourceState {
        source: name.to_owned(),
        node: String::new(),
        last_seen_unix_ms: last.map_or(0, Timestamp::unix_ms),
        state: state.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_without_bookmarks_is_stale_and_a_silent_alertmanager_is_not() {
        let now = Timestamp::from_unix_ms(1_000_000);
        let told = watches(&[("node", Some(Duration::from_secs(20))), ("gpu pod", Some(STALE_AFTER * 2)), ("x", None)], Some(now));
        let states: Vec<_> = told.iter().map(|one| (one.source.as_str(), one.state.as_str())).collect();
        assert_eq!(states, [("node watch", "fresh"), ("gpu pod watch", "stale"), ("x watch", "stale")]);
        assert_eq!(told[0].last_seen_unix_ms, 980_000);
        assert_eq!(alertmanager(Some(Timestamp::from_unix_ms(1)), false).state, "fresh");
        assert_eq!((alertmanager(None, false).state.as_str(), alertmanager(None, true).state.as_str()), ("unused", "off"));
    }
}
