//! The cluster's clock: the machine's, plus an offset that a test may move forward.
//! Never goes backwards. Every timer of the simulation (grace, bookmarks, behaviours) waits on it.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::sync::watch;

/// A clock shared by all parts of one simulated cluster.
#[derive(Clone, Debug)]
pub struct Clock {
    offset: Arc<watch::Sender<Duration>>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { offset: Arc::new(watch::channel(Duration::ZERO).0) }
    }
}

impl Clock {
    /// The simulated moment.
    pub fn now(&self) -> DateTime<Utc> {
        Utc::now() + *self.offset.borrow()
    }

    /// Jumps forward; everyone who sleeps looks again.
    pub fn advance(&self, by: Duration) {
        self.offset.send_modify(|offset| *offset += by);
    }

    /// Sleeps until the simulated moment has come, however it comes.
    pub async fn sleep_until(&self, moment: DateTime<Utc>) {
        let mut moved = self.offset.subscribe();
        loop {
            moved.borrow_and_update();
            let Ok(left) = (moment - self.now()).to_std() else { return };
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = moved.changed() => {}
            }
        }
    }

    /// The moment as `metav1.Time`: whole seconds.
    pub fn stamp(&self) -> String {
        stamp(self.now())
    }

    /// The moment as `metav1.MicroTime`.
    pub fn stamp_micros(&self) -> String {
        self.now().to_rfc3339_opts(SecondsFormat::Micros, true)
    }
}

/// `metav1.Time` of a moment.
pub(crate) fn stamp(moment: DateTime<Utc>) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}
