//! All that a decision looks at, read by one transaction that holds the node's lock.

mod rows;

use std::{collections::BTreeMap, time::Duration};

use gpuheal_hub_core::{
    cooldown::{Cooldown, CooldownState},
    incident::IncidentState,
    policy::{Narrowing, Policy},
    snapshot::{Approval, Cluster, Incident, KnownCommand, KnownFault, Mark, Node, Observer, Request, Snapshot},
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
    budget::{budgets_out, rates_load},
    moment::{from_db, to_db},
    natural, read,
};
use rows::{ClusterRow, CommandRow, CooldownRow, FaultRow, IncidentRow, NodeRow};

/// What all nodes of one cluster share in one transaction.
#[derive(Clone, Debug)]
pub struct Surroundings {
    cluster: Cluster,
    as_of: Timestamp,
    breaker: Duration,
}

impl Surroundings {
    /// Shows a snapshot what was read again. All else in it is under the node's own lock.
    pub fn retell(&self, snapshot: &mut Snapshot) {
        let (now, then) = (&self.cluster, &mut snapshot.cluster);
        (then.out, then.fleet_out, then.rate, then.fleet_rate) = (now.out, now.fleet_out, now.rate, now.fleet_rate);
    }

    /// The cluster owner's own settings as the decision is to see them.
    #[must_use]
    pub fn narrowed(mut self, narrowing: Option<Narrowing>) -> Self {
        self.cluster.narrowing = narrowing;
        self
    }
}

/// Reads what all nodes of a cluster share, and the text of its owner's settings.
///
/// # Errors
/// When the database fails or a row cannot be read.
pub async fn surroundings_load(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    policy: &Policy,
    now: Timestamp,
) -> Result<(Surroundings, String), Error> {
    let row: Option<ClusterRow> = sqlx::query_as(
        "SELECT c.labels, c.frozen, c.config_yaml, c.state_as_of, c.snapshot_at, h.stop_reason, \
         (SELECT count(*) FROM nodes n WHERE n.cluster_id = $1 AND n.gone_at IS NULL AND n.gpus_capacity > 0) AS gpu_nodes, \
         (SELECT count(*) FROM nodes n WHERE n.gone_at IS NULL AND n.gpus_capacity > 0) AS fleet_gpu_nodes \
         FROM clusters c CROSS JOIN hub_state h WHERE c.cluster_id = $1",
    )
    .bind(cluster.as_str())
    .fetch_optional(&mut *conn)
    .await
    .label("snapshot.cluster")?;
    let row = row.unwrap_or_default();
    let (out, fleet_out) = budgets_out(conn, cluster).await?;
    let (rate, fleet_rate) = rates_load(conn, cluster, &policy.settings.rates, now).await?;
    let whole = row.snapshot_at.is_some();
    // The moment that the state describes, not that of its receipt, and no heartbeat: a mark that was made since is not in it.
    let state_at = row.state_as_of.filter(|_| whole).map(from_db);
    let shared = Cluster {
        id: cluster.clone(),
        labels: row.labels.0,
        gpu_nodes: count(row.gpu_nodes),
        out,
        fleet_gpu_nodes: count(row.fleet_gpu_nodes),
        fleet_out,
        rate,
        fleet_rate,
        narrowing: None,
        observer: Observer { state_at, frozen: row.frozen },
        fleet_stop: row.stop_reason,
        newly_suspect: 0,
    };
    let as_of = row.state_as_of.map_or(Timestamp::EPOCH, from_db);
    Ok((Surroundings { cluster: shared, as_of, breaker: policy.settings.breaker.window }, row.config_yaml))
}

/// Reads again what other transactions may have moved until the guards were locked.
///
/// # Errors
/// When the database fails.
pub async fn surroundings_refresh(
    conn: &mut PgConnection,
    around: &mut Surroundings,
    policy: &Policy,
    now: Timestamp,
) -> Result<(), Error> {
    let id = around.cluster.id.clone();
    (around.cluster.out, around.cluster.fleet_out) = budgets_out(conn, &id).await?;
    (around.cluster.rate, around.cluster.fleet_rate) = rates_load(conn, &id, &policy.settings.rates, now).await?;
    Ok(())
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
    let faults = faults(conn, &cluster, node).await?;
    let Some(view) = node_view(conn, around, node, faults.1).await? else { return Ok(None) };
    let incident = incident(conn, &cluster, node).await?;
    let (commands, undo) = match &incident {
        Some(incident) => commands(conn, &cluster, incident.id).await?,
        None => (Vec::new(), Undo::default()),
    };
    let attempts =
        attempts(conn, &cluster, node, incident.as_ref().map(|incident| incident.id), now.before(attempts_window)).await?;
    let mut shared = around.cluster.clone();
    shared.newly_suspect = newly_suspect(conn, &cluster, node, now.before(around.breaker)).await?;
    Ok(Some(Snapshot {
        cluster: shared,
        node: view,
        faults: faults.0,
        incident: incident.map(|incident| Incident { undo, ..incident }),
        commands,
        cooldown: cooldown(conn, &cluster, node).await?,
        attempts,
        request,
    }))
}

/// The node as last shown; one that was never shown is known from its faults alone.
async fn node_view(
    conn: &mut PgConnection,
    around: &Surroundings,
    uid: &NodeUid,
    told: Option<NodeRef>,
) -> Result<Option<Node>, Error> {
    let row: Option<NodeRow> = sqlx::query_as(
        "SELECT node_name, boot_id, created_at, labels, gpus, gpus_capacity, gpus_allocatable, ready, unschedulable, unschedulable_by, labelled, \
         tainted, cordoned_by_us, mark_incident_id, plan_revision, plan_rev_issued, opted_out, foreign_markers, state_as_of, gone_at \
         FROM nodes WHERE cluster_id = $1 AND node_uid = $2",
    )
    .bind(around.cluster.id.as_str())
    .bind(uid.as_str())
    .fetch_optional(conn)
    .await
    .label("snapshot.node")?;
    let Some(row) = row else { return Ok(told.map(rows::never_shown)) };
    let name = read("nodes.node_name", &row.node_name, |text| NodeName::parse(text).ok())?;
    let marked = row.labelled || row.tainted || row.cordoned_by_us;
    let mark =
        Mark { labelled: row.labelled, tainted: row.tainted, cordoned_by_us: row.cordoned_by_us, incident: row.mark_incident_id };
    Ok(Some(Node {
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
        gone: row.gone_at.is_some(),
    }))
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

async fn incident(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<Option<Incident>, Error> {
    let row: Option<IncidentRow> = sqlx::query_as(
        "SELECT incident_id, level, manual, state, state_at, reason, decision_no, policy_revision, opened_at, approved_at, approved_by, \
         approved_decision_no, validated, EXISTS (SELECT FROM holds h WHERE h.cluster_id = i.cluster_id AND h.node_uid = i.node_uid) AS held, \
         ARRAY (SELECT DISTINCT encode(f.fault_key, 'hex') FROM incident_faults f WHERE f.cluster_id = i.cluster_id AND f.incident_id = i.incident_id ORDER BY 1) \
         AS fault_keys FROM incidents i WHERE cluster_id = $1 AND node_uid = $2 AND closed_at IS NULL",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .fetch_optional(conn)
    .await
    .label("snapshot.incident")?;
    row.map(|row| {
        let approved = row.approved_at.zip(row.approved_by).zip(row.approved_decision_no).map(|((at, by), number)| Approval {
            at: from_db(at),
            by,
            decision_no: u32::try_from(number).unwrap_or(0),
        });
        Ok(Incident {
            id: IncidentId::from_uuid(row.incident_id),
            state: read("incidents.state", &row.state, IncidentState::parse)?,
            level: read("incidents.level", &row.level, Level::parse)?,
            manual: row.manual,
            opened_at: from_db(row.opened_at),
            state_at: from_db(row.state_at),
            decision_no: u32::try_from(row.decision_no).unwrap_or(0),
            policy_revision: natural(row.policy_revision),
            fault_keys: row
                .fault_keys
                .iter()
                .map(|key| read("incident_faults.fault_key", key, |text| FaultKey::parse(text).ok()))
                .collect::<Result<_, _>>()?,
            held: row.held,
            undo: Undo::default(),
            approved,
            validated: row.validated,
            reason: row.reason,
        })
    })
    .transpose()
}

/// The incident's commands, and what all of them together changed on the node.
async fn commands(conn: &mut PgConnection, cluster: &ClusterId, incident: IncidentId) -> Result<(Vec<KnownCommand>, Undo), Error> {
    let rows: Vec<CommandRow> = sqlx::query_as(
        "SELECT c.command_id, c.action, c.steps_asked, c.state, c.state_at, c.steps, c.refusal, c.result_reason, c.plan_rev, c.decision_no, d.level, \
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

async fn cooldown(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<Option<Cooldown>, Error> {
    let row: Option<CooldownRow> =
        sqlx::query_as("SELECT incident_id, state, until_at FROM cooldowns WHERE cluster_id = $1 AND node_uid = $2")
            .bind(cluster.as_str())
            .bind(node.as_str())
            .fetch_optional(conn)
            .await
            .label("snapshot.cooldown")?;
    row.map(|row| {
        let state = match (row.state.as_str(), row.until_at) {
            ("running", Some(until)) => CooldownState::Running { until: from_db(until) },
            ("reserved", _) => CooldownState::Reserved,
            ("void", _) => CooldownState::Void,
            (other, _) => return Err(Error::Unreadable { what: "cooldowns.state", value: other.to_owned() }),
        };
        Ok(Cooldown { incident: IncidentId::from_uuid(row.incident_id), state })
    })
    .transpose()
}

/// When commands that quarantined this node were made for other incidents. Those that came to nothing were no attempts.
async fn attempts(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeUid,
    incident: Option<IncidentId>,
    since: Timestamp,
) -> Result<Vec<Timestamp>, Error> {
    let made: Vec<chrono::DateTime<chrono::Utc>> = sqlx::query_scalar(
        "SELECT created_at FROM commands WHERE cluster_id = $1 AND node_uid = $2 AND created_at >= $3 AND action IN ('mark', 'evict') \
         AND ($4::uuid IS NULL OR incident_id <> $4) AND started_at IS NOT NULL ORDER BY created_at",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(to_db(since))
    .bind(incident.map(IncidentId::uuid))
    .fetch_all(conn)
    .await
    .label("snapshot.attempts")?;
    Ok(made.into_iter().map(from_db).collect())
}

/// Other nodes with a fault above P2 that joined an incident inside the window, and this one.
async fn newly_suspect(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid, since: Timestamp) -> Result<u32, Error> {
    let others: i64 = sqlx::query_scalar(
        "SELECT count(DISTINCT i.node_uid) FROM incidents i JOIN incident_faults f USING (cluster_id, incident_id) \
         WHERE i.cluster_id = $1 AND i.opened_at >= $3 - interval '1 day' AND i.node_uid <> $2 AND f.added_at >= $3 AND f.level <> 'P2'",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(to_db(since))
    .fetch_one(conn)
    .await
    .label("snapshot.newly_suspect")?;
    Ok(count(others).saturating_add(1))
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
