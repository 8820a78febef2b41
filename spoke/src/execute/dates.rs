//! A second witness of time. Hub time goes on by CLOCK_BOOTTIME, which a suspend does not stop, but a pause of the whole
//! virtual machine does: whoever was paused believes that its Lease and its deadlines are as fresh as before. The `Date`
//! of each answer of the API server shows it: when it has jumped against our clock, hub time is no longer known, so that
//! no command is begun and none goes on (`CLOCK_UNCERTAIN`, not now) until the link has asked the hub for its time anew.
//!
//! What counts is the jump, never the distance: an API server whose clock is an hour off is no reason to wait. A `Date`
//! that falls back is that server's own clock being set, and shows nothing of ours.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::HeaderMap;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use kube::{Client, client::Body};

use crate::clock::{HubClock, boottime};

/// Largest jump that is none. With the two seconds to which two Dates are rounded that is the 4 s which a step asks of the
/// Lease: a shorter pause ends inside of it.
pub const DATE_JUMP_MAX: Duration = Duration::from_secs(2);
/// A `Date` names the second that has begun.
const ROUNDED: Duration = Duration::from_secs(1);
/// Only answers as quick as this sharpen what is known: from a slower one the offset is known no better than that.
const PROMPT: Duration = Duration::from_secs(1);
/// How long the largest offset counts. Behind one address there may be several API servers, each with a clock of its own:
/// the one that is ahead is heard again within it, else its next answer is a jump.
const WINDOW: Duration = Duration::from_secs(60);
/// Drift that two good clocks may have against each other, as in `clock.rs`.
const DRIFT_PPM: u32 = 200;

/// A client whose answers are all looked at.
#[must_use]
pub fn witnessed(client: Client, clock: Arc<HubClock>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let dates = Arc::new(Dates { clock, offset: Mutex::default() });
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, dates) = (client.clone(), Arc::clone(&dates));
        async move {
            let sent = boottime();
            let response = client.send(request).await?;
            dates.heard(response.headers(), sent, boottime());
            Ok::<_, kube::Error>(response)
        }
    });
    Client::new(service, namespace)
}

/// The `Date` of an answer, in milliseconds since 1970; nothing where there is none that can be read.
pub(crate) fn date_ms(headers: &HeaderMap) -> Option<i64> {
    let date = DateTimeParser::new().parse_timestamp(headers.get(http::header::DATE)?).ok()?;
    Some(date.as_millisecond())
}

struct Dates {
    clock: Arc<HubClock>,
    offset: Mutex<Offset>,
}

impl Dates {
    fn heard(&self, headers: &HeaderMap, sent: Duration, read: Duration) {
        let Some(date_ms) = date_ms(headers) else { return };
        let jump = self.offset.lock().expect("no holder of this lock panics").note(date_ms, sent, read);
        if let Some(jump) = jump {
            let jump_ms = jump.as_millis();
            tracing::warn!(jump_ms, "the API server's Date has jumped against our clock: the hub's time is asked for anew");
            self.clock.lose();
        }
    }
}

/// How far the API server's clock is ahead of time since boot. Pure.
#[derive(Debug, Default)]
struct Offset {
    now: Option<Span>,
    before: Option<Span>,
}

/// The largest that it can have been during some time.
#[derive(Clone, Copy, Debug)]
struct Span {
    since: Duration,
    most_ms: i64,
}

impl Offset {
    /// Takes the `Date` of an answer whose request was sent and which was read then; gives the jump, if it is one.
    ///
    /// The server wrote it at some moment between the two, so that a slow answer is told from a late clock.
    fn note(&mut self, date_ms: i64, sent: Duration, read: Duration) -> Option<Duration> {
        let (least, most) = (date_ms - millis(read), date_ms + millis(ROUNDED) - millis(sent));
        let known = self.known(read);
        let jump = known.map(|known| least - known).filter(|jump| *jump > millis(DATE_JUMP_MAX));
        if known.is_none() || jump.is_some() || read.saturating_sub(sent) <= PROMPT {
            self.remember(most, read);
        }
        jump.and_then(|jump| u64::try_from(jump).ok()).map(Duration::from_millis)
    }

    fn known(&self, at: Duration) -> Option<i64> {
        let drifted = |span: &Span| span.most_ms + millis(at.saturating_sub(span.since) * DRIFT_PPM / 1_000_000);
        self.now.iter().chain(&self.before).map(drifted).max()
    }

    fn remember(&mut self, most_ms: i64, at: Duration) {
        match &mut self.now {
            Some(span) if at.saturating_sub(span.since) < WINDOW => span.most_ms = span.most_ms.max(most_ms),
            Some(_) | None => self.before = self.now.replace(Span { since: at, most_ms }),
        }
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that is `ahead_ms` ahead, asked at `at_ms` and answering at once.
    fn asked(offset: &mut Offset, at_ms: u64, ahead_ms: i64) -> Option<Duration> {
        let at = Duration::from_millis(at_ms);
        let date = (i64::try_from(at_ms).unwrap() + ahead_ms).div_euclid(1000) * 1000;
        offset.note(date, at, at + Duration::from_millis(5))
    }

    #[test]
    fn a_server_that_is_always_an_hour_off_never_jumps() {
        for ahead in [-3_600_000, 0, 3_600_000] {
            let mut offset = Offset::default();
            for at in (0..600_000).step_by(370) {
                assert_eq!(asked(&mut offset, at, ahead), None, "at {at}, {ahead} ahead");
            }
        }
    }

    #[test]
    fn a_machine_that_stood_still_learns_it_once() {
        let mut offset = Offset::default();
        assert_eq!(asked(&mut offset, 10_999, 0), None);
        // Four seconds went by for all but us.
        let jump = asked(&mut offset, 11_001, 4_000).unwrap();
        assert!((Duration::from_secs(2)..=Duration::from_secs(4)).contains(&jump), "{jump:?}");
        assert_eq!(asked(&mut offset, 11_100, 4_000), None);
    }

    #[test]
    fn an_answer_that_was_long_under_way_is_no_jump_and_hides_none() {
        let secs = Duration::from_secs;
        let mut offset = Offset::default();
        assert_eq!(asked(&mut offset, 10_000, 0), None);
        assert_eq!(offset.note(11_000, secs(11), secs(40)), None, "written at once, read late");
        assert_eq!(offset.note(70_000, secs(41), secs(70)), None, "written late, read at once");
        assert!(asked(&mut offset, 71_000, 5_000).is_some());
    }

    #[test]
    fn a_server_whose_clock_is_set_back_shows_nothing_of_ours() {
        let mut offset = Offset::default();
        assert_eq!(asked(&mut offset, 10_000, 3_600_000), None);
        assert_eq!(asked(&mut offset, 11_000, 0), None);
    }

    #[test]
    fn of_two_servers_behind_one_address_the_one_ahead_is_a_jump_once() {
        let mut offset = Offset::default();
        let jumps = (1..200).filter(|n| asked(&mut offset, n * 2_000, if n % 2 == 0 { 5_000 } else { 0 }).is_some());
        assert_eq!(jumps.count(), 1);
    }
}
