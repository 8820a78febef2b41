//! Telling people on the node: one Event says what was done and why. A notify step of a command that also marks, drains
//! or restarts is told by that step, once it is true; alone it is a warning. Posted on the side: nothing waits for it but the last
//! status, which says whether it was posted.

use gpuheal_proto::command::{Command, Step};

use super::run::Run;
use crate::events::{Kind, Moment};

/// What the step says until its Event has been answered for.
pub(super) const UNDER_WAY: &str = "Event under way";

/// The notify step.
pub(super) fn notify(run: &mut Run<'_>, message: &str) -> String {
    let told_by_another =
        run.command.steps.iter().any(|step| matches!(step, Step::Mark { .. } | Step::Drain(_) | Step::RestartWorkload { .. }));
    if !told_by_another {
        tell(run, "notify", Kind::Warning, format!("warned: {message}"));
    }
    UNDER_WAY.to_owned()
}

/// Tells on the node what a step has done; the command's notify step stands and falls with it.
pub(super) fn tell(run: &mut Run<'_>, what: &'static str, kind: Kind, text: String) {
    let (events, command) = (run.ctx.events.clone(), run.command.clone());
    let step = step_of(run.command);
    run.aside(step, async move { events.on_node(&command, &Moment::once(what), kind, &text).await });
}

fn step_of(command: &Command) -> Option<usize> {
    command.steps.iter().position(|step| matches!(step, Step::Notify { .. }))
}
