//! What the hub says: each message to where it belongs. Never waits for the writer, so that acks and heartbeats are always
//! heard; for the hand's loop only where nobody would say it again, which itself waits for nobody.

use std::time::Duration;

use gpuheal_proto::{
    ids::{NodeName, StreamId},
    link::v1::{self, attach_request::Message as Up, attach_response::Message},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{
    Deps, End, Error,
    session::{Shared, rejected},
    waiting::Waiting,
};
use crate::{clock, metrics, ports::Down, settings::Keys};

/// The reading loop.
pub(super) struct Inbound<'a> {
    pub(super) deps: &'a Deps,
    pub(super) shared: &'a Shared,
    pub(super) waiting: &'a Waiting,
    pub(super) keys: &'a Keys,
    pub(super) control: mpsc::Sender<Up>,
}

impl Inbound<'_> {
    /// Until the stream ends, breaks, falls silent or the hub ends it.
    pub(super) async fn run(self, mut stream: tonic::Streaming<v1::AttachResponse>) -> End {
        loop {
            let dead_after = self.deps.config.dead_after;
            let message = match timeout(dead_after, stream.message()).await {
                Err(_) => return End::Failed(Error::Silent(dead_after)),
                Ok(Err(status)) => return End::Failed(status.into()),
                Ok(Ok(None)) => return End::Failed(Error::Ended),
                Ok(Ok(Some(message))) => message,
            };
            // A message that this version does not know arrives as none.
            let Some(message) = message.message else { continue };
            match self.take(message).await {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(error) => return End::Failed(error),
            }
        }
    }

    async fn take(&self, message: Message) -> Result<Option<End>, Error> {
        match message {
            Message::FaultAck(ack) => self.acked(ack).await,
            Message::Throttle(throttle) => {
                self.shared.outbox.lock().expect("no holder of this lock panics").set_credit(throttle.credit);
                self.shared.moved.notify_one();
            }
            Message::Settings(settings) => {
                let ack = self.deps.settings.take(&settings, self.keys);
                self.deps.metrics.set(metrics::SETTINGS_VERSION, &[], self.deps.settings.version() as f64);
                self.answer(Up::SettingsAck(ack))?;
            }
            Message::Command(command) => self.command(command)?,
            Message::Cancel(cancel) => self.deps.down.send(Down::Cancel(cancel.envelope)).await.map_err(|_| Error::Ended)?,
            // The hand's loop waits for nothing but itself. Of a last word nobody would ever say again that it was heard.
            Message::StatusAck(ack) => self.deps.down.send(Down::StatusAck(ack)).await.map_err(|_| Error::Ended)?,
            Message::Resync(resync) => self.resync(resync).await?,
            Message::ProcessResult(result) => self.waiting.answered(&result),
            Message::Verdict(verdict) => self.verdict(&verdict),
            Message::Heartbeat(beat) => {
                self.shared.progress.lock().expect("no holder of this lock panics").heard(beat.busy, Instant::now());
            }
            Message::Goaway(goaway) => {
                let reconnect_after = Duration::from_millis(goaway.reconnect_after_ms.into());
                return Ok(Some(End::Goaway { reconnect_after }));
            }
            Message::Reject(reject) => return Ok(Some(rejected(reject))),
            // A session has one.
            Message::Welcome(_) => {}
        }
        Ok(None)
    }

    async fn acked(&self, ack: v1::FaultAck) {
        dies_at!("send.acked");
        let moved = self.shared.outbox.lock().expect("no holder of this lock panics").acked(&ack);
        if moved {
            self.shared.progress.lock().expect("no holder of this lock panics").acked(Instant::now());
        }
        self.shared.moved.notify_one();
        if let Ok(stream) = StreamId::parse(&ack.stream_id) {
            self.deps.journal.acked(stream, ack.persisted_upto).await;
        }
    }

    /// What the hand has no room for is refused without a trace and comes again.
    fn command(&self, command: v1::Command) -> Result<(), Error> {
        dies_at!("verify.received");
        let envelope_sha256 = hex::encode(Sha256::digest(&command.envelope));
        if self.deps.down.try_send(Down::Command(command.envelope)).is_ok() {
            return Ok(());
        }
        self.deps.metrics.inc(metrics::LINK_DROPPED, &[("reason", "hand busy"), ("lane", "command")]);
        self.answer(Up::CommandStatus(v1::CommandStatus {
            envelope_sha256,
            state: v1::CommandState::NotNow.into(),
            refusal: v1::RefusalCode::Busy.into(),
            reason: "the spoke's queue of commands is full".into(),
            at_unix_ms: clock::wall().unix_ms(),
            ..v1::CommandStatus::default()
        }))
    }

    async fn resync(&self, resync: v1::Resync) -> Result<(), Error> {
        self.deps.attachment.send_modify(|attachment| {
            attachment.hub_term = attachment.hub_term.max(resync.all_under_term);
            attachment.asked_term = attachment.asked_term.max(resync.all_under_term);
            attachment.snapshots_asked += u64::from(resync.snapshot);
        });
        // In a session nobody asks for them again: where there is no room it ends.
        if !resync.faults.is_empty() {
            self.deps.asked.try_send(resync.faults).map_err(|_| Error::LaneFull { lane: "faults asked for" })?;
        }
        if resync.command_ids.is_empty() {
            return Ok(());
        }
        self.deps.down.send(Down::Tell(resync.command_ids)).await.map_err(|_| Error::Ended)
    }

    fn verdict(&self, verdict: &v1::Verdict) {
        tracing::info!(node.name = %verdict.node, fault.id = %verdict.fault_key, outcome = %verdict.outcome, reason = %verdict.reason, "hub's verdict");
        if let (Ok(node), Some(reason)) = (NodeName::parse(&verdict.node), skip_reason(&verdict.outcome)) {
            self.deps.metrics.inc(metrics::SKIPPED, &[("node", node.as_str()), ("reason", &reason)]);
        }
    }

    fn answer(&self, message: Up) -> Result<(), Error> {
        self.control.try_send(message).map_err(|_| Error::LaneFull { lane: "control" })
    }
}

/// The outcome as a label: one word in one spelling, since a sentence in a label is a series each. What was acted on is no
/// skip: the hand counts it when it is done.
fn skip_reason(outcome: &str) -> Option<String> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let is_word = (1..=32).contains(&outcome.len()) && outcome.bytes().all(word);
    let reason = if is_word { outcome.to_ascii_lowercase() } else { "other".to_owned() };
    (reason != "acted").then_some(reason)
}
