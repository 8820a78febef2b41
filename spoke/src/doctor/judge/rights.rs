//! Findings about what the account may do: whether it has every right that its mode takes, where it has them, and what it may beyond.

use std::collections::BTreeMap;

use gpuheal_spoke_core::ceiling::{Config, parse};

use super::some;
use crate::{
    doctor::{
        Finding, Level,
        facts::{Account, Facts},
    },
    rights::{Grant, Place, RIGHTS, Right},
};

/// A row of the table, and one of its verbs.
type Asked = (usize, &'static Right, &'static str);

pub(super) fn findings(facts: &Facts, account: &Account, all: &mut Vec<Finding>) {
    let who = account.user.as_str();
    let mut held_all = true;
    for grant in Grant::ALL.into_iter().filter(|grant| facts.mode.covers(*grant)) {
        held_all &= lacking(facts, account, grant, all);
    }
    if held_all {
        all.push(Finding::new(Level::Ok, "rights", who, format!("has every right that {} takes", facts.mode.name()), ""));
    }
    if !account.ours {
        let found = "these are the asker's rights: those of the spoke's account could not be asked for".to_owned();
        let next = "ask as the spoke's account, or as somebody who may review access";
        all.push(Finding::new(Level::Note, "rights", who, found, next));
        return;
    }
    further(facts, account, all);
}

/// At most one problem for each file that would mend something. Whether nothing is lacking.
fn lacking(facts: &Facts, account: &Account, grant: Grant, all: &mut Vec<Finding>) -> bool {
    let who = account.user.as_str();
    let rows = rows(|right| right.grant == grant);
    let lacking: Vec<&Asked> = rows.iter().filter(|asked| !everywhere(account, asked)).collect();
    let narrow = narrow(account, &lacking);
    let of_namespaces = |asked: &&&Asked| !narrow.is_empty() && asked.1.place == Place::Workloads;
    let names: Vec<String> = lacking.iter().filter(|asked| !of_namespaces(asked)).map(|asked| named(asked)).collect();
    let apply = grant.sheet().apply_within(&facts.namespace, if grant.narrows() { &facts.namespaces } else { &[] });
    let mut problem = |found: String, next: &str| all.push(Finding::new(Level::Problem, "rights", who, found, next));
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        problem(format!("lacks {} of {} rights for {}: {}", names.len(), rows.len(), grant.name(), some(&names)), &apply);
        return false;
    }
    if narrow.is_empty() {
        let wider = grant.narrows() && !facts.namespaces.is_empty();
        if wider {
            let found = format!("has {} in every namespace, and not in those alone that --namespaces names", grant.name());
            let next = format!("kubectl delete -f deploy/spoke/{}, then {apply}", grant.sheet().file());
            all.push(Finding::new(Level::Warning, "rights", who, found, &next));
        }
        return true;
    }
    let without: Vec<&str> = facts.namespaces.iter().map(String::as_str).filter(|named| !narrow.contains(named)).collect();
    if !without.is_empty() {
        problem(format!("lacks the rights for {} in {}", grant.name(), some(&without)), &apply);
    }
    let found = format!("has {} in these namespaces alone: {}", grant.name(), some(&narrow));
    all.push(Finding::new(Level::Note, "rights", who, found, ""));
    if grant == Grant::Heal {
        left_behind(facts, account, &narrow, all);
    }
    without.is_empty()
}

/// Namespaces with GPU pods that a drain may not touch: it leaves them where they are, and the node is not drained.
fn left_behind(facts: &Facts, account: &Account, narrow: &[&str], all: &mut Vec<Finding>) {
    let Ok(pods) = &facts.pods else { return };
    let config: Option<Config> = facts.config.as_ref().ok().and_then(|config| parse(config.text()?).ok());
    let mut by_namespace: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        *by_namespace.entry(&pod.namespace).or_default() += 1;
    }
    for (namespace, count) in by_namespace {
        if narrow.contains(&namespace) || !account.within.contains_key(namespace) || facts.namespaces.iter().any(|n| n == namespace)
        {
            continue;
        }
        let pods = format!("{count} GPU pod{}", if count == 1 { "" } else { "s" });
        all.push(if config.as_ref().is_some_and(|config| !config.namespace_allowed(namespace)) {
            let found = format!("{pods} whose eviction the account has no right to, and that the ceiling leaves out too");
            Finding::new(Level::Note, "rights", namespace, found, "")
        } else {
            let found = format!("{pods} whose eviction the account has no right to: a node with such a one is not drained");
            let wider: Vec<String> = narrow.iter().copied().chain([namespace]).map(str::to_owned).collect();
            let apply = Grant::Heal.sheet().apply_within(&facts.namespace, &wider);
            let next = format!("{apply}, or leave the namespace out of the ceiling's too");
            Finding::new(Level::Warning, "rights", namespace, found, &next)
        });
    }
}

/// What no spoke ever does, and what this one is not to do.
fn further(facts: &Facts, account: &Account, all: &mut Vec<Finding>) {
    let who = account.user.as_str();
    if !account.beyond.is_empty() {
        let names: Vec<&str> = account.beyond.iter().map(String::as_str).collect();
        let found = format!("may do what no spoke ever does: {}", some(&names));
        all.push(Finding::new(Level::Warning, "rights", who, found, "find the binding that gives it, and take it away"));
    }
    let further = rows(|right| !facts.mode.covers(right.grant));
    let further = further.iter().filter(|asked| everywhere(account, asked));
    let further: Vec<String> = further.map(|asked| format!("{} ({})", named(asked), asked.1.grant.name())).collect();
    if !further.is_empty() {
        let names: Vec<&str> = further.iter().map(String::as_str).collect();
        let found = format!("goes further than {}: {}", facts.mode.name(), some(&names));
        all.push(Finding::new(Level::Note, "rights", who, found, ""));
    }
}

fn rows(of: impl Fn(&Right) -> bool) -> Vec<Asked> {
    let rows = RIGHTS.iter().enumerate().filter(|(_, right)| of(right));
    rows.flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, right, *verb))).collect()
}

fn named((_, right, verb): &Asked) -> String {
    format!("{verb} {}", right.resource)
}

/// It is held wherever its row says, and about pods and workloads in the whole cluster.
fn everywhere(account: &Account, (at, _, verb): &Asked) -> bool {
    account.held.get(&(*at, *verb)) == Some(&true)
}

/// Namespaces that have all of what is lacking elsewhere.
fn narrow<'a>(account: &'a Account, lacking: &[&Asked]) -> Vec<&'a str> {
    let mut of_namespaces = lacking.iter().filter(|asked| asked.1.place == Place::Workloads).peekable();
    if of_namespaces.peek().is_none() {
        return Vec::new();
    }
    let keys: Vec<_> = of_namespaces.map(|(at, _, verb)| (*at, *verb)).collect();
    let has_all = account.within.iter().filter(|(_, held)| keys.iter().all(|key| held.contains(key)));
    has_all.map(|(namespace, _)| namespace.as_str()).collect()
}
