//! From a proposed command to the leader's stream, and again when it must be.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_hub::{
    deliver,
    settle::{settle, sweep},
    sign,
};
use gpuheal_proto::{
    command::{Command, CommandState},
    envelope,
    ids::ClusterId,
    link::v1::{self, attach_request, attach_response::Message},
};
use prost::Message as _;
use uuid::Uuid;

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello},
};

/// An incident with one decision and the command that came of it; its times are hours, so that none runs out on a slow machine.
pub(crate) async fn propose(hub: &Hub, cluster: &str, number: i64) -> Uuid {
    let (incident, command) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = hub.pool.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO incidents (cluster_id, incident_id, node_uid, node_name, level, state, state_at, reason, decision_no, opened_at, changed_at)
         VALUES ($1, $2, 'uid-' || $3, 'node-' || $3, 'P0', 'quarantining', now(), 'xid 79', 1, now(), now())",
    )
    .bind(cluster)
    .bind(incident)
    .bind(number.to_string())
    .execute(&mut *tx)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO decisions (cluster_id, incident_id, decision_no, outcome, reason, level, state_after, policy_revision, policy_digest, decided_at)
         VALUES ($1, $2, 1, 'act', 'xid 79', 'P0', 'quarantining', 1, 'd', now())",
    )
    .bind(cluster)
    .bind(incident)
    .execute(&mut *tx)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO commands (cluster_id, command_id, incident_id, decision_no, idempotency_key, action, node_uid, node_name, level, reason,
             policy_revision, policy_digest, steps_asked, cmd_seq, plan_rev, hub_term, created_at, deliver_by, start_by, finish_by, expires_at)
         VALUES ($1, $2, $3, 1, $2::text, 'mark', 'uid-' || $4, 'node-' || $4, 'P0', 'xid 79', 1, 'd',
             '[{\"step\":\"mark\",\"label\":true,\"taint\":true,\"cordon\":false}]', $4::bigint, 1, 1, now(), now() + interval '1 hour',
             now() + interval '2 hours', now() + interval '3 hours', now() + interval '4 hours')",
    )
    .bind(cluster)
    .bind(command)
    .bind(incident)
    .bind(number.to_string())
    .execute(&mut *tx)
    .await
    .unwrap();
    tx.commit().await.unwrap();
    command
}

pub(crate) fn stages(hub: &Hub) -> (sign::Stage, deliver::Stage) {
    let signing = sign::Stage { pool: hub.pool.clone(), signer: hub.signer.clone(), wake: hub.wake.clone() };
    (signing, deliver::Stage::new(hub.pool.clone(), hub.registry.clone(), hub.wake.clone()))
}

/// A round, and the note of it.
async fn deliver(stage: &deliver::Stage) -> usize {
    let sent = stage.round().await.unwrap();
    stage.note().await.unwrap();
    sent
}

async fn state(hub: &Hub, command: Uuid) -> CommandState {
    let state: String =
        sqlx::query_scalar("SELECT state FROM commands WHERE command_id = $1").bind(command).fetch_one(&hub.pool).await.unwrap();
    CommandState::parse(&state).unwrap()
}

async fn attach(hub: &Hub, replica: &str, lease: Option<u64>) -> Replica {
    Replica::attach(hub, hello("alpha", replica, lease)).await.unwrap_or_else(|r| panic!("{r:?}")).0
}

#[tokio::test]
async fn a_command_is_signed_once_and_put_on_the_leaders_stream_once() {
    let hub = Hub::start_with_database().await;
    let (mut leader, _standby) = (attach(&hub, "r0", Some(2)).await, attach(&hub, "r1", None).await);
    let id = propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    assert_eq!(signing.round(&mut BTreeSet::new()).await.unwrap(), 1);
    assert_eq!(signing.round(&mut BTreeSet::new()).await.unwrap(), 0, "nothing is left to sign");
    assert_eq!(state(&hub, id).await, CommandState::Signed);
    assert_eq!(deliver(&delivering).await, 1);
    assert_eq!(state(&hub, id).await, CommandState::Dispatched);
    assert_eq!(deliver(&delivering).await, 0, "nothing is sent twice within a session");
    let bytes = leader.command().await;
    let body = v1::CommandBody::decode(envelope::parse(&bytes).unwrap().payload).unwrap();
    assert_eq!(Command::try_from(body).unwrap().id.uuid(), id);
    let kinds: Vec<String> =
        sqlx::query_scalar("SELECT kind FROM audit_entries WHERE chain = 'alpha' AND subject = $1 ORDER BY seq")
            .bind(format!("command/{id}"))
            .fetch_all(&hub.pool)
            .await
            .unwrap();
    assert_eq!(kinds, ["command_signed", "command_sent"]);
}

/// Failure table, row 9.
#[tokio::test]
async fn a_new_leader_gets_the_very_same_bytes() {
    let hub = Hub::start_with_database().await;
    let mut first = attach(&hub, "r0", Some(2)).await;
    propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    deliver(&delivering).await;
    let bytes = first.command().await;
    let mut second = attach(&hub, "r1", Some(3)).await;
    assert_eq!(deliver(&delivering).await, 1);
    assert_eq!(second.command().await, bytes);
    let stored: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(stored, bytes);
}

#[tokio::test]
async fn what_the_old_leader_was_sent_is_sent_to_the_new_one_even_when_it_is_noted_after_that_attached() {
    let hub = Hub::start_with_database().await;
    let mut first = attach(&hub, "r0", Some(2)).await;
    propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    assert_eq!(delivering.round().await.unwrap(), 1);
    let bytes = first.command().await;
    assert_eq!(delivering.round().await.unwrap(), 0, "what is not noted yet is not sent twice");
    let mut second = attach(&hub, "r1", Some(3)).await;
    delivering.note().await.unwrap();
    assert_eq!(delivering.round().await.unwrap(), 1);
    assert_eq!(second.command().await, bytes);
}

#[tokio::test]
async fn a_standby_that_takes_over_on_its_old_session_gets_what_the_dead_leader_was_sent() {
    let hub = Hub::start_with_database().await;
    let mut first = attach(&hub, "r0", Some(2)).await;
    let mut standby = attach(&hub, "r1", None).await;
    propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    deliver(&delivering).await;
    let bytes = first.command().await;
    let beat = v1::Heartbeat { lease_transitions: Some(3), ..v1::Heartbeat::default() };
    standby.send(attach_request::Message::Heartbeat(beat)).await;
    let sent = async {
        loop {
            match deliver(&delivering).await {
                0 => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                sent => return sent,
            }
        }
    };
    let sent = tokio::time::timeout(PATIENCE, sent).await.expect("the new leader is sent what nobody has answered");
    assert_eq!(sent, 1);
    assert_eq!(standby.command().await, bytes);
}

#[tokio::test]
async fn after_a_not_now_the_same_bytes_go_out_again_and_not_before_their_time() {
    let hub = Hub::start_with_database().await;
    let mut leader = attach(&hub, "r0", Some(2)).await;
    propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    deliver(&delivering).await;
    let bytes = leader.command().await;
    sqlx::query("UPDATE commands SET resend_at = now() + interval '1 hour'").execute(&hub.pool).await.unwrap();
    assert_eq!(deliver(&delivering).await, 0);
    sqlx::query("UPDATE commands SET resend_at = now()").execute(&hub.pool).await.unwrap();
    assert_eq!(deliver(&delivering).await, 1);
    assert_eq!(leader.command().await, bytes);
}

#[tokio::test]
async fn a_not_now_that_is_faster_than_the_note_of_the_sending_is_not_forgotten() {
    let hub = Hub::start_with_database().await;
    let mut leader = attach(&hub, "r0", Some(2)).await;
    let id = propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    delivering.round().await.unwrap();
    let bytes = leader.command().await;
    let busy = v1::CommandStatus { command_id: id.to_string(), state: v1::CommandState::NotNow.into(), ..Default::default() };
    settle(&hub.pool, &ClusterId::parse("alpha").unwrap(), busy, None).await.unwrap();
    delivering.note().await.unwrap();
    sqlx::query("UPDATE commands SET resend_at = now() WHERE resend_at IS NOT NULL").execute(&hub.pool).await.unwrap();
    assert_eq!(deliver(&delivering).await, 1);
    assert_eq!(leader.command().await, bytes);
}

/// Failure table, row 9.
#[tokio::test]
async fn standbys_outranked_leaders_and_late_commands_get_nothing() {
    let hub = Hub::start_with_database().await;
    let (signing, delivering) = stages(&hub);
    propose(&hub, "alpha", 1).await;
    signing.round(&mut BTreeSet::new()).await.unwrap();
    let _standby = attach(&hub, "r0", None).await;
    assert_eq!(deliver(&delivering).await, 0, "a standby gets no command");
    let _leader = attach(&hub, "r1", Some(2)).await;
    sqlx::query(
        "INSERT INTO sessions (cluster_id, replica_id, boot_id, hub_id, lease_transitions) VALUES ('alpha', 'r2', 'b', 'other hub', 3)",
    )
    .execute(&hub.pool)
    .await
    .unwrap();
    assert_eq!(deliver(&delivering).await, 0, "another hub holds the session that proves more");
    sqlx::query("DELETE FROM sessions WHERE replica_id = 'r2'").execute(&hub.pool).await.unwrap();
    sqlx::query("UPDATE commands SET deliver_by = created_at").execute(&hub.pool).await.unwrap();
    assert_eq!(deliver(&delivering).await, 0, "its time is over");
}

#[tokio::test]
async fn what_is_called_off_is_never_sent_and_its_cancellation_is() {
    let hub = Hub::start_with_database().await;
    let mut leader = attach(&hub, "r0", Some(2)).await;
    let id = propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    sqlx::query("UPDATE commands SET cancel_asked_at = now(), cancel_reason = 'stop'").execute(&hub.pool).await.unwrap();
    assert_eq!(signing.round(&mut BTreeSet::new()).await.unwrap(), 1);
    assert_eq!(deliver(&delivering).await, 1);
    let cancel = leader.next_of(|message| match message {
        Message::Cancel(cancel) => Some(cancel.envelope.to_vec()),
        Message::Command(_) => panic!("a command that was called off was sent"),
        _ => None,
    });
    let cancel = envelope::parse(&cancel.await.unwrap()).unwrap();
    assert_eq!(cancel.payload_type, envelope::CANCEL_TYPE);
    assert_eq!(v1::CancelBody::decode(cancel.payload).unwrap().command_id, id.to_string());
    assert_eq!(deliver(&delivering).await, 0, "once per session");
    let kinds: Vec<String> =
        sqlx::query_scalar("SELECT kind FROM audit_entries WHERE chain = 'alpha' AND subject = $1 ORDER BY seq")
            .bind(format!("command/{id}"))
            .fetch_all(&hub.pool)
            .await
            .unwrap();
    assert_eq!(kinds, ["command_signed", "cancel_signed", "cancel_sent"]);
}

/// Failure table, row 7.
#[tokio::test]
async fn two_signers_at_once_make_one_envelope_each_command() {
    let hub = Hub::start_with_database().await;
    for number in 1..=40 {
        propose(&hub, "alpha", number).await;
    }
    let (signing, _) = stages(&hub);
    let rounds = (0..4).map(|_| {
        let signing = signing.clone();
        tokio::spawn(async move { signing.round(&mut BTreeSet::new()).await.unwrap() })
    });
    let mut signed = 0;
    for round in rounds.collect::<Vec<_>>() {
        signed += round.await.unwrap();
    }
    assert_eq!(signed, 40);
}

#[tokio::test]
async fn a_burst_larger_than_a_lane_arrives_whole_and_in_order() {
    const BURST: i64 = 300;
    let hub = Hub::start_with_database().await;
    let mut want = vec![];
    for number in 1..=BURST {
        want.push(propose(&hub, "alpha", number).await.to_string());
    }
    // Only now: a replica that says nothing for as long as the burst takes to be written on a slow machine is sent away.
    let mut leader = attach(&hub, "r0", Some(2)).await;
    let (signing, delivering) = stages(&hub);
    let stop = tokio_util::sync::CancellationToken::new();
    let running = [tokio::spawn(signing.run(stop.clone())), tokio::spawn(delivering.run(stop.clone()))];
    let mut got = vec![];
    for _ in 0..BURST {
        let body = envelope::parse(&leader.command().await).unwrap().payload;
        got.push(v1::CommandBody::decode(body).unwrap().command_id);
    }
    assert_eq!(got, want);
    stop.cancel();
    for stage in running {
        stage.await.unwrap();
    }
}

/// Failure table, row 8.
#[tokio::test]
async fn a_sending_that_nobody_noted_is_repeated_by_the_next_owner_with_the_same_bytes() {
    let hub = Hub::start_with_database().await;
    let mut leader = attach(&hub, "r0", Some(2)).await;
    let id = propose(&hub, "alpha", 1).await;
    let (signing, dying) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    assert_eq!(dying.round().await.unwrap(), 1);
    let bytes = leader.command().await;
    drop(dying);
    assert_eq!(state(&hub, id).await, CommandState::Signed);
    let (_, next) = stages(&hub);
    assert_eq!(deliver(&next).await, 1);
    assert_eq!(leader.command().await, bytes);
    assert_eq!(state(&hub, id).await, CommandState::Dispatched);
    assert_eq!(deliver(&next).await, 0);
}

/// Failure table, row 19a.
#[tokio::test]
async fn a_session_that_another_hub_took_over_is_sent_nothing() {
    let hub = Hub::start_with_database().await;
    let _leader = attach(&hub, "r0", Some(2)).await;
    let id = propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    signing.round(&mut BTreeSet::new()).await.unwrap();
    let taken = "UPDATE sessions SET session_generation = session_generation + 1, hub_id = 'other hub'";
    sqlx::query(taken).execute(&hub.pool).await.unwrap();
    assert_eq!(deliver(&delivering).await, 0, "the stream is still here and the session is not");
    assert_eq!(state(&hub, id).await, CommandState::Signed);
}

/// Failure table, row 30.
#[tokio::test]
async fn without_a_signer_nothing_is_sent_and_the_command_expires() {
    let hub = Hub::start_with_database().await;
    let _leader = attach(&hub, "r0", Some(2)).await;
    let id = propose(&hub, "alpha", 1).await;
    let (signing, delivering) = stages(&hub);
    assert_eq!(deliver(&delivering).await, 0, "there is no unsigned path");
    let later = "UPDATE commands SET created_at = now() - interval '3 hours', deliver_by = now() - interval '2 hours', start_by = now() - interval '1 hour'";
    sqlx::query(later).execute(&hub.pool).await.unwrap();
    assert_eq!(signing.round(&mut BTreeSet::new()).await.unwrap(), 0, "a signer that is back signs nothing that is too late");
    assert_eq!(sweep(&hub.pool).await.unwrap(), 1);
    assert_eq!(state(&hub, id).await, CommandState::Expired);
    assert_eq!(deliver(&delivering).await, 0);
}

/// Failure table, row 34.
#[tokio::test]
async fn a_spoke_that_reads_nothing_holds_up_no_other() {
    // Of 1.5 KiB each: more than its lane, the 2 MiB that a connection takes in unread, and a round of the stage together.
    const WAITING: i64 = 3000;
    let hub = Hub::start_with_database().await;
    let first = propose(&hub, "alpha", 1).await;
    let more = "INSERT INTO commands (cluster_id, command_id, incident_id, decision_no, idempotency_key, action, node_uid, node_name, level, reason,
             policy_revision, policy_digest, steps_asked, cmd_seq, plan_rev, hub_term, created_at, deliver_by, start_by, finish_by, expires_at)
         SELECT cluster_id, gen_random_uuid(), incident_id, 1, 'k' || n, action, 'uid-' || n, 'node-' || n, level, repeat('x', 1000),
             policy_revision, policy_digest, steps_asked, n, 1, 1, created_at, deliver_by, start_by, finish_by, expires_at
         FROM commands, generate_series(2, $2) AS n WHERE command_id = $1";
    sqlx::query(more).bind(first).bind(WAITING).execute(&hub.pool).await.unwrap();
    let other = propose(&hub, "beta", 1).await;
    let (signing, delivering) = stages(&hub);
    let mut signed = 0;
    while signed < WAITING as usize + 1 {
        match signing.round(&mut BTreeSet::new()).await.unwrap() {
            0 => panic!("{signed} were signed, and no more"),
            more => signed += more,
        }
    }
    // Both live, so that neither is sent away as dead: one only does not read.
    let deaf = attach(&hub, "r0", Some(2)).await;
    deaf.beat(2);
    let mut beta = Replica::attach(&hub, hello("beta", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    beta.beat(2);
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(delivering.run(stop.clone()));
    // Sooner than the deaf one is sent away, after 30 s in which it took nothing.
    let bytes = tokio::time::timeout(Duration::from_secs(25), beta.command()).await.expect("it waits for nobody else");
    let body = envelope::parse(&bytes).unwrap().payload;
    assert_eq!(v1::CommandBody::decode(body).unwrap().command_id, other.to_string());
    drop(deaf);
    stop.cancel();
    running.await.unwrap();
}
