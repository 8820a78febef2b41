//! Both stores in step: each operation is done on both, both must answer alike, and both must hold the same after it.

use std::{sync::Arc, time::Duration};

use gpuheal_hub::{
    ingest::{Origin, Taken},
    link::hello::{Hello, Seen},
    sign::{Key, Signer},
    store::server::{Recognised, Witness},
};
use gpuheal_proto::{command::Command, envelope, ids::ClusterId, link::v1, time::Timestamp};
use gpuheal_sim::{
    keys,
    memory::Memory,
    mutation::Mutations,
    store::{Due, Error, Leader, Owner, Picture, Store},
};
use prost::Message as _;

use crate::postgres::Postgres;

/// Streams, and how far each is committed.
type Acked = Vec<(String, u64)>;

pub(crate) struct Pair {
    memory: Memory,
    postgres: Postgres,
    signer: Arc<Signer>,
    /// Epochs that the cancellations of the last delivery were signed under.
    pub(crate) cancel_terms: Vec<u64>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let mut postgres = Postgres::new();
        let memory = Memory::new(postgres.moment(), Mutations::default());
        let signer = Arc::new(Signer::new(Key::from_pem(&keys::pem()).unwrap(), 1));
        Self { memory, postgres, signer, cancel_terms: Vec::new() }
    }

    /// The operation on both, at one moment.
    fn both<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, act: impl Fn(&mut dyn Store) -> T) -> T {
        let real = act(&mut self.postgres);
        self.catch_up();
        let simulated = act(&mut self.memory);
        assert_eq!(simulated, real, "{what}: the simulated store answers otherwise than Postgres");
        real
    }

    /// The simulated clock goes on to the real one's moment, and by a millisecond at least: no two operations share one.
    fn catch_up(&mut self) {
        let moment = self.postgres.moment();
        let next = self.memory.now().after(Duration::from_millis(1));
        self.memory.at(moment.max(next));
    }

    /// What both hold, once they are seen to hold the same.
    pub(crate) fn holds(&mut self, after: &str) -> Picture {
        let known = |mut picture: Picture| {
            // What was put on streams is noted by the hub's own stage, which is not behind the seam.
            let noted = |line: &String| !line.ends_with("command_sent") && !line.ends_with("cancel_sent");
            picture.audit = picture.audit.into_iter().filter(noted).map(|line| kind_of(&line)).collect();
            picture
        };
        let (real, simulated) = (known(self.postgres.picture()), known(self.memory.picture()));
        assert_eq!(simulated, real, "after {after}");
        real
    }

    pub(crate) fn elapse(&mut self, seconds: u64) {
        let span = Duration::from_secs(seconds);
        self.postgres.elapse(span);
        self.catch_up();
    }

    pub(crate) fn policy(&mut self, yaml: &str) {
        self.both("policy", |store| store.policy(yaml)).unwrap();
    }

    pub(crate) fn stop(&mut self, reason: Option<&str>) {
        self.both("stop", |store| store.stop(reason)).unwrap();
    }

    /// Attaches, and gives the session, whether the term was raised and where the streams go on.
    pub(crate) fn attach(&mut self, hello: &Hello) -> Result<(Owner, bool, Acked), Error> {
        let attached = self.both("attach", |store| {
            let attached = store.attach(hello, "hub-0")?;
            let mut acked = attached.acked;
            acked.sort();
            Ok::<_, Error>((attached.generation, attached.term_raised, acked, attached.hub_term, attached.taken_over))
        })?;
        let owner = Owner { cluster: hello.cluster.clone(), replica: hello.replica.clone(), generation: attached.0 };
        Ok((owner, attached.1, attached.2))
    }

    pub(crate) fn lead(&mut self, owner: &Owner, lease: Option<u64>) -> Result<bool, Error> {
        self.lead_having_seen(owner, lease, Seen::default())
    }

    pub(crate) fn lead_having_seen(&mut self, owner: &Owner, lease: Option<u64>, says: Seen) -> Result<bool, Error> {
        self.both("lead", |store| store.lead(owner, lease, says))
    }

    /// A hub that has seen the server before, or one that has not, looks at it: goes it on, and was the term raised?
    pub(crate) fn look(&mut self, hub: &str, seen: &mut [Option<Witness>; 2]) -> Recognised {
        let [of_real, of_simulated] = seen;
        let real = self.postgres.recognise(hub, of_real).unwrap();
        self.catch_up();
        let simulated = self.memory.recognise(hub, of_simulated).unwrap();
        let words = |recognised: &Recognised| match recognised {
            Recognised::MayHaveLost { term, .. } => format!("may have lost, {term}"),
            other => format!("{other:?}"),
        };
        assert_eq!(words(&simulated), words(&real), "how a run of the server is taken");
        real
    }

    /// The server is started anew, and goes on where it was.
    pub(crate) fn restarts(&mut self) {
        self.postgres.restarts();
        self.memory.restarts();
    }

    pub(crate) fn detach(&mut self, owner: &Owner) {
        self.both("detach", |store| store.detach(owner));
    }

    pub(crate) fn owned(&mut self, owner: &Owner) -> bool {
        self.both("owned", |store| store.owned(owner, None).is_some())
    }

    /// Whether it still is after it was noted; with `lost`, in a database that knows nothing of that.
    pub(crate) fn owned_since(&mut self, owner: &Owner, lost: bool) -> bool {
        let hour = std::time::Duration::from_secs(3600);
        self.both("owned", |store| {
            let noted = store.owned(owner, None).expect("it is attached");
            store.owned(owner, Some(if lost { noted.after(hour) } else { noted })).is_some()
        })
    }

    pub(crate) fn faults(&mut self, from: &Owner, batch: &v1::FaultBatch) -> Result<u64, Error> {
        self.both("faults", |store| store.faults(from, batch.clone()).map(|ack| ack.persisted_upto))
    }

    pub(crate) fn gap(&mut self, from: &Owner, gap: &v1::Gap) -> Result<u64, Error> {
        self.both("gap", |store| store.gap(from, gap.clone()).map(|ack| ack.persisted_upto))
    }

    /// A state of this very moment.
    pub(crate) fn state(&mut self, cluster: &ClusterId, lease: u64, seq: u64, body: v1::cluster_state::Body) {
        self.state_of(&cluster.into(), lease, seq, body).unwrap();
    }

    /// The same over a session, or over none.
    pub(crate) fn state_of(&mut self, from: &Origin, lease: u64, seq: u64, body: v1::cluster_state::Body) -> Result<Taken, Error> {
        let as_of = self.postgres.moment();
        let state = v1::ClusterState {
            lease_transitions: lease,
            seq,
            as_of_unix_ms: as_of.unix_ms(),
            // A spoke cannot always say it: each fifth state does not.
            told_upto_unix_ms: if seq.is_multiple_of(5) { 0 } else { as_of.unix_ms() },
            // What it says of an older epoch is as good as nothing.
            all_told_term: self.memory.hub_term - u64::from(seq.is_multiple_of(3)),
            body: Some(body),
        };
        self.both("state", |store| store.state(from, state.clone()))
    }

    pub(crate) fn evidence(&mut self, cluster: &ClusterId, items: &[v1::Evidence]) {
        self.evidence_of(&cluster.into(), items).unwrap();
    }

    pub(crate) fn evidence_of(&mut self, from: &Origin, items: &[v1::Evidence]) -> Result<(), Error> {
        self.both("evidence", |store| store.evidence(from, v1::EvidenceBatch { items: items.to_vec() }))
    }

    /// Judges until nothing is due, then signs.
    pub(crate) fn decide(&mut self) {
        let judged = |store: &mut dyn Store| {
            let mut all = 0;
            loop {
                match store.judge().unwrap() {
                    0 => return all,
                    more => all += more,
                }
            }
        };
        self.both("judge", judged);
        let signer = Arc::clone(&self.signer);
        self.both("sign", |store| store.sign(&signer)).unwrap();
    }

    /// What is due, by command number and whether it cancels; noted as sent on each with its own bytes.
    pub(crate) fn deliver(&mut self, owner: &Owner, lease: u64) -> Vec<String> {
        let leader = [Leader { owner: owner.clone(), lease_transitions: lease }];
        let real = self.postgres.due(&leader).unwrap();
        self.catch_up();
        let simulated = self.memory.due(&leader).unwrap();
        let words = |due: &[Due]| -> Vec<String> {
            due.iter().map(|due| format!("{} {}", due.cluster, if due.cancels { "cancel" } else { "command" })).collect()
        };
        assert_eq!(words(&simulated), words(&real), "what is due");
        assert_eq!(cancel_terms(&simulated), cancel_terms(&real), "the epochs that cancellations were signed under");
        self.cancel_terms = cancel_terms(&real);
        self.postgres.sent(&real).unwrap();
        self.memory.sent(&simulated).unwrap();
        words(&real)
    }

    /// Of how many commands the leader is asked what became of them.
    pub(crate) fn unheard(&mut self, owner: &Owner, lease: u64) -> usize {
        let leader = [Leader { owner: owner.clone(), lease_transitions: lease }];
        self.both("unheard", |store| store.unheard(&leader).map(|asked| asked.len())).unwrap()
    }

    /// The faults of which the leader is asked how they stand, as both stores have them: times of each store's own apart.
    pub(crate) fn untold(&mut self, owner: &Owner, lease: u64) -> Vec<v1::FaultAsked> {
        let leader = [Leader { owner: owner.clone(), lease_transitions: lease }];
        self.both("untold", |store| {
            store.untold(&leader).map(|mut asked| {
                asked.iter_mut().flat_map(|asked| asked.fault.as_mut()).for_each(|fault| fault.observed_unix_ms = 0);
                asked.sort_by(|one, other| {
                    one.fault.as_ref().map(|f| &f.fault_key).cmp(&other.fault.as_ref().map(|f| &f.fault_key))
                });
                asked
            })
        })
        .unwrap()
    }

    /// A status of the command of this number in the cluster: ids differ between stores, since they have their moments in
    /// them.
    pub(crate) fn settle(&mut self, cluster: &ClusterId, cmd_seq: u64, status: &v1::CommandStatus) -> bool {
        self.settle_of(&cluster.into(), cmd_seq, status).unwrap()
    }

    pub(crate) fn settle_of(&mut self, from: &Origin, cmd_seq: u64, status: &v1::CommandStatus) -> Result<bool, Error> {
        let cluster = &from.cluster;
        let real = self.postgres.command(cluster, cmd_seq);
        let simulated = self.memory.clusters[cluster].commands.values().find(|command| command.cmd_seq == cmd_seq);
        let simulated = simulated.map(|command| command.planned.id.to_string());
        let of = |id: Option<String>| v1::CommandStatus { command_id: id.unwrap_or_default(), ..status.clone() };
        let told = |ack: Option<v1::StatusAck>| ack.map(|ack| (ack.status_seq, ack.undo_kept, ack.hub_term));
        let real = self.postgres.settle(from, of(real), Some(&self.signer)).map(told);
        self.catch_up();
        let simulated = self.memory.settle(from, of(simulated), Some(&self.signer)).map(told);
        assert_eq!(simulated, real, "the answer to a status");
        real.map(|told| told.is_some_and(|(_, kept, _)| kept))
    }

    /// A status that shows its command as it was signed, by this hub or by somebody else: of one that a database lost.
    pub(crate) fn show(&mut self, command: &Command, ours: bool, status: &v1::CommandStatus) -> bool {
        let pem = if ours { keys::pem() } else { keys::his_pem() };
        let envelope = Signer::new(Key::from_pem(&pem).unwrap(), 1).command(command).unwrap().envelope;
        let status = v1::CommandStatus { command_id: command.id.to_string(), envelope: envelope.into(), ..status.clone() };
        let signer = Arc::clone(&self.signer);
        let told = |store: &mut dyn Store| store.settle(&(&command.audience).into(), status.clone(), Some(&signer)).unwrap();
        self.both("show", |store| told(store).map(|ack| ack.undo_kept)).is_some_and(|kept| kept)
    }

    /// The moment that both are at.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.postgres.moment()
    }

    pub(crate) fn sweep(&mut self) -> u64 {
        self.both("sweep", |store| store.sweep()).unwrap()
    }
}

fn cancel_terms(due: &[Due]) -> Vec<u64> {
    let term = |due: &Due| {
        let payload = envelope::parse(&due.envelope).unwrap().payload;
        v1::CancelBody::decode(payload).unwrap().hub_term
    };
    due.iter().filter(|due| due.cancels).map(term).collect()
}

/// `chain number kind` without the number: notes of sending have theirs in between.
fn kind_of(line: &str) -> String {
    let mut words = line.split(' ');
    let chain = words.next().unwrap_or_default();
    format!("{chain} {}", words.next_back().unwrap_or_default())
}
