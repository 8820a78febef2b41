//! The link: Hello, Welcome, numbered batches within the credit, heartbeats, and the end of a silent stream.

use std::time::Duration;

use gpuheal_proto::{
    limits,
    link::v1::{self, attach_request::Message as Up, attach_response::Message as Down},
    time::Timestamp,
};
use gpuheal_spoke::{healaction, send::Outbox};

use super::{Out, Spoke};
use crate::{hub_time::Reading, mutation::Mutation};

/// A Welcome must come in this time after Hello.
const WELCOME_WITHIN: Duration = Duration::from_secs(20);
/// Faults in flight this long without an ack: the session is dead.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
/// A session that lived this long was healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// A stream that was welcomed.
#[derive(Debug)]
pub struct Session {
    /// By the hub's counting.
    pub generation: u64,
    outbox: Outbox,
    began: Duration,
    heard: Duration,
    acked: Duration,
    beat: Duration,
}

impl Spoke {
    pub(super) fn link_tick(&mut self) {
        let boot = self.now.boot;
        let Some(session) = &self.session else {
            match self.dialled_at {
                Some(at) if boot.saturating_sub(at) > WELCOME_WITHIN => self.hang_up(None),
                None if boot >= self.dial_at => {
                    self.dialled_at = Some(boot);
                    self.out.push(Out::Dial);
                }
                Some(_) | None => {}
            }
            return;
        };
        let stuck = session.outbox.in_flight() > 0 && boot.saturating_sub(session.acked) > PROGRESS_WITHIN;
        if boot.saturating_sub(session.heard) > limits::DEAD_AFTER || stuck {
            return self.hang_up(None);
        }
        if boot.saturating_sub(session.beat) >= limits::HEARTBEAT {
            self.beat();
        }
        self.send_faults();
    }

    /// The first message of a stream.
    pub fn hello(&mut self) -> v1::Hello {
        let journals = self.disk.heads().into_iter().map(|(id, next_seq)| v1::JournalHead { stream_id: id.to_string(), next_seq });
        let fence = self.fence.unwrap_or_default().1;
        let seen = healaction::highest(self.cache.actions.values().map(|action| &**action));
        v1::Hello {
            cluster_id: self.me.cluster.to_string(),
            kube_system_uid: self.me.kube_system_uid.clone(),
            replica_id: self.me.replica.to_string(),
            boot_id: self.boot_id.clone(),
            version: "sim".to_owned(),
            journals: journals.collect(),
            trust_version: self.me.trust.version,
            hub_term_seen: fence.hub_term,
            hub_term_heard: self.hub_term,
            cmd_seq_seen: seen.0,
            cmd_id_seen: seen.1.to_owned(),
            open_commands: self.open_actions().map(|action| action.id().to_owned()).collect(),
            wall_unix_ms: self.now.wall.unix_ms(),
            lease_transitions: self.proof(),
            ..v1::Hello::default()
        }
    }

    /// The stream is gone, or is to go.
    pub fn hang_up(&mut self, wait: Option<Duration>) {
        let boot = self.now.boot;
        if let Some(session) = self.session.take()
            && boot.saturating_sub(session.began) >= HEALTHY_AFTER
        {
            self.failures = 0;
        }
        if self.dialled_at.take().is_some() {
            self.out.push(Out::Hang);
        }
        let span = limits::RECONNECT_BASE.saturating_mul(1 << self.failures.min(16)).min(limits::RECONNECT_MAX);
        let jitter = self.chance.ms(0, u64::try_from(span.as_millis()).unwrap_or(0));
        self.failures += 1;
        self.dial_at = boot + wait.map_or(jitter, |wait| wait.max(jitter));
        // Statuses for a detached link are dropped: they are told again at the next session.
        self.statuses.clear();
    }

    /// A message from the hub.
    pub fn down(&mut self, message: Down) {
        let boot = self.now.boot;
        if let Some(session) = &mut self.session {
            session.heard = boot;
        }
        match message {
            Down::Welcome(welcome) => self.welcomed(&welcome),
            Down::Reject(reject) => self.hang_up(Some(Duration::from_millis(reject.retry_after_ms.into()))),
            Down::FaultAck(ack) => {
                self.disk.acked(&ack.stream_id, ack.persisted_upto, boot);
                if let Some(session) = &mut self.session
                    && session.outbox.acked(&ack)
                {
                    session.acked = boot;
                }
                self.send_faults();
            }
            Down::Command(command) => self.command(command.envelope.to_vec(), None),
            Down::Cancel(cancel) => self.cancel(&cancel.envelope),
            Down::StatusAck(ack) => self.status_acked(&ack),
            Down::Resync(resync) => {
                self.hub_term = self.hub_term.max(resync.all_under_term);
                self.wanted.snapshots += u64::from(resync.snapshot);
                if resync.all_under_term > self.wanted.term {
                    self.wanted.term = resync.all_under_term;
                    self.tell_all_standing();
                    self.told.owed_by_leader = self.reign().is_none();
                }
                self.take_up(resync.faults);
                self.asked.extend(resync.command_ids);
                self.report_again();
                self.answer_asked();
                self.state_tick();
            }
            Down::Goaway(goaway) => self.hang_up(Some(Duration::from_millis(goaway.reconnect_after_ms.into()))),
            Down::Settings(_) | Down::ProcessResult(_) | Down::Verdict(_) | Down::Heartbeat(_) | Down::Throttle(_) => {}
        }
    }

    fn welcomed(&mut self, welcome: &v1::Welcome) {
        let boot = self.now.boot;
        let rtt = boot.saturating_sub(self.dialled_at.unwrap_or(boot));
        self.clock = Some(Reading::of(Timestamp::from_unix_ms(welcome.server_time_unix_ms), rtt, boot));
        for point in &welcome.resume {
            if let Some(upto) = point.from_seq.checked_sub(1).filter(|upto| *upto > 0) {
                self.disk.acked(&point.stream_id, upto, boot);
            }
        }
        let outbox = Outbox::resume(&self.disk.heads(), &welcome.resume, welcome.credit);
        self.hub_term = self.hub_term.max(welcome.hub_term);
        self.wanted = super::Wanted::default();
        let generation = welcome.session_generation;
        self.session = Some(Session { generation, outbox, began: boot, heard: boot, acked: boot, beat: boot });
        self.say(format!("attached, generation {generation}, term {}", welcome.hub_term));
        self.beat();
        self.asked.clear();
        self.report_again();
        self.state_tick();
        self.send_faults();
    }

    /// Whatever may be sent now.
    pub(super) fn send_faults(&mut self) {
        let boot = self.now.boot;
        loop {
            let Some(session) = &mut self.session else { return };
            let before = session.outbox.in_flight();
            let mut sent = None;
            for (stream, seq, room) in session.outbox.wanted() {
                let Some(chunk) = self.disk.read(&stream, seq) else { continue };
                sent = session.outbox.taken(&stream, chunk, room);
                if sent.is_some() {
                    break;
                }
            }
            if before == 0 {
                session.acked = boot;
            }
            match sent {
                Some(message) => self.out.push(Out::Up(message)),
                None => return,
            }
        }
    }

    /// The proof of leadership, once all that the cluster has seen is known here.
    fn proof(&self) -> Option<u64> {
        let unseen = self.me.mutations.has(Mutation::ProvesUnseen);
        self.reign().filter(|_| unseen || (self.cache.listed && self.fence.is_some()))
    }

    pub(super) fn beat(&mut self) {
        let seen = healaction::highest(self.cache.actions.values().map(|action| &**action));
        let beat = v1::Heartbeat {
            lease_transitions: self.proof(),
            hub_term_seen: self.fence.unwrap_or_default().1.hub_term,
            cmd_seq_seen: seen.0,
            cmd_id_seen: seen.1.to_owned(),
            ..v1::Heartbeat::default()
        };
        self.proof_told = beat.lease_transitions;
        if let Some(session) = &mut self.session {
            session.beat = self.now.boot;
            self.out.push(Out::Up(Up::Heartbeat(beat)));
        }
    }

    pub(super) fn beat_if_news(&mut self) {
        if self.proof() != self.proof_told {
            self.beat();
        }
    }
}
