//! Drains of one node's GPUs: asked for, stored and read back, each for its own GPU.

use gpuheal_hub::{decide, settle::settle};
use gpuheal_proto::{
    fault::{Fault, FaultClass, GpuRef, Onset, Witness},
    ids::GpuSlot,
    link::v1,
    words::Action,
};

use super::world::{HEAL, World, cluster, fault, marked, node, request};

/// A fault of node 1 by a decoded kernel line, which names a slot and no UUID.
fn on(bus: u32, code: &str) -> Fault {
    let mut fault = fault(&cluster("c1"), 1, FaultClass::Xid, code, Onset::Edge, Witness::KernelLine);
    fault.gpu = Some(GpuRef { slot: GpuSlot::normalise(&format!("0000:{bus:02x}:00")), ..GpuRef::default() });
    fault.key = fault.derived_key(&cluster("c1"));
    fault
}

/// The last command is carried out, and the cluster shows its node as it is then.
async fn carried_out(world: &World, shown: v1::NodeState) {
    world.dispatch().await;
    let command = world.text("SELECT command_id FROM commands ORDER BY cmd_seq DESC LIMIT 1").await;
    let names = match world.lines("SELECT action FROM commands ORDER BY cmd_seq DESC LIMIT 1").await[0].as_str() {
        "release" => vec!["release"],
        _ => vec!["notify", "mark", "drain"],
    };
    let steps =
        names.into_iter().map(|name| v1::StepStatus { name: name.into(), state: v1::StepState::Done.into(), ..Default::default() });
    let status = |seq, state: v1::CommandState, steps| v1::CommandStatus {
        command_id: command.clone(),
        status_seq: seq,
        state: state.into(),
        lease_transitions: 1,
        steps,
        ..Default::default()
    };
    for status in [status(1, v1::CommandState::Started, vec![]), status(2, v1::CommandState::Succeeded, steps.collect())] {
        settle(&world.pool, &cluster("c1"), status, None).await.unwrap();
    }
    let nodes = (0..10).filter(|n| *n != 1).map(node).chain([shown]).collect();
    world.snapshot(&cluster("c1"), nodes).await;
    world.decide().await;
}

#[tokio::test]
async fn each_gpu_that_fails_gets_one_drain_and_all_of_an_incident_are_one_attempt() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&format!("{HEAL}  attempts: {{max: 2}}\n")).await;
    let drains = "SELECT gpu->>'uuid' || ' for ' || cardinality(fault_keys) FROM commands WHERE action = 'evict' ORDER BY cmd_seq";
    world.faults(&c1, &[on(0x5d, "79")]).await;
    world.decide().await;
    assert_eq!(world.lines(drains).await, ["GPU-1-93 for 1"], "by the slot that the line names, as the node shows it");
    let incident = world.text("SELECT incident_id FROM incidents").await;
    carried_out(&world, marked(1, &incident, 1)).await;
    // Another fault of the same GPU finds its users gone.
    world.faults(&c1, &[on(0x5d, "48")]).await;
    world.decide().await;
    assert_eq!(world.lines(drains).await, ["GPU-1-93 for 1"]);
    world.faults(&c1, &[on(0x5e, "79")]).await;
    world.decide().await;
    assert_eq!(world.lines(drains).await, ["GPU-1-93 for 1", "GPU-1-94 for 1"]);
    carried_out(&world, marked(1, &incident, 2)).await;
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["validating"]);
    assert_eq!(world.count("commands WHERE action = 'evict'").await, 2, "nobody is drained twice");

    decide::process(&world.pool, &request("r1", 1, Action::Release)).await.unwrap();
    carried_out(&world, node(1)).await;
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["released"]);
    world.run("DELETE FROM cooldowns").await;
    world.faults(&c1, &[on(0x5d, "95")]).await;
    world.decide().await;
    assert_eq!(
        world.lines(drains).await.len(),
        3,
        "two are allowed, and there was one: {:?}",
        world.lines("SELECT reason FROM decisions").await
    );
}
