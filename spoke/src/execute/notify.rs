//! The notify step: an Event on the node that says what the plan says. Posted on the side: nothing waits for it.

use super::run::Run;
use crate::events::Kind;

/// Posts the Event.
pub(super) fn notify(run: &mut Run<'_>, message: &str) -> String {
    let (events, command, text) = (run.ctx.events.clone(), run.command.clone(), message.to_owned());
    run.aside(async move { events.on_node(&command, "notify", Kind::Warning, &text).await });
    "Event posted".to_owned()
}
