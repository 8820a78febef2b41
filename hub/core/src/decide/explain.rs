//! `explain`: the decision taken again on what is known now, in lines for people. Nothing here decides.

use std::fmt::Write as _;

use gpuheal_proto::time::Timestamp;

use super::{Decision, Explanation, decide};
use crate::{policy::Policy, snapshot::Snapshot};

/// Decides as `decide` would now, and says it in words.
#[must_use]
pub fn explain(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Explanation {
    let decision = decide(snapshot, policy, now);
    let text = text(snapshot, policy, &decision).unwrap_or_default();
    Explanation { decision, text }
}

fn text(snapshot: &Snapshot, policy: &Policy, decision: &Decision) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let node = &snapshot.node;
    writeln!(
        out,
        "node {} of cluster {}, policy {} revision {}",
        node.reference.name, snapshot.cluster.id, policy.name, policy.revision
    )?;
    match &decision.incident {
        Some(incident) if incident.opens => writeln!(out, "would open an incident: {} {}", incident.state, incident.level)?,
        Some(incident) => writeln!(out, "incident {}: {} {}", incident.id, incident.state, incident.level)?,
        None => writeln!(out, "no incident")?,
    }
    section(&mut out, "because", &decision.reasons)?;
    let verdicts: Vec<String> = decision
        .verdicts
        .iter()
        .map(|verdict| {
            let fault = snapshot.faults.iter().find(|fault| fault.key == verdict.key);
            let name = fault.map_or_else(|| verdict.key.to_string(), super::judge::name);
            let outcome = verdict.outcome.as_str();
            format!("{name}: {outcome}, {} by {}, mode {}: {}", verdict.level, verdict.rule, verdict.mode, verdict.reason)
        })
        .collect();
    section(&mut out, "faults", &verdicts)?;
    let commands: Vec<String> = decision
        .commands
        .iter()
        .map(|command| {
            let steps: Vec<&str> = command.steps.iter().map(gpuheal_proto::command::Step::name).collect();
            format!("{} ({}), plan revision {}", command.action, steps.join(", "), command.plan_rev)
        })
        .collect();
    section(&mut out, "would command", &commands)?;
    section(&mut out, "what would change it", &decision.would_change)?;
    if let Some(at) = decision.recheck_at {
        writeln!(out, "looked at again at {at}")?;
    }
    Ok(out)
}

fn section(out: &mut String, title: &str, lines: &[String]) -> std::fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "{title}:")?;
    lines.iter().try_for_each(|line| writeln!(out, "  - {line}"))
}
