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
    let goaway = Goaway { reconnect_after_ms: 0, reason: cause.to_owned() };
    let _ = session.offer(Lane::Control, Message::Goaway(goaway));
    let _ = session.end().run_until_cancelled(sleep(GOAWAY_GRACE)).await;
    session.finish(cause, None);
}

/// The span give or take a fifth, so that a thousand sessions do not move as one.
pub(super) fn jitter(span: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without randomness everybody moves as one: unpleasant, not wrong.
    let _ = getrandom::fill(&mut bytes);
    let share = f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX);
    span.mul_f64(0.8 + 0.4 * share)
}
