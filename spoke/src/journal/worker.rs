//! The journal's thread. Takes what waits, writes it, syncs once, answers all: at once when idle, and under load one
//! sync carries whatever came while the one before ran.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use gpuheal_proto::ids::StreamId;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Chunk, Depth, Error, Head, RECORD_FAULTS_MAX, disk::Disk, tail::Tail};
use crate::clock;

/// Appends under one sync: at about 20 µs each they take 10 ms to write.
const BATCH_MAX: usize = 512;

/// What the thread is asked.
pub(super) enum Job {
    /// Write, sync, answer.
    Append { faults: Vec<Bytes>, held: Vec<(String, Bytes)>, reply: oneshot::Sender<Result<u64, Error>> },
    /// Write what is held; no answer.
    Hold { held: Vec<(String, Bytes)> },
    /// Which streams are there.
    Heads { reply: oneshot::Sender<Vec<(StreamId, u64)>> },
    /// A batch from a number on.
    Read { stream: StreamId, seq: u64, reply: oneshot::Sender<Result<Chunk, Error>> },
    /// The hub has these.
    Acked { stream: StreamId, upto: u64 },
    /// Take nothing more.
    Seal { reply: oneshot::Sender<Head> },
    /// Write the clean end and stop.
    Close { reply: oneshot::Sender<Result<(), Error>> },
}

/// An append that waits for the sync.
struct Waiting {
    first_seq: u64,
    reply: oneshot::Sender<Result<u64, Error>>,
}

/// Where the thread tells how things are.
pub(super) struct Told {
    pub(super) head: watch::Sender<Head>,
    pub(super) depth: watch::Sender<Depth>,
    pub(super) lost: watch::Sender<u64>,
    pub(super) given_up: watch::Sender<BTreeMap<String, u64>>,
}

/// The thread's state.
pub(super) struct Worker {
    disk: Disk,
    queue: mpsc::Receiver<Job>,
    told: Told,
    tail: Arc<Mutex<Tail>>,
    /// After a failed write or sync nobody knows what is on the disk: nothing more is taken.
    broken: Option<Error>,
    sealed: bool,
    found: u64,
}

impl Worker {
    pub(super) fn new(disk: Disk, queue: mpsc::Receiver<Job>, told: Told, tail: Arc<Mutex<Tail>>) -> Self {
        let found = disk.unacked();
        Self { disk, queue, told, tail, broken: None, sealed: false, found }
    }

    /// Until it is closed or nobody holds a handle.
    pub(super) fn run(mut self) {
        self.tell_depth();
        while let Some(job) = self.queue.blocking_recv() {
            let mut waiting = Vec::new();
            let mut closing = None;
            self.take(job, &mut waiting, &mut closing);
            while waiting.len() < BATCH_MAX && closing.is_none() {
                let Ok(job) = self.queue.try_recv() else { break };
                self.take(job, &mut waiting, &mut closing);
            }
            self.settle(waiting);
            if let Some(reply) = closing {
                let _ = reply.send(self.close());
                return;
            }
        }
    }

    fn take(&mut self, job: Job, waiting: &mut Vec<Waiting>, closing: &mut Option<oneshot::Sender<Result<(), Error>>>) {
        match job {
            Job::Append { faults, held, reply } => match self.append(faults, held) {
                Ok(first_seq) => waiting.push(Waiting { first_seq, reply }),
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            },
            Job::Hold { held } => {
                if let Err(error) = self.append(Vec::new(), held) {
                    tracing::debug!(%error, "what is held was not journaled");
                }
            }
            Job::Heads { reply } => {
                let _ = reply.send(self.disk.heads());
            }
            Job::Read { stream, seq, reply } => {
                let _ = reply.send(self.disk.read(&stream, seq));
            }
            Job::Acked { stream, upto } => {
                if self.disk.acked(&stream, upto, clock::boottime()) {
                    self.told.lost.send_modify(|lost| *lost += 1);
                }
            }
            Job::Seal { reply } => {
                self.sealed = true;
                let (stream, next_seq) = self.disk.head();
                let _ = reply.send(Head { stream, next_seq });
            }
            Job::Close { reply } => *closing = Some(reply),
        }
    }

    fn append(&mut self, mut faults: Vec<Bytes>, held: Vec<(String, Bytes)>) -> Result<u64, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.sealed {
            return Err(Error::Closed);
        }
        let (_, first) = self.disk.head();
        let alone = faults.is_empty();
        let now = clock::boottime();
        if !alone {
            dies_at!("journal.before-write");
        }
        // What was held goes with the last record: with it, all faults that it led to are there.
        while faults.len() > RECORD_FAULTS_MAX {
            let rest = faults.split_off(RECORD_FAULTS_MAX);
            self.write(std::mem::replace(&mut faults, rest), Vec::new(), now)?;
        }
        match self.write(faults, held, now) {
            // Without it a restart has no predecessor, which is safe; nothing is given up for it.
            Err(error @ Error::Full { .. }) if alone => tracing::debug!(%error, "what is held was not journaled"),
            written => written?,
        }
        let (stream, next_seq) = self.disk.head();
        self.told.head.send_replace(Head { stream, next_seq });
        Ok(first)
    }

    fn write(&mut self, faults: Vec<Bytes>, held: Vec<(String, Bytes)>, now: std::time::Duration) -> Result<(), Error> {
        let result = self.disk.append(faults.clone(), held, now);
        if let Err(error @ Error::Io { .. }) = &result {
            tracing::error!(%error, "journal is broken");
            self.broken = Some(error.clone());
        }
        result?;
        self.found += faults.len() as u64;
        let mut tail = self.tail.lock().expect("no holder of this lock panics");
        faults.into_iter().for_each(|fault| tail.push(fault));
        Ok(())
    }

    fn settle(&mut self, waiting: Vec<Waiting>) {
        if waiting.is_empty() {
            return self.tell_depth();
        }
        if self.disk.unacked() > 0 {
            dies_at!("journal.before-sync");
        }
        let synced = self.disk.sync().map_err(|error| Error::Io { what: "sync", kind: error.kind() });
        if let Err(error) = &synced {
            tracing::error!(%error, "journal is broken");
            self.broken = Some(error.clone());
        }
        if self.disk.unacked() > 0 {
            dies_at!("journal.synced");
        }
        self.tell_depth();
        for Waiting { first_seq, reply } in waiting {
            let _ = reply.send(synced.clone().map(|()| first_seq));
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None => self.disk.close().map_err(|error| Error::Io { what: "close", kind: error.kind() }),
        }
    }

    fn tell_depth(&self) {
        let depth =
            Depth { unacked: self.disk.unacked(), found: self.found, bytes: self.disk.bytes(), broken: self.broken.is_some() };
        self.told.depth.send_if_modified(|known| std::mem::replace(known, depth) != depth);
        let given_up = self.disk.given_up();
        self.told.given_up.send_if_modified(|known| {
            let changed = known != given_up;
            if changed {
                known.clone_from(given_up);
            }
            changed
        });
    }
}
