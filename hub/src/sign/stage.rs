//! The stage's loop: claims proposed commands, signs them, stores the bytes. One round is one transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpuheal_proto::ids::{ClusterId, CommandId};
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Signer;
use crate::{
    audit::{self, Entry, Kind, chain_of},
    chain::chain,
    metrics,
    store::{
        self, Labelled as _, moment,
        outbox::{self, CalledOff, RowError, SignedCancel},
        pool::answered,
    },
    wake::Wake,
};

/// Commands in one transaction: at about 2 KiB each half a megabyte, signed in 10 ms.
const ROUND_MAX: i64 = 256;
/// Commands and cancellations that are known to be unsignable and were complained about; then the list starts anew.
const COMPLAINED_MAX: usize = 1024;

/// What the stage works with.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The database.
    pub pool: PgPool,
    /// The key.
    pub signer: Arc<Signer>,
    /// Wakes us when something was decided, and deliver when bytes are there to be sent.
    pub wake: Arc<Wake>,
}

impl Stage {
    /// Signs until told to stop. A failed round is tried again at the next poll.
    pub async fn run(self, stop: CancellationToken) {
        let mut complained = Complained::default();
        loop {
            let done = match answered("sign.round", self.round(&mut complained)).await {
                Ok(done) => done,
                Err(error) => {
                    metrics::STAGE_FAILURES.inc(["sign"]);
                    tracing::warn!(error = %chain(&error), "signing round failed");
                    0
                }
            };
            if done > 0 {
                self.wake.signed.notify_one();
            }
            if done == ROUND_MAX as usize {
                continue;
            }
            if stop.run_until_cancelled(self.wake.decided.notified_or_poll()).await.is_none() {
                return;
            }
        }
    }

    /// One transaction; returns how many envelopes it made.
    ///
    /// # Errors
    /// When the database fails: nothing was stored then.
    #[tracing::instrument(name = "hub.sign", skip_all)]
    pub async fn round(&self, complained: &mut Complained) -> Result<usize, store::Error> {
        let mut tx = self.pool.begin().await.label("sign.begin")?;
        let proposed = outbox::proposed_claim(&mut tx, ROUND_MAX).await.label("sign.claim")?;
        let (mut signed, mut off) = (Vec::with_capacity(proposed.len()), Vec::new());
        let mut entries: BTreeMap<ClusterId, Vec<Entry>> = BTreeMap::new();
        for row in proposed {
            dies_at!("sign.before");
            let made = row.command.map_err(Unsigned::from).and_then(|command| {
                let made = self.signer.command(&command)?;
                Ok((command, made))
            });
            match made {
                Ok((command, made)) => {
                    dies_at!("sign.before-commit");
                    entries.entry(command.audience.clone()).or_default().push(self.signer.entry(&command, &made));
                    signed.push((command.audience, command.id, made));
                }
                Err(error) => {
                    complain(complained, "command", row.key.1, &error);
                    off.push(row.key);
                }
            }
        }
        outbox::signed_store(&mut tx, &signed, self.signer.keyid(), self.signer.key_epoch()).await.label("sign.store")?;
        let cancelled = self.cancels(&mut tx, &mut entries, complained, &mut off).await?;
        outbox::sign_put_off(&mut tx, &off).await.label("sign.put_off")?;
        audit(&mut tx, &entries).await?;
        tx.commit().await.label("sign.commit")?;
        metrics::SIGNED.add(["command"], signed.len() as u64);
        metrics::SIGNED.add(["cancel"], cancelled as u64);
        Ok(signed.len() + cancelled)
    }

    async fn cancels(
        &self,
        tx: &mut PgConnection,
        entries: &mut BTreeMap<ClusterId, Vec<Entry>>,
        complained: &mut Complained,
        off: &mut Vec<outbox::Key>,
    ) -> Result<usize, store::Error> {
        let asked = outbox::cancel_claim(tx, ROUND_MAX).await.label("sign.cancel_claim")?;
        let mut signed = Vec::with_capacity(asked.len());
        for CalledOff { key, incident, body } in asked {
            let made = body.map_err(Unsigned::from).and_then(|body| {
                let cluster = ClusterId::parse(&body.audience).map_err(RowError::from)?;
                let made = self.signer.cancel(&body)?;
                Ok((cluster, body, made))
            });
            match made {
                Ok((cluster, body, made)) => {
                    entries.entry(cluster).or_default().push(Entry {
                        kind: Kind::CancelSigned,
                        actor: "hub/sign".to_owned(),
                        subject: format!("command/{}", CommandId::from_uuid(key.1)),
                        incident: Some(incident),
                        body: json!({
                            "sha256": made.sha256, "key_id": self.signer.keyid(), "hub_term": body.hub_term, "reason": body.reason,
                        }),
                    });
                    signed.push(SignedCancel { key, hub_term: body.hub_term, envelope: made.envelope });
                }
                Err(error) => {
                    complain(complained, "cancellation", key.1, &error);
                    off.push(key);
                }
            }
        }
        outbox::cancel_store(tx, &signed).await.label("sign.cancel_store")?;
        Ok(signed.len())
    }
}

/// Chains are taken in the order of their names by everybody who takes several, so that nobody waits in a circle.
async fn audit(tx: &mut PgConnection, entries: &BTreeMap<ClusterId, Vec<Entry>>) -> Result<(), store::Error> {
    if entries.is_empty() {
        return Ok(());
    }
    let now = moment::now(tx).await?;
    for (cluster, entries) in entries {
        audit::append(tx, chain_of(cluster), entries, now).await?;
    }
    Ok(())
}

/// Why a row was not signed.
#[derive(Debug, thiserror::Error)]
enum Unsigned {
    #[error("its row cannot be read")]
    Row(#[from] RowError),
    #[error(transparent)]
    Signer(#[from] super::Error),
}

impl Unsigned {
    const fn cause(&self) -> &'static str {
        match self {
            Self::Row(_) => "invalid",
            Self::Signer(error) => error.cause(),
        }
    }
}

/// What was complained about: commands and cancellations, each once, however often it is tried.
pub type Complained = BTreeSet<(&'static str, Uuid)>;

/// It stays unsigned, blocks nobody and expires in time.
fn complain(complained: &mut Complained, what: &'static str, id: Uuid, error: &Unsigned) {
    if complained.len() >= COMPLAINED_MAX {
        complained.clear();
    }
    if complained.insert((what, id)) {
        metrics::SIGN_FAILURES.inc([error.cause()]);
        tracing::error!(command.id = %CommandId::from_uuid(id), what, error = %chain(error), "it cannot be signed: it is tried again each minute until it expires");
    }
}
