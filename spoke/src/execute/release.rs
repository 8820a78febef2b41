//! The release step: what the undo record says was ours goes back to what it was, in one patch. The record is the cluster's
//! own, of the mark that stands. The one that the hub sends tells only of what that does not name: a hub whose database was
//! restored sends an old one.

use gpuheal_proto::command::Undo;
use gpuheal_spoke_core::release::release as plan;

use super::{
    guard::Halt,
    mark::{ATTEMPTS_MAX, Patched, current, patch_node, pause, stamp},
    notify,
    run::Run,
};
use crate::{events::Kind, metrics, verify::cached_node};

/// The moment that its Event is named by.
const TOLD: &str = "release";

/// Releases the node.
pub(super) async fn release(run: &mut Run<'_>, asked: &Undo) -> Result<String, Halt> {
    let mut node = cached_node(&run.ctx.deps.nodes, run.command.target.node.name.as_str());
    for attempt in 0..ATTEMPTS_MAX {
        let facts = current(run, node.take()).await?;
        let stamp = stamp(run.ctx, run.command);
        // Taken up after the patch was sent: it carries our revision and nothing of ours is left.
        if facts.plan_revision() == Some(stamp.plan_rev) && !facts.marked() {
            notify::tell(run, TOLD, Kind::Normal, "released: nothing of ours is left on the node".to_owned());
            return Ok("was released already".to_owned());
        }
        let record = run.ctx.records.standing_undo(&facts, run.command);
        let release = plan(&facts, &record, asked, stamp).map_err(|error| Halt::failed(error.to_string()))?;
        run.guard.pass().await?;
        dies_at!("execute.before-release");
        match patch_node(run, &release.patch).await? {
            Patched::Yes => {
                dies_at!("execute.released");
                let mut message = format!("restored {}", list(&release.restored));
                if !release.left.is_empty() {
                    message = format!("{message}; left {}", release.left.join(", "));
                }
                notify::tell(run, TOLD, Kind::Normal, format!("released: {message}"));
                return Ok(message);
            }
            Patched::Again => pause(attempt).await,
        }
    }
    run.ctx.deps.metrics.inc(metrics::ANNOTATION_FAILED, &[]);
    Err(Halt::failed(format!("the node was changed by others {ATTEMPTS_MAX} times in a row")))
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
