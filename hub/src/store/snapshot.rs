//! All that a decision looks at, read by one transaction that holds the node's lock.

mod rows;

use std::{collections::BTreeMap, time::Duration};

use gpuheal_hub_core::{
    budget::{Rate, RateState},
    cooldown::{Cooldown, CooldownState},
    incident::IncidentState,
    policy::{Narrowing, Policy},
    snapshot::{Cluster, Incident, KnownCommand, KnownFault, Mark, Node, Observer, Request, Snapshot},
};
use gpuheal_proto::{
    command::Undo,
    fault::NodeRef,
    ids::{ClusterId, FaultKey, IncidentId, NodeName, NodeUid},
    time::Timestamp,
    words::Level,
};
use sqlx::PgConnection;

use super::{
    Error, Labelled as _,
    budget::Guards,
    moment::{from_db, to_db},
    natural, read,
};
use rows::{ClusterRow, CommandRow, CooldownRow, FaultRow, IncidentRow, NodeRow, StoryRow};

/// What all nodes of one cluster share in one transaction.
#[derive(Clone, Debug)]
pub struct Surroundings {
    cluster: Cluster,
    as_of: Timestamp,
    breaker: Duration,
    /// Nodes that a mark takes out and no hold counts yet, in this cluster.
    unheld: u32,
    /// The same of the fleet, with what other clusters may have out that this database does not know of.
    fleet_unheld: u32,
    epoch: Option<u64>,
}

impl Surroundings {
    /// As read, for a policy: a rate that nobody has touched is full.
    #[must_use]
    pub fn of(told: Told, cluster: &ClusterId, narrowing: Option<Narrowing>, policy: &Policy) -> Self {
        let now = told.now();
        let row = told.0;
        // The moment that the state describes, not that of its receipt, and no heartbeat: a mark that was made since is not in it.
        let state_at = row.state_as_of.filter(|_| row.taken_over).map(from_db);
        let rate = |rate: Rate, tokens: Option<i64>, at: Option<chrono::DateTime<chrono::Utc>>| {
            let stored = tokens.zip(at).map(|(tokens, at)| RateState { milli_tokens: natural(tokens), at: from_db(at) });
            stored.unwrap_or_else(|| rate.full(now))
        };
        let rates = &policy.settings.rates;
        // The epoch has risen, and they have not shown since what they have: each counts at its full budget.
        let theirs = row.adopting_nodes.unwrap_or_default().into_iter().zip(row.adopting_out.unwrap_or_default());
        let unknown =
            |(nodes, out): (i64, i32)| policy.settings.budgets.cluster.allowed(count(nodes)).saturating_sub(count(out.into()));
        let adopting = theirs.map(unknown).fold(0, u32::saturating_add);
        let (unheld, fleet_unheld) = (count(row.unheld), count(row.fleet_unheld).saturating_add(adopting));
        let shared = Cluster {
            id: cluster.clone(),
            gpu_nodes: count(row.gpu_nodes),
            out: count(row.out.into()).saturating_add(unheld),
            fleet_gpu_nodes: count(row.fleet_gpu_nodes),
            fleet_out: count(row.fleet_out.into()).saturating_add(fleet_unheld),
            fleet_adopting: adopting,
            rate: rate(rates.cluster, row.tokens, row.filled_at),
            fleet_rate: rate(rates.fleet, row.fleet_tokens, row.fleet_filled_at),
            narrowing,
            observer: Observer { state_at, told_upto: row.told_upto.filter(|_| row.taken_over).map(from_db) },
            fleet_stop: row.stop_reason,
            newly_suspect: 0,
        };
        let as_of = row.state_as_of.map_or(Timestamp::EPOCH, from_db);
        let epoch = row.epoch.map(natural);
        Self { cluster: shared, as_of, breaker: policy.settings.breaker.window, unheld, fleet_unheld, epoch }
    }

    /// The epoch of the database by which it was read; none in a run of the server that no hub has recognised.
    #[must_use]
    pub const fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Takes over what the guards say under their lock.
    pub const fn guarded(&mut self, guards: &Guards) {
        self.cluster.out = guards.out.saturating_add(self.unheld);
        self.cluster.fleet_out = guards.fleet_out.saturating_add(self.fleet_unheld);
        self.cluster.rate = guards.rate;
        self.cluster.fleet_rate = guards.fleet_rate;
    }

    /// Shows a snapshot what was read again. All else in it is under the node's own lock.
    pub fn retell(&self, snapshot: &mut Snapshot) {
        let (now, then) = (&self.cluster, &mut snapshot.cluster);
        (then.out, then.fleet_out, then.rate, then.fleet_rate) = (now.out, now.fleet_out, now.rate, now.fleet_rate);
    }
}

/// What the database tells of a cluster in one statement, before the policy has spoken.
#[derive(Debug)]
pub struct Told(ClusterRow);

impl Told {
    /// Revision and digest of the policy in force.
    #[must_use]
    pub fn policy(&self) -> Option<(u64, String)> {
        self.0.revision.map(natural).zip(self.0.digest.clone())
    }

    /// The text of the cluster owner's settings.
    #[must_use]
    pub fn config(&self) -> &str {
        &self.0.config_yaml
    }

    /// GPU nodes of the cluster, and of the fleet.
    #[must_use]
    pub const fn gpu_nodes(&self) -> (i64, i64) {
        (self.0.gpu_nodes, self.0.fleet_gpu_nodes)
    }

    /// The database's clock when it was asked.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        from_db(self.0.now)
    }
}

/// Reads what all nodes of a cluster share, takes no lock. A cluster that is not known has nothing and is nothing. A mark that is shown and
/// has no hold is out all the same: a restored database finds such marks when it judges their nodes, and must not give their places
/// to a node that it judges first. In a run of the server that no hub has recognised no cluster's state is whole. One that was shown before its node's incident was closed is a mark that the release took off.
///
/// # Errors
/// When the database fails or a row cannot be read.
pub async fn surroundings_load(conn: &mut PgConnection, cluster: &ClusterId) -> Result<Told, Error> {
    let row = sqlx::query_as(
        "SELECT COALESCE(c.config_yaml, '') AS config_yaml, c.state_as_of, c.told_upto, h.stop_reason, \
         COALESCE(c.taken_over_term = h.epoch, false) AS taken_over, NULLIF(h.epoch, 9223372036854775807) AS epoch, \
         COALESCE((SELECT z.gpu_nodes FROM cluster_sizes z WHERE z.cluster_id = $1), 0)::bigint AS gpu_nodes, \
         COALESCE((SELECT sum(z.gpu_nodes) FROM cluster_sizes z), 0) AS fleet_gpu_nodes, \
         COALESCE(b.out, 0) AS out, COALESCE(f.out, 0) AS fleet_out, r.milli_tokens AS tokens, r.filled_at, \
         u.unheld, u.fleet_unheld, w.adopting_nodes, w.adopting_out, s.milli_tokens AS fleet_tokens, s.filled_at AS fleet_filled_at, p.revision, p.digest, clock_timestamp() AS now \
         FROM (SELECT stop_reason, CASE WHEN recognised_run <> server_run() THEN 9223372036854775807 ELSE hub_term END AS epoch FROM hub_state LIMIT 1) h LEFT JOIN clusters c ON c.cluster_id = $1 \
         LEFT JOIN budgets b ON b.cluster_id = $1 AND b.scope = 'cluster' LEFT JOIN budgets f ON f.cluster_id = '' AND f.scope = 'fleet' \
         LEFT JOIN rate_buckets r ON r.cluster_id = $1 AND r.scope = 'cluster' \
         LEFT JOIN rate_buckets s ON s.cluster_id = '' AND s.scope = 'fleet' \
         CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE n.cluster_id = $1) AS unheld, count(*) AS fleet_unheld FROM nodes n \
              WHERE n.gone_at IS NULL AND (n.labelled OR n.tainted OR n.cordoned_by_us) \
              AND NOT EXISTS (SELECT FROM holds o WHERE o.cluster_id = n.cluster_id AND o.node_uid = n.node_uid) \
              AND NOT EXISTS (SELECT FROM incidents i WHERE i.cluster_id = n.cluster_id AND i.node_uid = n.node_uid \
                              AND i.closed_at >= n.state_as_of)) u \
         LEFT JOIN LATERAL (SELECT array_agg(k.gpu_nodes) AS adopting_nodes, array_agg(k.out) AS adopting_out FROM \
             (SELECT COALESCE((SELECT z.gpu_nodes FROM cluster_sizes z WHERE z.cluster_id = o.cluster_id), 0)::bigint AS gpu_nodes, \
                     COALESCE((SELECT b.out FROM budgets b WHERE b.cluster_id = o.cluster_id AND b.scope = 'cluster'), 0) AS out \
              FROM clusters o WHERE o.cluster_id <> $1 AND o.snapshot_term IS NOT NULL \
                  AND (o.taken_over_term IS NULL OR o.taken_over_term < h.epoch)) k) w ON true \
         LEFT JOIN LATERAL (SELECT revision, digest FROM policies ORDER BY revision DESC LIMIT 1) p ON true",
    )
    .bind(cluster.as_str())
    .fetch_one(conn)
    .await
    .label("snapshot.cluster")?;
    Ok(Told(row))
}

fn count(rows: i64) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// Reads one node's whole story. `None`: nothing of that UID is known.
///
/// # Errors
/// When the database fails or a row cannot be read.
pub async fn snapshot_load(
    conn: &mut PgConnection,
    around: &Surroundings,
    node: &NodeUid,
    attempts_window: Duration,
    request: Option<Request>,
    now: Timestamp,
) -> Result<Option<Snapshot>, Error> {
    let cluster = around.cluster.id.clone();
    let (faults, told) = faults(conn, &cluster, node).await?;
    let story = story(conn, &cluster, node, now.before(attempts_window), now.before(around.breaker)).await?;
    let Some(view) = story.node.map_or_else(|| Ok(told.map(Node::never_shown)), |row| node_view(around, node, row).map(Some))?
    else {
        return Ok(None);
    };
    let incident = story.incident.map(incident).transpose()?;
    let (commands, undo) = match &incident {
        Some(incident) => commands(conn, &cluster, incident.id).await?,
        None => (Vec::new(), Undo::default()),
    };
    let mut shared = around.cluster.clone();
    // This node is one more.
    shared.newly_suspect = count(story.newly_suspect).saturating_add(1);
    Ok(Some(Snapshot {
        cluster: shared,
        node: view,
        faults,
        incident: incident.map(|incident| Incident { undo, ..incident }),
        commands,
        cooldown: story.cooldown.map(cooldown).transpose()?,
        attempts: story.attempts.into_iter().map(from_db).collect(),
        request,
    }))
}

/// In one statement: the node as last shown; its open incident; its cooldown; when the first command
/// of each other incident that quarantined it was made (those that came to nothing were no attempts); and how many other nodes with a fault above P2
/// joined an incident inside the breaker's window.
async fn story(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeUid,
    attempts_since: Timestamp,
    suspect_since: Timestamp,
) -> Result<StoryRow, Error> {
    sqlx::query_as(
        "SELECT n.node_name, n.boot_id, n.created_at, n.labels, n.gpus, n.gpus_capacity, n.gpus_allocatable, n.ready, n.unschedulable, \
         n.unschedulable_by, n.labelled, n.tainted, n.cordoned_by_us, n.mark_incident_id, n.plan_revision, n.plan_rev_issued, n.opted_out, \
         n.foreign_markers, n.state_as_of, n.gone_at, \
         CASE WHEN n.labelled OR n.tainted OR n.cordoned_by_us THEN (SELECT max(m.state_at) FROM commands m \
           WHERE m.cluster_id = $1 AND m.node_uid = $2 AND m.action NOT IN ('notify', 'restart')) END AS written_at, \
         i.incident_id, i.level, i.manual, i.state, i.state_at, i.reason, i.decision_no, i.policy_revision, i.opened_at, \
         EXISTS (SELECT FROM holds h WHERE h.cluster_id = $1 AND h.node_uid = $2) AS held, \
         ARRAY (SELECT DISTINCT encode(f.fault_key, 'hex') FROM incident_faults f WHERE f.cluster_id = i.cluster_id \
           AND f.incident_id = i.incident_id ORDER BY 1) AS fault_keys, \
         ARRAY (SELECT DISTINCT encode(f.fault_key, 'hex') FROM incident_faults f WHERE f.cluster_id = i.cluster_id \
           AND f.incident_id = i.incident_id AND f.asked ORDER BY 1) AS asked_keys, \
         w.incident_id AS cooldown_incident, w.state AS cooldown_state, w.until_at AS cooldown_until, \
         ARRAY (SELECT min(m.created_at) FROM commands m WHERE m.cluster_id = $1 AND m.node_uid = $2 AND m.created_at >= $3 \
           AND m.action IN ('mark', 'evict') AND m.incident_id IS DISTINCT FROM i.incident_id AND m.started_at IS NOT NULL \
           GROUP BY m.incident_id ORDER BY 1) AS attempts, \
         (SELECT count(DISTINCT f.node_uid) FROM incident_faults f \
           WHERE f.cluster_id = $1 AND f.added_at >= $4 AND f.node_uid <> $2 AND f.level <> 'P2') AS newly_suspect \
         FROM (SELECT) one LEFT JOIN nodes n ON n.cluster_id = $1 AND n.node_uid = $2 \
         LEFT JOIN incidents i ON i.cluster_id = $1 AND i.node_uid = $2 AND i.closed_at IS NULL \
         LEFT JOIN cooldowns w ON w.cluster_id = $1 AND w.node_uid = $2",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(to_db(attempts_since))
    .bind(to_db(suspect_since))
    .fetch_one(conn)
    .await
    .label("snapshot.story")
}

fn node_view(around: &Surroundings, uid: &NodeUid, row: NodeRow) -> Result<Node, Error> {
    let name = read("nodes.node_name", &row.node_name, |text| NodeName::parse(text).ok())?;
    let marked = row.labelled || row.tainted || row.cordoned_by_us;
    let mark =
        Mark { labelled: row.labelled, tainted: row.tainted, cordoned_by_us: row.cordoned_by_us, incident: row.mark_incident_id };
    Ok(Node {
        reference: NodeRef { name, uid: uid.clone(), boot_id: row.boot_id },
        labels: row.labels.0,
        gpus: row.gpus.0,
        capacity_gpus: u32::try_from(row.gpus_capacity).unwrap_or(0),
        allocatable_gpus: u32::try_from(row.gpus_allocatable).unwrap_or(0),
        ready: read("nodes.ready", &row.ready, rows::ready)?,
        unschedulable: row.unschedulable,
        unschedulable_by: row.unschedulable_by,
        mark: marked.then_some(mark),
        plan_revision: natural(row.plan_revision),
        plan_rev_floor: natural(row.plan_rev_issued),
        opted_out: row.opted_out,
        foreign_markers: row.foreign_markers,
        created_at: from_db(row.created_at),
        // What a later state did not mention is as it was.
        seen_at: around.as_of.max(from_db(row.state_as_of)),
        written_at: row.written_at.map_or(Timestamp::EPOCH, from_db),
        gone: row.gone_at.is_some(),
    })
}

/// The latest episode of each fault that is not over, and how the latest of them names its node.
async fn faults(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<(Vec<KnownFault>, Option<NodeRef>), Error> {
    let rows: Vec<FaultRow> = sqlx::query_as(
        "SELECT * FROM (SELECT DISTINCT ON (fault_key) fault_key, episode, node_name, boot_id, gpu_slot, gpu_uuid, gpu_model, class, code, count, workload, witnesses, \
         first_at, last_at, evidence, evidence_since, settled_level FROM faults WHERE cluster_id = $1 AND node_uid = $2 \
         ORDER BY fault_key, episode DESC) f WHERE settled_level IS NULL OR evidence <> 'clear' ORDER BY first_at, fault_key",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .fetch_all(conn)
    .await
    .label("snapshot.faults")?;
    let told = rows.iter().max_by_key(|row| row.last_at).map(|row| row.node_ref(node)).transpose()?;
    Ok((rows.into_iter().map(KnownFault::try_from).collect::<Result<_, _>>()?, told))
}

fn incident(row: IncidentRow) -> Result<Incident, Error> {
    let key = |key: &String| read("incident_faults.fault_key", key, |text| FaultKey::parse(text).ok());
    Ok(Incident {
        id: IncidentId::from_uuid(row.incident_id),
        state: read("incidents.state", &row.state, IncidentState::parse)?,
        level: read("incidents.level", &row.level, Level::parse)?,
        manual: row.manual,
        opened_at: from_db(row.opened_at),
        state_at: from_db(row.state_at),
        decision_no: u32::try_from(row.decision_no).unwrap_or(0),
        policy_revision: natural(row.policy_revision),
        fault_keys: row.fault_keys.iter().map(key).collect::<Result<_, _>>()?,
        asked_keys: row.asked_keys.iter().map(key).collect::<Result<_, _>>()?,
        held: row.held,
        undo: Undo::default(),
        reason: row.reason,
    })
}

/// The incident's commands, and what all of them together changed on the node.
async fn commands(conn: &mut PgConnection, cluster: &ClusterId, incident: IncidentId) -> Result<(Vec<KnownCommand>, Undo), Error> {
    let rows: Vec<CommandRow> = sqlx::query_as(
        "SELECT c.command_id, c.action, c.gpu, c.steps_asked, c.state, c.state_at, c.steps, c.refusal, c.result_reason, c.plan_rev, c.decision_no, d.level, \
         c.created_at, c.start_by, c.finish_by, c.undo FROM commands c JOIN decisions d USING (cluster_id, incident_id, decision_no) \
         WHERE c.cluster_id = $1 AND c.incident_id = $2 ORDER BY c.cmd_seq",
    )
    .bind(cluster.as_str())
    .bind(incident.uuid())
    .fetch_all(conn)
    .await
    .label("snapshot.commands")?;
    let undo = rows.iter().filter_map(|row| row.undo.as_ref()).fold(Undo::default(), |merged, undo| merge_undo(merged, &undo.0));
    Ok((rows.into_iter().map(KnownCommand::try_from).collect::<Result<_, _>>()?, undo))
}

/// Of each field the first `before` and the last `after`: what it was when we came, and how we left it.
#[must_use]
pub fn merge_undo(mut merged: Undo, later: &Undo) -> Undo {
    for field in &later.fields {
        match merged.fields.iter_mut().find(|known| known.kind == field.kind && known.key == field.key) {
            None => merged.fields.push(field.clone()),
            Some(known) => known.after.clone_from(&field.after),
        }
    }
    merged
}

fn cooldown(row: CooldownRow) -> Result<Cooldown, Error> {
    let state = match (row.state.as_str(), row.until_at) {
        ("running", Some(until)) => CooldownState::Running { until: from_db(until) },
        ("reserved", _) => CooldownState::Reserved,
        ("void", _) => CooldownState::Void,
        (other, _) => return Err(Error::Unreadable { what: "cooldowns.state", value: other.to_owned() }),
    };
    Ok(Cooldown { incident: IncidentId::from_uuid(row.incident_id), state })
}

/// Labels as stored.
pub(crate) type Labels = BTreeMap<String, String>;

#[cfg(test)]
mod tests {
    use super::*;
    use gpuheal_proto::command::{UndoField, UndoKind};

    fn field(kind: UndoKind, key: &str, before: &str, after: &str) -> UndoField {
        UndoField { kind, key: key.into(), before: before.into(), after: after.into(), resource_version: "1".into() }
    }

    #[test]
    fn two_commands_leave_one_record_of_what_was_there_first() {
        let mark = Undo { fields: vec![field(UndoKind::Label, "l", "\"old\"", "\"faulty\"")] };
        let again = Undo {
            fields: vec![field(UndoKind::Label, "l", "\"faulty\"", "\"worse\""), field(UndoKind::Unschedulable, "", "", "true")],
        };
        let merged = merge_undo(merge_undo(Undo::default(), &mark), &again);
        assert_eq!(merged.fields.len(), 2);
        assert_eq!((merged.fields[0].before.as_str(), merged.fields[0].after.as_str()), ("\"old\"", "\"worse\""));
    }
}
