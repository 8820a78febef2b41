//! Claims about commands and their way over the wire.

use super::*;
use crate::ids::{NodeName, NodeUid, uuid_v7};
use crate::link::v1;

fn command() -> Command {
    let at = |s: i64| Timestamp::from_unix_ms(s * 1000);
    Command {
        id: CommandId::from_uuid(uuid_v7(at(1), &[1; 32])),
        idempotency_key: "k".into(),
        audience: ClusterId::parse("c1").unwrap(),
        key_epoch: 1,
        hub_term: 1,
        cmd_seq: 3,
        plan_rev: 2,
        times: Times { created: at(1), deliver_by: at(60), start_by: at(300), finish_by: at(2700), expires: at(3000) },
        incident: IncidentId::from_uuid(uuid_v7(at(1), &[2; 32])),
        level: "P0".into(),
        reason: "xid 79".into(),
        policy_revision: 4,
        policy_digest: "d".into(),
        target: Target {
            node: NodeRef { name: NodeName::parse("n").unwrap(), uid: NodeUid::parse("u").unwrap(), boot_id: "b".into() },
            gpu: None,
        },
        fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).unwrap()],
        ignore_cooldown: false,
        others: Default::default(),
        steps: vec![
            Step::Notify { message: "m".into() },
            Step::Mark { label: true, taint: true, cordon: false },
            Step::Drain(Drain {
                grace_max: Duration::from_secs(30),
                deadline: Duration::from_secs(1800),
                on_deadline: DeadlineOutcome::Stop,
                allow_pdb_bypass: false,
                include_stateful: true,
            }),
        ],
    }
}

#[test]
fn a_command_survives_the_wire() {
    let command = command();
    assert_eq!(Command::try_from(v1::CommandBody::from(&command)).unwrap(), command);
    assert_eq!(command.action(), Action::Evict);
}

#[test]
fn moments_out_of_order_are_refused() {
    let mut command = command();
    command.times.start_by = command.times.finish_by.after(Duration::from_secs(1));
    assert_eq!(Command::try_from(v1::CommandBody::from(&command)), Err(Error::Times));
}

#[test]
fn a_step_that_nobody_knows_is_refused() {
    let mut wire = v1::CommandBody::from(&command());
    wire.steps[1] = v1::Step { step: None };
    assert_eq!(Command::try_from(wire), Err(Error::UnknownStep { index: 1 }));
}

#[test]
fn an_unspecified_deadline_outcome_is_refused_and_never_a_default() {
    let mut wire = v1::CommandBody::from(&command());
    wire.steps[2] = v1::Step { step: Some(v1::step::Step::Drain(v1::DrainStep::default())) };
    assert_eq!(Command::try_from(wire), Err(Error::Unknown { field: "on_deadline", value: 0 }));
}

#[test]
fn what_policy_says_of_others_is_signed_and_bounded_and_empty_unless_it_is_said() {
    let mut command = command();
    command.others = Others { markers_ignored: vec!["taint a/b".into(); 32], automations: vec!["karpenter".into(); 32] };
    assert_eq!(Command::try_from(v1::CommandBody::from(&command)).unwrap(), command);
    let mut of_an_older_hub = v1::CommandBody::from(&command);
    of_an_older_hub.preconditions = None;
    assert_eq!(Command::try_from(of_an_older_hub).unwrap().others, Others::default(), "the careful meaning");
    command.others.automations.push("x".into());
    let refused = Command::try_from(v1::CommandBody::from(&command));
    assert_eq!(refused, Err(Error::TooMany { field: "automations", count: 33, max: 32 }));
    command.others = Others { markers_ignored: vec!["x".repeat(385)], automations: vec![] };
    let refused = Command::try_from(v1::CommandBody::from(&command));
    assert_eq!(refused, Err(Error::TooLong { field: "markers_ignored", bytes: 385, max: 384 }));
}

#[test]
fn a_restart_is_harm_of_its_own_and_names_no_more_workloads_than_fit() {
    let mut command = command();
    let owners = |n: usize| (0..n).map(|i| format!("deployment/ml/web-{i}")).collect();
    command.steps = vec![Step::RestartWorkload { owners: owners(limits::WORKLOADS_MAX) }];
    assert!(command.harmful() && !command.writes_node());
    assert_eq!(command.action(), Action::Restart);
    assert_eq!(Command::try_from(v1::CommandBody::from(&command)).unwrap(), command);
    command.steps = vec![Step::RestartWorkload { owners: owners(limits::WORKLOADS_MAX + 1) }];
    let refused = Command::try_from(v1::CommandBody::from(&command));
    assert_eq!(refused, Err(Error::TooMany { field: "workloads", count: 17, max: 16 }));
}

#[test]
fn a_release_is_not_harmful() {
    let mut command = command();
    command.steps = vec![Step::Release { undo: Undo::default(), overridden: true }];
    assert!(!command.harmful());
    assert!(command.writes_node());
}
