//! A session's timers: the heartbeat, the end of a silent peer, the end of old age and of the certificate.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::{
    limits,
    link::v1::{Goaway, Heartbeat, attach_response::Message},
};
use tokio::time::{Instant, sleep};

use super::{lanes::Lane, registry::Session};
use crate::clock;

/// How long a session lives, so that load spreads again after a hub was away.
const AGE_MAX: Duration = Duration::from_secs(45 * 60);
/// Between the word to go and the end of the stream.
const GOAWAY_GRACE: Duration = Duration::from_secs(10);
/// How far apart those come back who grew old together, after a hub was started in front of a whole fleet.
const GOAWAY_SPREAD: Duration = Duration::from_secs(5);

/// Beats until the session ends. `left` is how long the certificate is still good.
pub(super) async fn pulse(session: Arc<Session>, left: Duration) {
    let begun = Instant::now();
    let age_max = jitter(AGE_MAX).min(left);
    let mut n = 0;
    loop {
        let beat = jitter(limits::HEARTBEAT).min(age_max.saturating_sub(begun.elapsed()));
        if session.end().run_until_cancelled(sleep(beat)).await.is_none() {
            return;
        }
        if begun.elapsed() >= age_max {
            return farewell(&session, if age_max == left { "certificate" } else { "age" }).await;
        }
        // While a message of the peer is being worked on nothing more is read, and the silence is ours.
        if session.silent_for() >= limits::DEAD_AFTER && !session.busy() {
            return session.finish("dead", None);
        }
        n += 1;
        let beat = Heartbeat { n, wall_unix_ms: clock::now().unix_ms(), busy: session.busy(), ..Heartbeat::default() };
        // No room means that the peer reads nothing: its own silence ends it.
        let _ = session.offer(Lane::Control, Message::Heartbeat(beat));
    }
}

async fn farewell(session: &Session, cause: &'static str) {
    let reconnect_after_ms = u32::try_from(anywhere(GOAWAY_SPREAD).as_millis()).unwrap_or(u32::MAX);
    let goaway = Goaway { reconnect_after_ms, reason: cause.to_owned() };
    let _ = session.offer(Lane::Control, Message::Goaway(goaway));
    let _ = session.end().run_until_cancelled(sleep(GOAWAY_GRACE)).await;
    session.finish(cause, None);
}

/// The span give or take a fifth, so that a thousand sessions do not move as one.
pub(super) fn jitter(span: Duration) -> Duration {
    span.mul_f64(0.8 + 0.4 * chance())
}

/// Any part of the span, none included: for a crowd that is to be spread over it.
pub(super) fn anywhere(span: Duration) -> Duration {
    span.mul_f64(chance())
}

/// From 0 to 1. Without randomness everybody moves as one: unpleasant, not wrong.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_45_minutes_give_or_take_a_fifth_and_no_two_go_together() {
        let ages: std::collections::BTreeSet<Duration> = (0..200).map(|_| jitter(AGE_MAX)).collect();
        assert!(ages.len() > 190, "{} ages", ages.len());
        let minutes = |n: u64| Duration::from_secs(n * 60);
        assert!(ages.iter().all(|age| (minutes(36)..=minutes(54)).contains(age)), "{ages:?}");
    }

    #[test]
    fn a_crowd_is_spread_over_the_whole_span() {
        let span = Duration::from_secs(15);
        let waits: Vec<Duration> = (0..400).map(|_| anywhere(span)).collect();
        for quarter in 0..4_u32 {
            let (from, to) = (span / 4 * quarter, span / 4 * (quarter + 1));
            assert!(waits.iter().filter(|wait| (from..=to).contains(*wait)).count() > 40, "quarter {quarter}");
        }
    }
}
