//! One commit of the batches of many spokes. What is at or below a stream's mark is dropped under its lock; a batch that
//! does not start right after it is answered with where to resume; what cannot be believed is kept raw and acked.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_hub_core::admit::{Admission, Sight};
use gpuheal_proto::{
    fault::Fault,
    ids::{ClusterId, FaultKey, NodeUid, StreamId},
    link::v1,
    time::Timestamp,
};
use prost::Message as _;
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use super::{Error, group::Submission};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    decide::{self, Issued},
    sign::Signer,
    store::{
        self, Labelled as _,
        fault::{Episode, faults_insert, faults_known, faults_merge},
        judgement::{NodeKey, judgements_ask, judgements_note},
        node::cluster_ensure,
        stream::{Advance, gap_insert, poison_insert, sessions_lost, streams_advance, streams_lock},
    },
};

/// What a commit did.
pub(super) struct Done {
    /// Up to where the stream of each submission is committed, in their order.
    pub(super) upto: Vec<u64>,
    /// Something is due to be judged.
    pub(super) asked: bool,
    /// What was judged here already came to this.
    pub(super) issued: Issued,
}

/// Nodes that are judged in the very transaction that took their faults: about 3 ms each. More are left to the workers,
/// so that a storm keeps nobody's ack waiting.
const JUDGED_MAX: usize = 4;

type Key = (ClusterId, FaultKey);

/// Nodes that are due to be judged.
#[derive(Default)]
struct Asked {
    /// Their rows are locked.
    locked: Vec<NodeKey>,
    /// Another holds their rows; an ask was left.
    held: Vec<NodeKey>,
}

impl Asked {
    const fn any(&self) -> bool {
        !self.locked.is_empty() || !self.held.is_empty()
    }

    /// Few enough to be judged at once, none of them in another's hands.
    fn few(&self) -> bool {
        self.held.is_empty() && (1..=JUDGED_MAX).contains(&self.locked.len())
    }
}

/// A stream in this commit.
struct Mark {
    from: u64,
    upto: u64,
}

/// What one cluster's audit entry says of a commit.
#[derive(Default)]
struct Tally {
    records: u64,
    poison: u64,
    gaps: u64,
    opened: Vec<String>,
    gained: Vec<String>,
    repeats: u64,
    streams: BTreeMap<String, (u64, u64)>,
}

/// Commits a group. With a signer, few nodes of one cluster are judged in the same transaction; when that fails nothing is
/// committed, and the caller comes again without one.
#[tracing::instrument(name = "hub.ingest", skip_all, fields(batches = group.len()))]
pub(super) async fn commit(pool: &PgPool, group: &[Submission], signer: Option<&Signer>) -> Result<Done, Error> {
    let mut tx = pool.begin().await.label("ingest.begin")?;
    sessions_check(&mut tx, group).await?;
    // A session proves that its cluster is there.
    let strangers = group.iter().filter(|submission| submission.from.session.is_none());
    for cluster in strangers.map(|submission| &submission.from.cluster).collect::<BTreeSet<_>>() {
        cluster_ensure(&mut tx, cluster).await?;
    }
    let (mut marks, now) = marks_lock(&mut tx, group).await?;
    let mut tallies = BTreeMap::<ClusterId, Tally>::new();
    let mut sights = BTreeMap::<Key, Sight>::new();
    for submission in group {
        take(&mut tx, submission, &mut marks, &mut tallies, &mut sights, now).await?;
    }
    let asked = admit(&mut tx, sights, &mut tallies, now).await?;
    let moved = marks.iter().filter(|(_, mark)| mark.upto > mark.from);
    let moved = moved.map(|((cluster, stream), mark)| Advance { cluster, stream, from: mark.from, to: mark.upto });
    streams_advance(&mut tx, &moved.collect::<Vec<_>>()).await?;
    let mut entries: Vec<(ClusterId, Entry)> =
        tallies.into_iter().map(|(cluster, tally)| (cluster.clone(), tally.entry(&cluster))).collect();
    let mut issued = None;
    if let Some(signer) = signer.filter(|_| asked.few())
        && let [(cluster, _)] = entries.as_slice()
    {
        let (cluster, entry) = (cluster.clone(), entries.remove(0).1);
        let nodes: Vec<NodeUid> = asked.locked.iter().map(|(_, node)| node.clone()).collect();
        issued = Some(decide::within(&mut tx, &cluster, &nodes, Some(signer), vec![entry]).await.map_err(Box::new)?);
    }
    let chains: Vec<(&str, &[Entry])> =
        entries.iter().map(|(cluster, entry)| (chain_of(cluster), std::slice::from_ref(entry))).collect();
    audit::append_all(&mut tx, &chains, now).await?;
    dies_at!("ingest.before-commit");
    tx.commit().await.label("ingest.commit")?;
    dies_at!("ingest.committed");
    let upto = |submission: &Submission| marks.get(&mark_key(submission)).map_or(0, |mark| mark.upto);
    Ok(Done { upto: group.iter().map(upto).collect(), asked: asked.any() && issued.is_none(), issued: issued.unwrap_or_default() })
}

fn mark_key(submission: &Submission) -> (ClusterId, StreamId) {
    (submission.from.cluster.clone(), submission.stream.clone())
}

async fn sessions_check(conn: &mut PgConnection, group: &[Submission]) -> Result<(), Error> {
    let owners: BTreeSet<_> = group
        .iter()
        .filter_map(|s| s.from.session.as_ref().map(|(replica, generation)| (&s.from.cluster, replica, *generation)))
        .collect();
    let sessions: Vec<_> = owners.iter().map(|(cluster, replica, generation)| (*cluster, replica.as_str(), *generation)).collect();
    let lost = sessions_lost(conn, &sessions).await?;
    match owners.into_iter().nth(lost.first().copied().unwrap_or(usize::MAX)) {
        Some((_, replica, generation)) => Err(store::Error::TakenOver { replica: replica.to_string(), generation }.into()),
        None => Ok(()),
    }
}

type Marks = BTreeMap<(ClusterId, StreamId), Mark>;

async fn marks_lock(conn: &mut PgConnection, group: &[Submission]) -> Result<(Marks, Timestamp), Error> {
    let streams: Vec<_> = group.iter().map(mark_key).collect::<BTreeSet<_>>().into_iter().collect();
    let (acked, now) = streams_lock(conn, &streams).await?;
    Ok((streams.into_iter().zip(acked.into_iter().map(|acked| Mark { from: acked, upto: acked })).collect(), now))
}

/// Takes from one submission what is new, and folds it into what the commit has seen.
async fn take(
    conn: &mut PgConnection,
    submission: &Submission,
    marks: &mut Marks,
    tallies: &mut BTreeMap<ClusterId, Tally>,
    sights: &mut BTreeMap<Key, Sight>,
    now: Timestamp,
) -> Result<(), Error> {
    let (cluster, stream) = (&submission.from.cluster, &submission.stream);
    let Some(mark) = marks.get_mut(&mark_key(submission)) else { return Ok(()) };
    if submission.first_seq > mark.upto.saturating_add(1) {
        return Ok(());
    }
    if let Some(gap) = submission.gap.as_ref().filter(|gap| gap.to_seq > mark.upto) {
        gap_insert(conn, cluster, stream, mark.upto + 1, Some(gap.to_seq), &gap.reason, &json!(gap.counts_by_class)).await?;
        let tally = tallies.entry(cluster.clone()).or_default();
        tally.gaps += 1;
        tally.moved(stream, mark.upto, gap.to_seq);
        mark.upto = gap.to_seq;
        return Ok(());
    }
    for (seq, wire) in (submission.first_seq..).zip(&submission.faults).filter(|(seq, _)| *seq > mark.upto) {
        let tally = tallies.entry(cluster.clone()).or_default();
        tally.records += 1;
        match believe(cluster, wire) {
            Ok(fault) => {
                let sight = Sight::of(fault, now);
                let key = (cluster.clone(), sight.fault.key);
                let sight = match sights.remove(&key) {
                    Some(before) => before.and(sight),
                    None => sight,
                };
                sights.insert(key, sight);
            }
            Err(why) => {
                tracing::warn!(cluster.id = %cluster, stream.id = %stream, spoke.seq = seq, error = why, "a fault record cannot be believed");
                tally.poison += 1;
                poison_insert(conn, cluster, stream, seq, &wire.encode_to_vec(), &why).await?;
            }
        }
        tally.moved(stream, seq - 1, seq);
    }
    let end = submission.first_seq.saturating_add(submission.faults.len() as u64);
    mark.upto = mark.upto.max(end.saturating_sub(1));
    Ok(())
}

/// A spoke speaks only for its own cluster: the key that it gives must be the one that its fault has there.
fn believe(cluster: &ClusterId, wire: &v1::Fault) -> Result<Fault, String> {
    let fault = Fault::try_from(wire.clone()).map_err(|error| error.to_string())?;
    let key = fault.key;
    fault.of_cluster(cluster).map_err(|derived| format!("its key {key} is not the one that it has in cluster {cluster}: {derived}"))
}

/// Stores what is new in the sights. What everybody knows takes no lock. A fault of which nothing was known changes nothing
/// that a judge can have read: its node is asked for without waiting for whoever judges it. For the rest the nodes' locks
/// come first, and what is known is read again under them. Returns the nodes that are due to be judged.
async fn admit(
    conn: &mut PgConnection,
    sights: BTreeMap<Key, Sight>,
    tallies: &mut BTreeMap<ClusterId, Tally>,
    now: Timestamp,
) -> Result<Asked, Error> {
    if sights.is_empty() {
        return Ok(Asked::default());
    }
    let keys: Vec<Key> = sights.keys().cloned().collect();
    let mut known: BTreeMap<Key, _> = faults_known(conn, &keys).await?.into_iter().collect();
    let tells = |key: &Key, sight: &Sight| matches!(sight.admit(known.get(key), now), Admission::Opens { .. } | Admission::Gains);
    let (news, repeats): (BTreeMap<_, _>, BTreeMap<_, _>) = sights.into_iter().partition(|(key, sight)| tells(key, sight));
    let node = |(key, sight): (&Key, &Sight)| (key.0.clone(), sight.fault.node.uid.clone());
    let changed: BTreeSet<NodeKey> = news.iter().filter(|(key, _)| known.contains_key(key)).map(node).collect();
    let added: Vec<NodeKey> = news.iter().map(node).collect::<BTreeSet<_>>().difference(&changed).cloned().collect();
    let mut locked: Vec<NodeKey> = changed.iter().cloned().collect();
    judgements_ask(conn, &locked, "faults").await?;
    let again: Vec<Key> = news.iter().filter(|sight| changed.contains(&node(*sight))).map(|(key, _)| key.clone()).collect();
    if !again.is_empty() {
        known.extend(faults_known(conn, &again).await?);
    }
    // Another's row of a fault that was new to both is met when it is inserted: then this commit is tried again.
    let held = judgements_note(conn, &added, "faults").await?;
    locked.extend(added.into_iter().filter(|node| !held.contains(node)));
    let (mut opens, mut merges) = (Vec::new(), Vec::new());
    for (key, sight) in news.into_iter().chain(repeats) {
        let tally = tallies.entry(key.0.clone()).or_default();
        let before = known.remove(&key);
        match (sight.admit(before.as_ref(), now), before) {
            (Admission::Opens { episode }, _) => {
                tally.opened.push(format!("{}#{episode}", key.1));
                opens.push(episode_of(key.0, episode, sight));
            }
            (Admission::Gains, Some(before)) => {
                tally.gained.push(format!("{}#{}", key.1, before.episode));
                merges.push(episode_of(key.0, before.episode, sight.onto(before)));
            }
            (Admission::Refreshes, Some(before)) => {
                tally.repeats += 1;
                merges.push(episode_of(key.0, before.episode, sight.onto(before)));
            }
            (Admission::Gains | Admission::Refreshes | Admission::Repeats, _) => tally.repeats += 1,
        }
    }
    faults_insert(conn, &opens, now).await?;
    faults_merge(conn, &merges, now).await?;
    Ok(Asked { locked, held })
}

fn episode_of(cluster: ClusterId, number: u32, sight: Sight) -> Episode {
    Episode {
        cluster,
        number,
        fault: sight.fault,
        onset: sight.onset,
        value: sight.value,
        count: sight.count,
        witnesses: sight.witnesses,
    }
}

impl Tally {
    fn moved(&mut self, stream: &StreamId, from: u64, to: u64) {
        let span = self.streams.entry(stream.to_string()).or_insert((from + 1, to));
        span.1 = to;
    }

    fn entry(self, cluster: &ClusterId) -> Entry {
        Entry {
            kind: Kind::FaultsIngested,
            actor: format!("spoke/{cluster}"),
            subject: format!("cluster/{cluster}"),
            incident: None,
            body: json!({
                "records": self.records, "opened": self.opened, "gained": self.gained, "repeats": self.repeats,
                "poison": self.poison, "gaps": self.gaps, "streams": self.streams,
            }),
        }
    }
}
