//! (h) Commands that must not be executed: forged, for another cluster, expired, replayed, over the cluster's ceiling. Each is
//! put into the hub's own table as if somebody had got into the database, so that the hub delivers it as any other; each is
//! refused by the spoke with its reason, and the hub hears of it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ed25519_dalek::{Signer as _, SigningKey, pkcs8::DecodePrivateKey as _};
use gpuheal_proto::{
    command::{Command, Step, Target, Times},
    envelope::{COMMAND_TYPE, pae},
    fault::NodeRef,
    ids::{ClusterId, CommandId, IncidentId, NodeName, NodeUid, digest, uuid_v7},
    link::v1,
    time::Timestamp,
};
use kube::ResourceExt as _;
use prost::Message as _;
use sqlx::{FromRow, types::Uuid};

use super::{Outcome, Stage, WITHIN};
use crate::{facts, record, wait};

/// What an intruder copies: a command that was executed.
#[derive(FromRow)]
struct Template {
    command_id: Uuid,
    incident_id: Uuid,
    envelope: Vec<u8>,
    hub_term: i64,
    key_epoch: i64,
    policy_revision: i64,
    policy_digest: String,
    node_name: String,
}

/// One attempt: what is put in, and the refusal that must come back.
struct Attempt {
    what: &'static str,
    command: Command,
    key: SigningKey,
    refusal: &'static str,
}

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let target = stage.node("beta", 4)?;
    let pool = stage.fleet.pool.clone();
    let template: Template = sqlx::query_as(
        "SELECT command_id, incident_id, envelope, hub_term, key_epoch, policy_revision, policy_digest, node_name FROM commands
         WHERE cluster_id = 'beta' AND action = 'evict' AND state = 'SUCCEEDED' ORDER BY created_at LIMIT 1",
    )
    .fetch_optional(&pool)
    .await?
    .context("a command that was executed in beta is needed: play scene c first")?;
    let pem = std::fs::read_to_string(stage.fleet.signing_key())?;
    let stolen = SigningKey::from_pkcs8_pem(&pem).context("reading the hub's signing key")?;
    let own = SigningKey::from_bytes(&digest(&["a key that nobody trusts"]));
    let node = stage.fleet.cluster("beta")?.node(&target).await?;
    let uid = NodeUid::parse(&node.uid().unwrap_or_default())?;
    let command = |n: u64| forgery(&template, n, &target, &uid);

    let mut for_another = command(2)?;
    for_another.audience = ClusterId::parse("alpha")?;
    let mut expired = command(3)?;
    let hour_ago = wall_clock().before(Duration::from_secs(3600));
    expired.times = Times {
        created: hour_ago,
        deliver_by: hour_ago.after(Duration::from_secs(60)),
        start_by: hour_ago.after(Duration::from_secs(300)),
        finish_by: hour_ago.after(Duration::from_secs(2700)),
        expires: hour_ago.after(Duration::from_secs(3000)),
    };
    let attempts = [
        Attempt { what: "forged", command: command(1)?, key: own, refusal: "BAD_SIGNATURE" },
        Attempt { what: "for another cluster", command: for_another, key: stolen.clone(), refusal: "WRONG_AUDIENCE" },
        Attempt { what: "expired", command: expired, key: stolen.clone(), refusal: "EXPIRED" },
    ];
    let mut refused = vec![];
    for attempt in attempts {
        refused.push(attempt.play(stage, &template).await?);
    }
    refused.push(replay(stage, &template).await?);
    let ceiling = "ceiling:\n  nodesOut: 1\n";
    stage.fleet.cluster("beta")?.set_config(ceiling).await?;
    config_known(stage, ceiling).await?;
    let over = Attempt { what: "over the ceiling", command: command(5)?, key: stolen, refusal: "OVER_CEILING" };
    refused.push(over.play(stage, &template).await?);
    stage.fleet.cluster("beta")?.set_config("{}\n").await?;
    config_known(stage, "{}\n").await?;

    let cluster = stage.fleet.cluster("beta")?;
    let requests = cluster.requests().await;
    let writes = record::node_writes(&requests, &target);
    ensure!(writes.is_empty(), "a command that was refused wrote to the node: {writes:#?}");
    ensure!(cluster.observer.times_tainted(&target) == 0, "a command that was refused marked the node");
    stage.outcomes.push(Outcome {
        scene: 'h',
        fault: "5 commands by an intruder".into(),
        node: format!("beta/{target}"),
        decided: "refused by the spoke".into(),
        why: "signature, audience, time, replay, ceiling".into(),
        done: "nothing was written to the node".into(),
        taint_ms: None,
        drained_ms: None,
        refused: refused.join("; "),
    });
    Ok(())
}

impl Attempt {
    async fn play(&self, stage: &Stage, template: &Template) -> Result<String> {
        let bytes = envelope(&self.command, &self.key);
        let sha256 = insert(stage, template, &self.command, &bytes).await?;
        let pool = &stage.fleet.pool;
        let id = self.command.id.to_string();
        let report = wait::until(&format!("the refusal of a command that is {}", self.what), WITHIN, || async {
            let mut reports = facts::reports(pool, "beta", &id).await?;
            reports.extend(facts::reports(pool, "beta", &sha256).await?);
            Ok(reports.into_iter().find(|report| report.refusal == self.refusal))
        })
        .await?;
        Ok(format!("{}: {} ({})", self.what, report.refusal, report.reason))
    }
}

/// The bytes of a command that was executed, delivered again. Its HealAction is there and final: that is the answer.
async fn replay(stage: &Stage, template: &Template) -> Result<String> {
    let cluster = stage.fleet.cluster("beta")?;
    let before = record::node_writes(&cluster.requests().await, &template.node_name).len();
    let pool = &stage.fleet.pool;
    let heard = "SELECT coalesce(sum(times), 0)::bigint FROM reports WHERE cluster_id = 'beta' AND subject = $1";
    let subject = template.command_id.to_string();
    let times: i64 = sqlx::query_scalar(heard).bind(&subject).fetch_one(pool).await?;
    let body = forgery(template, 4, &template.node_name, &NodeUid::parse("whatever")?)?;
    insert(stage, template, &body, &template.envelope).await?;
    let now: i64 = wait::until("the answer to a replayed command", WITHIN, || async {
        let now: i64 = sqlx::query_scalar(heard).bind(&subject).fetch_one(pool).await?;
        Ok((now > times).then_some(now))
    })
    .await?;
    ensure!(now > times, "a replay was not answered");
    let after = record::node_writes(&cluster.requests().await, &template.node_name).len();
    ensure!(before == after, "a replayed command wrote to the node again");
    let last = facts::reports(pool, "beta", &subject).await?.pop().context("the answer was stored")?;
    Ok(format!(
        "replayed: answered {}{} from its record",
        last.state,
        if last.refusal.is_empty() { String::new() } else { format!(" {}", last.refusal) }
    ))
}

fn forgery(template: &Template, n: u64, node: &str, uid: &NodeUid) -> Result<Command> {
    let now = wall_clock();
    let seed = digest(&["forgery", &n.to_string(), &now.to_string()]);
    Ok(Command {
        id: CommandId::from_uuid(uuid_v7(now, &seed)),
        idempotency_key: hex::encode(seed),
        audience: ClusterId::parse("beta")?,
        key_epoch: u64::try_from(template.key_epoch)?,
        hub_term: u64::try_from(template.hub_term)?,
        cmd_seq: 1_000_000 + n,
        plan_rev: 1_000 + n,
        times: Times {
            created: now,
            deliver_by: now.after(Duration::from_secs(240)),
            start_by: now.after(Duration::from_secs(300)),
            finish_by: now.after(Duration::from_secs(2700)),
            expires: now.after(Duration::from_secs(3000)),
        },
        incident: IncidentId::from_uuid(template.incident_id),
        level: "P0".into(),
        reason: "an intruder's".into(),
        policy_revision: u64::try_from(template.policy_revision)?,
        policy_digest: template.policy_digest.clone(),
        target: Target { node: NodeRef { name: NodeName::parse(node)?, uid: uid.clone(), boot_id: String::new() }, gpu: None },
        fault_keys: vec![],
        ignore_cooldown: false,
        others: Default::default(),
        steps: vec![Step::Mark { label: true, taint: true, cordon: true }],
    })
}

fn envelope(command: &Command, key: &SigningKey) -> Vec<u8> {
    let payload = v1::CommandBody::from(command).encode_to_vec();
    let sig = key.sign(&pae(COMMAND_TYPE, &payload)).to_bytes().to_vec();
    let signature = v1::EnvelopeSignature { keyid: "any".into(), sig: sig.into() };
    v1::Envelope { payload: payload.into(), payload_type: COMMAND_TYPE.into(), signatures: vec![signature] }.encode_to_vec()
}

/// Puts an envelope into the hub's table as a signed command that is due; gives its SHA-256.
async fn insert(stage: &Stage, template: &Template, command: &Command, bytes: &[u8]) -> Result<String> {
    use sha2::Digest as _;
    let sha256 = hex::encode(sha2::Sha256::digest(bytes));
    let sql = "INSERT INTO commands (cluster_id, command_id, incident_id, decision_no, idempotency_key, state, action, node_uid, node_name,
                 level, reason, policy_revision, policy_digest, steps_asked, cmd_seq, plan_rev, hub_term, key_epoch,
                 created_at, deliver_by, start_by, finish_by, expires_at, envelope, envelope_sha256, key_id, signed_at)
               SELECT cluster_id, $2, incident_id, decision_no, $3, 'SIGNED', 'mark', 'forged', 'forged',
                 level, reason, policy_revision, policy_digest, steps_asked, $4, $5, hub_term, key_epoch,
                 clock_timestamp(), clock_timestamp() + interval '4 min', clock_timestamp() + interval '5 min',
                 clock_timestamp() + interval '45 min', clock_timestamp() + interval '50 min', $6, $7, key_id, clock_timestamp()
               FROM commands WHERE cluster_id = 'beta' AND command_id = $1";
    let inserted = sqlx::query(sql)
        .bind(template.command_id)
        .bind(command.id.uuid())
        .bind(&command.idempotency_key)
        .bind(i64::try_from(command.cmd_seq)?)
        .bind(i64::try_from(command.plan_rev)?)
        .bind(bytes)
        .bind(&sha256)
        .execute(&stage.fleet.pool)
        .await?;
    ensure!(inserted.rows_affected() == 1, "the forged command was not put in");
    Ok(sha256)
}

async fn config_known(stage: &Stage, yaml: &str) -> Result<()> {
    wait::until("the hub to know the cluster's new settings", WITHIN, || async {
        let known: String =
            sqlx::query_scalar("SELECT config_yaml FROM clusters WHERE cluster_id = 'beta'").fetch_one(&stage.fleet.pool).await?;
        Ok((known == yaml).then_some(()))
    })
    .await
}

fn wall_clock() -> Timestamp {
    Timestamp::from_unix_ms(chrono::Utc::now().timestamp_millis())
}
