//! Pure: what follows from what was seen. No clock, no network; each group of findings is a file.

mod admission;
mod gpus;
mod install;
mod rights;
mod running;
mod workloads;

use super::{
    Finding, Level,
    facts::{Facts, Seen},
};

/// Names in one finding: whoever has more looks for them with kubectl.
const NAMED_MAX: usize = 5;

/// Every finding.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut all = install::findings(facts);
    // Who cannot be asked has no objects to speak of.
    if facts.server.is_ok() {
        all.extend(gpus::findings(facts));
        all.extend(workloads::findings(facts));
        all.extend(running::findings(facts));
    }
    all
}

/// Of what could not be seen there is one finding, and nothing follows from it.
fn seen<'a, T>(check: &'static str, fact: &'a Seen<T>, all: &mut Vec<Finding>) -> Option<&'a T> {
    match fact {
        Ok(fact) => Some(fact),
        Err(why) => {
            let next = "look with the kubeconfig of somebody who may";
            all.push(Finding::new(Level::Unseen, check, "", format!("could not be looked at: {why}"), next));
            None
        }
    }
}

/// The first few of them, and how many there are more.
fn some(names: &[&str]) -> String {
    let (first, more) = names.split_at(names.len().min(NAMED_MAX));
    let mut text = first.join(", ");
    if !more.is_empty() {
        text = format!("{text} and {} more", more.len());
    }
    text
}

#[cfg(test)]
mod tests;
