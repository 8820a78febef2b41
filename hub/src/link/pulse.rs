//! A session's timers: the heartbeat, the end of a peer that is silent or takes nothing, the end of old age and of the
//! certificate.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use gpuheal_proto::{
    limits,
    link::v1::{Goaway, Heartbeat, attach_response::Message},
};
use tokio::time::{Instant, sleep};

use super::{goaway, lanes::Lane, registry::Session};
use crate::clock;

/// How long a session lives, so that load spreads again after a hub was away.
const AGE_MAX: Duration = Duration::from_secs(45 * 60);
/// A peer that takes nothing of what waits for it for this long, as for a spoke that gets no ack, is sent away: whatever it
/// says meanwhile, its commands had better go to a session that is read.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Between the word to go and the end of the stream.
const GOAWAY_GRACE: Duration = Duration::from_secs(10);
/// How far apart those come back who grew old together, after a hub was started in front of a whole fleet.
const GOAWAY_SPREAD: Duration = Duration::from_secs(5);

/// A session's times. Tests have shorter ones.
#[derive(Clone, Copy, Debug)]
struct Times {
    heartbeat: Duration,
    dead_after: Duration,
    stalled_after: Duration,
    age_max: Duration,
    grace: Duration,
}

const TIMES: Times = Times {
    heartbeat: limits::HEARTBEAT,
    dead_after: limits::DEAD_AFTER,
    stalled_after: STALLED_AFTER,
    age_max: AGE_MAX,
    grace: GOAWAY_GRACE,
};

/// Beats until the session ends. `left` is how long the certificate is still good.
pub(super) async fn pulse(session: Arc<Session>, left: Duration) {
    beats(session, left, TIMES).await;
}

async fn beats(session: Arc<Session>, left: Duration, times: Times) {
    let begun = Instant::now();
    let age_max = jitter(times.age_max).min(left);
    let mut n = 0;
    loop {
        let beat = jitter(times.heartbeat)
            .min(age_max.saturating_sub(begun.elapsed()))
            .min(times.stalled_after.saturating_sub(session.stalled_for()));
        if session.end().run_until_cancelled(sleep(beat)).await.is_none() {
            return;
        }
        if begun.elapsed() >= age_max {
            return farewell(&session, if age_max == left { "certificate" } else { "age" }, times.grace).await;
        }
        match over(session.silent_for(), session.busy(), session.stalled_for(), &times) {
            Some("dead") => return session.finish("dead", None),
            Some(cause) => return session.finish(cause, Some(goaway("nothing that waits for it was taken for 30 s"))),
            None => {}
        }
        n += 1;
        let beat = Heartbeat { n, wall_unix_ms: clock::now().unix_ms(), busy: session.busy(), ..Heartbeat::default() };
        // No room means that the peer reads nothing: that ends it, here at its time.
        let _ = session.offer(Lane::Control, Message::Heartbeat(beat));
    }
}

/// Why a session is over. While a message of the peer is being worked on nothing more is read, and the silence is ours; but
/// an answer that waits for a peer which takes none is no work.
fn over(silent: Duration, busy: bool, stalled: Duration, times: &Times) -> Option<&'static str> {
    if stalled >= times.stalled_after {
        return Some("stalled");
    }
    (silent >= times.dead_after && !busy).then_some("dead")
}

async fn farewell(session: &Session, cause: &'static str, grace: Duration) {
    let reconnect_after_ms = u32::try_from(anywhere(GOAWAY_SPREAD).as_millis()).unwrap_or(u32::MAX);
    let goaway = Goaway { reconnect_after_ms, reason: cause.to_owned() };
    let _ = session.offer(Lane::Control, Message::Goaway(goaway));
    let _ = session.end().run_until_cancelled(sleep(grace)).await;
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
    static SAID: Once = Once::new();
    let mut bytes = [0; 4];
    if let Err(error) = getrandom::fill(&mut bytes) {
        SAID.call_once(|| tracing::error!(%error, "this system gives no random numbers: spokes beat and come again all at once"));
    }
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::link::lanes::Down;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    /// Nothing of it is reached but what a test shortens.
    const LONG: Times =
        Times { heartbeat: Duration::from_millis(5), dead_after: YEAR, stalled_after: YEAR, age_max: YEAR, grace: YEAR };
    const SHORT: Duration = Duration::from_millis(60);

    fn session() -> (Arc<Session>, Down) {
        Session::of("a", "r0", 1)
    }

    /// Reads all that comes until the stream ends; gives what a Goaway said, and when.
    fn reading(mut down: Down) -> tokio::task::JoinHandle<Option<(String, Instant)>> {
        tokio::spawn(async move {
            let mut said = None;
            while let Some(Ok(message)) = down.next().await {
                if let Some(Message::Goaway(goaway)) = message.message {
                    said = Some((goaway.reason, Instant::now()));
                }
            }
            said
        })
    }

    /// Failure table, row 34.
    #[test]
    fn who_takes_nothing_for_30_s_is_over_and_who_says_nothing_for_45_s_too() {
        let second = Duration::from_secs;
        for (silent, busy, stalled, want) in [
            (44, false, 29, None),
            (45, false, 0, Some("dead")),
            (4500, true, 29, None),
            (0, false, 30, Some("stalled")),
            (4500, true, 30, Some("stalled")),
        ] {
            assert_eq!(
                over(second(silent), busy, second(stalled), &TIMES),
                want,
                "silent {silent} s, busy {busy}, stalled {stalled} s"
            );
        }
    }

    #[tokio::test]
    async fn a_silent_peer_is_dead_once_its_own_message_is_not_being_worked_on_any_more() {
        let (session, down) = session();
        let _reading = reading(down);
        session.set_busy(true);
        let beating = tokio::spawn(beats(session.clone(), YEAR, Times { dead_after: SHORT, ..LONG }));
        sleep(SHORT * 3).await;
        assert!(!beating.is_finished(), "the silence is ours");
        session.set_busy(false);
        beating.await.unwrap();
        assert_eq!(session.cause(), "dead");
        assert!(session.end().is_cancelled());
    }

    #[tokio::test]
    async fn an_old_session_is_told_to_go_and_is_closed_a_grace_later() {
        let (session, down) = session();
        let (begun, reading) = (Instant::now(), reading(down));
        beats(session.clone(), YEAR, Times { age_max: SHORT, grace: SHORT, ..LONG }).await;
        assert_eq!(session.cause(), "age");
        let (closed, (said, told)) = (Instant::now(), reading.await.unwrap().expect("a word before the end"));
        assert_eq!(said, "age");
        assert!(told - begun >= SHORT.mul_f64(0.8), "told after {:?}", told - begun);
        assert!(closed - begun >= SHORT.mul_f64(0.8) + SHORT, "closed after {:?}", closed - begun);
    }

    #[tokio::test]
    async fn a_session_ends_with_its_certificate() {
        let (session, down) = session();
        let reading = reading(down);
        beats(session.clone(), SHORT, Times { grace: SHORT, ..LONG }).await;
        assert_eq!((session.cause(), reading.await.unwrap().unwrap().0.as_str()), ("certificate", "certificate"));
    }

    /// Failure table, row 34.
    #[tokio::test]
    async fn a_peer_that_beats_but_takes_nothing_is_sent_away() {
        let (session, mut down) = session();
        let begun = Instant::now();
        // An answer that waits for room, as of a track that is held up by it.
        session.set_busy(true);
        let beating = beats(session.clone(), YEAR, Times { stalled_after: SHORT, ..LONG });
        tokio::time::timeout(Duration::from_secs(120), beating).await.expect("it is not beaten for for ever");
        assert_eq!(session.cause(), "stalled");
        assert!(begun.elapsed() >= SHORT);
        let mut last = None;
        while let Some(Ok(message)) = down.next().await {
            last = message.message;
        }
        assert!(matches!(last, Some(Message::Goaway(_))), "{last:?}");
    }

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
