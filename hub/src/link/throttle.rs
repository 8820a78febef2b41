//! Tells every session when the hub has more to do than it can, and when that is over. Whoever has faults in flight hears it
//! with their acks; this is for all others, who might all begin at once.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::link::v1::{self, attach_response::Message};
use tokio_util::sync::CancellationToken;

use super::{lanes::Lane, registry::Registry};
use crate::ingest::Ingest;

/// How often the load is looked at: at 5,000 faults a second a third of what makes it high has come by then.
const EVERY: Duration = Duration::from_secs(1);

/// What it looks at, and whom it tells.
pub struct Throttle {
    /// Whose load it is.
    pub ingest: Ingest,
    /// Who is attached here.
    pub registry: Arc<Registry>,
}

impl Throttle {
    /// Tells until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let mut told = self.ingest.credit();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            told = self.round(told);
        }
    }

    /// One look: whoever is attached is told when the credit is another than `told`. Gives what it is now.
    fn round(&self, told: u32) -> u32 {
        let credit = self.ingest.credit();
        if credit != told {
            tracing::info!(credit, before = told, "faults wait for their commit: sessions may have so many in flight");
            for session in self.registry.all() {
                // Without room its peer reads nothing, and sends nothing new either.
                let _ = session.offer(Lane::Control, Message::Throttle(v1::Throttle { credit }));
            }
        }
        credit
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};
    use sqlx::postgres::PgPoolOptions;

    use super::*;
    use crate::{link::registry::Session, wake::Wake};

    /// Failure table, row 33.
    #[tokio::test]
    async fn whoever_is_attached_is_told_when_faults_pile_up_and_when_they_do_not_any_more() {
        let stop = CancellationToken::new();
        let pool = PgPoolOptions::new().connect_lazy("postgres://127.0.0.1:1/none").unwrap();
        let (ingest, _committer) = Ingest::start(pool, Wake::new(), stop.clone());
        let registry = Arc::new(Registry::default());
        let (session, mut down) = Session::of("a", "r0", 1);
        registry.insert(&session);
        let throttle = Throttle { ingest: ingest.clone(), registry };

        let told = throttle.round(ingest.credit());
        let pile = ingest.pile(20_000);
        let told = throttle.round(told);
        assert_eq!(throttle.round(told), told, "nothing new");
        drop(pile);
        throttle.round(told);
        for want in [256, 1024] {
            let message = down.next().now_or_never().flatten().expect("it is told").unwrap().message;
            assert_eq!(message, Some(Message::Throttle(v1::Throttle { credit: want })));
        }
    }
}
