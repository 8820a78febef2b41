//! Draining.

mod answers;
mod course;
mod deadline;
mod left;
pub(crate) mod one_gpu;
mod patience;
mod returns;
mod stuck;
mod turn;

use gpuheal_proto::link::v1::CommandStatus;
use testkube::{claims::Claim, settled};

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

pub(crate) fn claims() -> Vec<Claim<World>> {
    // First, what waits longest: for half a minute past a pod's grace.
    [
        stuck::claims(),
        patience::claims(),
        course::claims(),
        answers::claims(),
        deadline::claims(),
        one_gpu::claims(),
        returns::claims(),
        turn::claims(),
        left::claims(),
    ]
    .concat()
}

/// A drain of `n1` under way, and its budget has said no.
async fn held_drain(w: &World, spoke: &Spoke) -> gpuheal_proto::command::Command {
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    command
}

pub(crate) fn blocked(status: &CommandStatus, pod: &str) -> Option<String> {
    in_state(status, pod, "blocked")
}

/// Why a pod is in that state, when it is.
fn in_state(status: &CommandStatus, pod: &str, state: &str) -> Option<String> {
    let pods = status.steps.iter().flat_map(|step| &step.pods);
    pods.into_iter().find(|known| known.name == pod && known.state == state).map(|known| known.reason.clone())
}
