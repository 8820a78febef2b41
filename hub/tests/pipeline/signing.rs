//! What cannot be signed stands in nobody's way, and is not complained about at each look; a cancellation is of the epoch at
//! hand, whatever that of its command was.

use std::{collections::BTreeSet, sync::Arc};

use gpuheal_hub::sign::{Complained, Stage};
use gpuheal_proto::{envelope, link::v1};
use prost::Message as _;

use super::world::{HEAL, World, cluster, node, signer, xid79};

/// More rows than a signer takes in one round.
const MANY: u32 = 300;

struct Case {
    world: World,
    stage: Stage,
    complained: Complained,
}

impl Case {
    /// Two clusters with a command each, of epoch 5, which is this database's.
    async fn new() -> Self {
        let (world, c1, c2) = (World::healing(10).await, cluster("c1"), cluster("c2"));
        world.snapshot(&c2, (0..10).map(node).collect()).await;
        for id in [&c1, &c2] {
            world.faults(id, &[xid79(id, 1)]).await;
        }
        world.decide().await;
        world.run("UPDATE hub_state SET hub_term = 5").await;
        world.run("UPDATE commands SET hub_term = 5").await;
        world.run("UPDATE clusters SET taken_over_term = 5").await;
        let stage = Stage { pool: world.pool.clone(), signer: Arc::new(signer()), wake: world.wake.clone() };
        Self { world, stage, complained: BTreeSet::new() }
    }

    /// So many more commands of c1, for as many nodes, which are like its first but for these columns.
    async fn more(&self, columns: &str, values: &str) {
        let rows = format!(
            "INSERT INTO commands (cluster_id, command_id, incident_id, decision_no, idempotency_key, action, node_uid, node_name, level, reason,
                 policy_revision, policy_digest, steps_asked, cmd_seq, plan_rev, created_at, deliver_by, start_by, finish_by, expires_at, {columns})
             SELECT cluster_id, gen_random_uuid(), incident_id, decision_no, 'k' || n, action, 'many-' || n, 'many-' || n, level, reason,
                 policy_revision, policy_digest, steps_asked, 1000 + n, 1, created_at, deliver_by, start_by, finish_by, expires_at, {values}
             FROM commands, generate_series(1, {MANY}) AS n WHERE cluster_id = 'c1' AND node_uid = 'uid-1'"
        );
        assert_eq!(self.world.run(&rows).await, u64::from(MANY));
    }

    async fn round(&mut self) -> usize {
        self.stage.round(&mut self.complained).await.unwrap()
    }

    async fn rounds(&mut self, rounds: usize) -> usize {
        let mut made = 0;
        for _ in 0..rounds {
            made += self.round().await;
        }
        made
    }

    async fn signed(&self, of: &str) -> i64 {
        self.world.count(&format!("commands WHERE cluster_id = '{of}' AND envelope IS NOT NULL")).await
    }
}

/// What policy says of others is part of what is signed, whoever signs it.
#[tokio::test]
async fn a_command_that_waited_for_its_signature_carries_what_its_policy_said_of_others() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&format!("{HEAL}  markersIgnored: [taint a/b]\n  automations: [driver-manager]\n")).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    let stage = Stage { pool: world.pool.clone(), signer: Arc::new(signer()), wake: world.wake.clone() };
    assert_eq!(stage.round(&mut BTreeSet::new()).await.unwrap(), 1);
    let bytes: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&world.pool).await.unwrap();
    let body = v1::CommandBody::decode(envelope::parse(&bytes).unwrap().payload).unwrap();
    let said = body.preconditions.unwrap();
    assert_eq!((said.markers_ignored, said.automations), (vec!["taint a/b".to_owned()], vec!["driver-manager".to_owned()]));
}

#[tokio::test]
async fn commands_that_cannot_be_signed_keep_no_other_clusters_waiting() {
    let mut case = Case::new().await;
    assert_eq!(case.round().await, 2);
    // Of a database that was deposed before: this signer refuses them for ever. They come before c2's in every order there is.
    case.more("hub_term, state", "1, 'PROPOSED'").await;
    let c2 = cluster("c2");
    case.world.faults(&c2, &[xid79(&c2, 2)]).await;
    case.world.decide().await;
    assert_eq!(case.rounds(2).await, 1);
    assert_eq!(case.signed("c2").await, 2);
    assert_eq!(case.complained.len(), MANY as usize, "each once");
    // And they are tried again when their time has come, without a new complaint, after whatever is new.
    case.world.run("UPDATE commands SET sign_again_at = clock_timestamp() WHERE sign_again_at IS NOT NULL").await;
    case.world.faults(&c2, &[xid79(&c2, 3)]).await;
    case.world.decide().await;
    assert_eq!(case.round().await, 1);
    assert_eq!(case.complained.len(), MANY as usize);
}

#[tokio::test]
async fn cancellations_that_cannot_be_signed_keep_no_other_waiting_and_are_not_tried_at_each_look() {
    let mut case = Case::new().await;
    case.round().await;
    let huge = "1, state, repeat('x', 300000), clock_timestamp() - interval '1 hour', 'x', clock_timestamp(), 1, 'k', repeat('0', 64) || n";
    case.more("hub_term, state, cancel_reason, cancel_asked_at, envelope, signed_at, key_epoch, key_id, envelope_sha256", huge)
        .await;
    case.world.run("UPDATE commands SET cancel_asked_at = clock_timestamp(), cancel_reason = 'stop' WHERE cluster_id = 'c2'").await;
    assert_eq!(case.rounds(2).await, 1);
    assert_eq!(case.world.count("commands WHERE cluster_id = 'c2' AND cancel_envelope IS NOT NULL").await, 1);
    assert_eq!(case.complained.len(), MANY as usize);
    assert_eq!(case.world.count("commands WHERE sign_again_at > clock_timestamp()").await, i64::from(MANY), "put off, all of them");
}

#[tokio::test]
async fn what_a_cancellations_row_holds_amiss_is_complained_about_and_not_passed_over() {
    let mut case = Case::new().await;
    case.round().await;
    case.world.run("UPDATE commands SET cancel_asked_at = clock_timestamp(), cancel_reason = 'stop'").await;
    case.world.run("ALTER TABLE commands DROP CONSTRAINT commands_decision").await;
    case.world.run("UPDATE commands SET cluster_id = 'No Cluster' WHERE cluster_id = 'c1'").await;
    assert_eq!(case.round().await, 1);
    assert_eq!(case.complained.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["cancellation"]);
}

/// Failure table, row 18.
#[tokio::test]
async fn after_the_epoch_rose_a_command_of_before_is_called_off_under_the_epoch_at_hand() {
    let mut case = Case::new().await;
    assert_eq!(case.round().await, 2);
    let term = async |case: &Case| {
        let bytes: Vec<u8> = sqlx::query_scalar("SELECT cancel_envelope FROM commands WHERE cluster_id = 'c1'")
            .fetch_one(&case.world.pool)
            .await
            .unwrap();
        v1::CancelBody::decode(envelope::parse(&bytes).unwrap().payload).unwrap().hub_term
    };
    case.world.run("UPDATE hub_state SET hub_term = 6").await;
    let c2 = cluster("c2");
    case.world.faults(&c2, &[xid79(&c2, 2)]).await;
    case.world.run("UPDATE clusters SET taken_over_term = hub_term()").await;
    case.world.decide().await;
    assert_eq!(case.round().await, 1, "the signer has seen the later epoch");
    let stop = "UPDATE commands SET cancel_asked_at = clock_timestamp(), cancel_reason = 'stop' WHERE cluster_id = 'c1'";
    case.world.run(stop).await;
    assert_eq!(case.round().await, 1);
    assert_eq!(term(&case).await, 6);
    // Signed, perhaps sent, and not heard of when the epoch rises once more: spokes that have seen it take nothing of an older.
    case.world.run("UPDATE commands SET cancel_sent_at = clock_timestamp() WHERE cluster_id = 'c1'").await;
    assert_eq!(case.round().await, 0, "once an epoch");
    case.world.run("UPDATE hub_state SET hub_term = 7").await;
    assert_eq!(case.round().await, 1);
    assert_eq!(term(&case).await, 7);
    assert_eq!(case.world.count("commands WHERE cluster_id = 'c1' AND cancel_sent_at IS NULL").await, 1, "and sent anew");
    case.world.run("UPDATE hub_state SET hub_term = 8").await;
    case.world.run("UPDATE commands SET state = 'CANCELLED', finished_at = clock_timestamp() WHERE cluster_id = 'c1'").await;
    assert_eq!(case.round().await, 0, "nothing calls off what has ended");
}
