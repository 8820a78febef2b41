//! What a hub sees of a journal that fills, loses its session and its process: each number once and in order, as the fault that
//! it was given to or in a gap; all of it in the end; and a word to tell again what stands, whenever a gap was told.

use std::{collections::VecDeque, sync::Mutex};

use proptest::prelude::*;
use v1::attach_request::Message;

use super::*;
use crate::send::{self, Outbox};

const LIMITS: Limits = Limits { bytes_max: 6 << 10, segment_bytes: 700, keep_acked: Duration::ZERO };
const CREDIT: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    Append(u8, u8),
    Send(u8),
    Commit(u8),
    Ack(u8),
    Reconnect,
    CloseAndOpen,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_u8..6, 0_u8..3).prop_map(|(count, kind)| Step::Append(count, kind)),
        4 => (1_u8..6).prop_map(Step::Send),
        4 => (1_u8..6).prop_map(Step::Commit),
        3 => (1_u8..6).prop_map(Step::Ack),
        1 => Just(Step::Reconnect),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::Crash),
    ]
}

/// What the hub has of a stream: each number's fault, or that it is lost.
type Committed = BTreeMap<String, Vec<Option<v1::Fault>>>;

struct World {
    dir: tempfile::TempDir,
    journal: Option<Journal>,
    outbox: Mutex<Outbox>,
    up: VecDeque<Message>,
    down: VecDeque<v1::FaultAck>,
    given: BTreeMap<String, Vec<v1::Fault>>,
    committed: Committed,
    /// A gap was committed since the process began.
    gap: bool,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), LIMITS).await;
        let (up, down, given, committed) = Default::default();
        let mut world = Self { dir, journal: Some(journal), outbox: Mutex::default(), up, down, given, committed, gap: false };
        world.reconnect().await;
        world
    }

    fn journal(&self) -> &Journal {
        self.journal.as_ref().expect("it is open between steps")
    }

    async fn reconnect(&mut self) {
        (self.up, self.down) = Default::default();
        let heads = self.journal().heads().await.unwrap();
        let mut points = Vec::new();
        for (stream, _) in &heads {
            let upto = self.committed.get(stream.as_str()).map_or(0, Vec::len) as u64;
            points.push(v1::ResumePoint { stream_id: stream.to_string(), from_seq: upto + 1 });
            self.journal().acked(stream.clone(), upto).await;
        }
        self.outbox = Mutex::new(Outbox::resume(&heads, &points, CREDIT));
    }

    async fn begin_again(&mut self) {
        self.journal = None;
        self.journal = Some(open(self.dir.path(), LIMITS).await.0);
        self.gap = false;
        self.reconnect().await;
    }

    async fn append(&mut self, count: u8, kind: u8) -> Result<(), TestCaseError> {
        let stream = self.journal().head().borrow().stream.to_string();
        let nth = self.given.values().map(Vec::len).sum::<usize>();
        let (class, code) = [(FaultClass::Xid, "31"), (FaultClass::Alert, "GpuOdd"), (FaultClass::Xid, "79")][usize::from(kind)];
        let one = |n: u8| Fault { class, detail: format!("the {}th", nth + usize::from(n)), ..fault(code) };
        let faults: Vec<_> = (0..count).map(one).collect();
        match self.journal().append(&faults, vec![]).await {
            Ok(first) => {
                let given = self.given.entry(stream).or_default();
                prop_assert_eq!(first, given.len() as u64 + 1);
                given.extend(faults.iter().map(v1::Fault::from));
            }
            Err(error) => prop_assert!(matches!(error, Error::Full { .. }), "{}", error),
        }
        Ok(())
    }

    async fn send(&mut self) -> bool {
        let message = send::next(&self.outbox, self.journal()).await.unwrap();
        let sent = message.is_some();
        self.up.extend(message);
        sent
    }

    /// The hub takes one message: what it has is passed over, a hole is never in front of it.
    fn commit(&mut self) -> Result<bool, TestCaseError> {
        let Some(message) = self.up.pop_front() else { return Ok(false) };
        let (stream_id, first, entries): (_, _, Vec<Option<v1::Fault>>) = match message {
            Message::FaultBatch(batch) => (batch.stream_id, batch.first_seq, batch.faults.into_iter().map(Some).collect()),
            Message::Gap(gap) => {
                self.gap = true;
                (gap.stream_id, gap.from_seq, (gap.from_seq..=gap.to_seq).map(|_| None).collect())
            }
            other => return Err(TestCaseError::fail(format!("no such message: {other:?}"))),
        };
        let given = &self.given[&stream_id];
        let committed = self.committed.entry(stream_id.clone()).or_default();
        prop_assert!(first <= committed.len() as u64 + 1, "a hole before {}", first);
        for (seq, entry) in (usize::try_from(first).unwrap()..).zip(entries) {
            if seq <= committed.len() {
                continue;
            }
            prop_assert!(seq <= given.len(), "number {} was never given", seq);
            match &entry {
                Some(fault) => prop_assert_eq!(fault, &given[seq - 1], "number {} is what it was", seq),
                None => prop_assert_ne!(&given[seq - 1].code, "79", "what may be P0 is kept"),
            }
            committed.push(entry);
        }
        let persisted_upto = committed.len() as u64;
        self.down.push_back(v1::FaultAck { stream_id, persisted_upto, credit: CREDIT, resume: false });
        Ok(true)
    }

    async fn ack(&mut self) -> bool {
        let Some(ack) = self.down.pop_front() else { return false };
        self.outbox.lock().unwrap().acked(&ack);
        self.journal().acked(StreamId::parse(&ack.stream_id).unwrap(), ack.persisted_upto).await;
        true
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append(count, kind) => self.append(count, kind).await?,
            Step::Send(times) => {
                for _ in 0..times {
                    self.send().await;
                }
            }
            Step::Commit(times) => {
                for _ in 0..times {
                    self.commit()?;
                }
            }
            Step::Ack(times) => {
                for _ in 0..times {
                    self.ack().await;
                }
            }
            Step::Reconnect => self.reconnect().await,
            Step::CloseAndOpen => {
                self.journal().close().await.unwrap();
                self.begin_again().await;
            }
            Step::Crash => self.begin_again().await,
        }
        Ok(())
    }

    /// Nothing more happens but that the hub works: then it has everything.
    async fn come_to_rest(&mut self) -> Result<(), TestCaseError> {
        while self.send().await || self.commit()? || self.ack().await {}
        for (stream, given) in &self.given {
            prop_assert_eq!(self.committed.get(stream).map_or(0, Vec::len), given.len(), "all of {} is there", stream);
        }
        self.journal().heads().await.unwrap();
        prop_assert!(!self.gap || *self.journal().lost().borrow() > 0, "a gap was told, so what stands is to be told again");
        let nothing_waits = async { self.journal().depth().wait_for(|depth| depth.unacked == 0).await.is_ok() };
        prop_assert!(tokio::time::timeout(Duration::from_secs(120), nothing_waits).await.unwrap_or(false), "all is acked");
        Ok(())
    }
}

proptest! {
    // Each case is some dozens of writes that are synced.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hub_sees_every_number_once_and_in_order_and_all_of_them_in_the_end(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.take(step).await?;
            }
            world.come_to_rest().await
        })?;
    }
}
