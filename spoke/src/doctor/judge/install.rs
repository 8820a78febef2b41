//! Findings about the API server and about what of ours is in the cluster.

use std::time::Duration;

use gpuheal_proto::kubernetes::{CONFIG_MAP, FENCE, LEASE};
use gpuheal_spoke_core::ceiling::{Config, parse};
use serde_json::Value;

use super::{
    admission::{self, POLICIES_SINCE},
    rights, seen,
};
use crate::{
    doctor::{
        Finding, Level,
        facts::{Facts, Lease, OwnersConfig, Server},
    },
    fence,
    healaction::HealAction,
    ports::Lost,
    rights::Sheet,
};

/// The Eviction API of policy/v1.
const FLOOR: (u32, u32) = (1, 22);
/// What the tests run against.
const TESTED: &str = "1.36";
/// Two machines that ask the same time servers are milliseconds apart; certificates bear five minutes.
const CLOCK_WARNING: Duration = Duration::from_secs(10);
/// From here on the spoke takes the hub's time for unknown.
const CLOCK_PROBLEM: Duration = Duration::from_secs(30);

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let server = match &facts.server {
        Ok(server) => server,
        Err(why) => {
            let next = "check the kubeconfig, the network and the API server";
            all.push(Finding::new(Level::Problem, "version", "", format!("the API server cannot be asked: {why}"), next));
            return all;
        }
    };
    version(server, &mut all);
    clock(server, &mut all);
    home(facts, &mut all);
    if let Some(account) = seen("rights", &facts.account, &mut all) {
        rights::findings(facts, account, &mut all);
    }
    crd(facts, &mut all);
    all.extend(admission::findings(facts, server));
    objects(facts, &mut all);
    all
}

fn version(server: &Server, all: &mut Vec<Finding>) {
    let is = &server.version;
    let mut tell = |level, found, next| all.push(Finding::new(level, "version", "", found, next));
    if server.number < FLOOR {
        tell(Level::Problem, format!("Kubernetes {is} has no policy/v1 evictions"), "upgrade to 1.22 or later");
    } else if server.number < POLICIES_SINCE {
        let found = format!("Kubernetes {is} has no ValidatingAdmissionPolicy: RBAC alone guards what the spoke changes of a node");
        tell(Level::Warning, found, "upgrade to 1.30 or later, or accept it");
    } else {
        tell(Level::Ok, format!("Kubernetes {is}; tested with {TESTED}"), "");
    }
}

fn clock(server: &Server, all: &mut Vec<Finding>) {
    let Some(off) = server.clock_off else { return };
    let found = format!("the API server's clock and this machine's are {} s apart", off.as_secs());
    let next = "synchronise both clocks (chrony, systemd-timesyncd)";
    let level = match off {
        off if off > CLOCK_PROBLEM => Level::Problem,
        off if off > CLOCK_WARNING => Level::Warning,
        _ => Level::Ok,
    };
    all.push(Finding::new(level, "clock", "", found, if level == Level::Ok { "" } else { next }));
}

fn home(facts: &Facts, all: &mut Vec<Finding>) {
    let Some(there) = seen("namespace", &facts.home, all) else { return };
    let name = &facts.namespace;
    all.push(if *there {
        Finding::new(Level::Ok, "namespace", name, "is there".to_owned(), "")
    } else {
        Finding::new(Level::Problem, "namespace", name, "is missing".to_owned(), &Sheet::Observe.apply(name))
    });
}

fn crd(facts: &Facts, all: &mut Vec<Finding>) {
    const CHECK: &str = "crd";
    let next = "kubectl apply -f deploy/spoke/crd.yaml";
    let Some(crd) = seen(CHECK, &facts.crd, all) else { return };
    let Some(crd) = crd else {
        return all.push(Finding::new(Level::Problem, CHECK, "HealAction", "is missing".to_owned(), next));
    };
    use kube::CustomResourceExt as _;
    let ours = serde_json::to_value(HealAction::crd()).expect("a CRD made of our own types is JSON");
    all.push(if holds(&crd["spec"], &ours["spec"]) {
        Finding::new(Level::Ok, CHECK, "HealAction", "is the one of this version".to_owned(), "")
    } else {
        let found = format!("is not the one of this spoke, {}", env!("CARGO_PKG_VERSION"));
        Finding::new(Level::Problem, CHECK, "HealAction", found, next)
    });
}

/// Lease, fence and the owner's ConfigMap.
fn objects(facts: &Facts, all: &mut Vec<Finding>) {
    let observe = Sheet::Observe.apply(&facts.namespace);
    if let Some(there) = seen("lease", &facts.lease, all) {
        all.push(match there {
            None => Finding::new(Level::Problem, "lease", LEASE, "is missing, and no spoke may make it".to_owned(), &observe),
            Some(there) => lease(there),
        });
    }
    if let Some(there) = seen("fence", &facts.fence, all) {
        all.push(match there.as_ref().map(fence::parse) {
            None => Finding::new(Level::Problem, "fence", FENCE, "is missing, and no spoke may make it".to_owned(), &observe),
            Some(Err(error)) => {
                let next = "put the numbers back that the hub has given out: with them wrong nothing is executed";
                Finding::new(Level::Problem, "fence", FENCE, error.to_string(), next)
            }
            Some(Ok(fence)) => {
                let found = format!("key epoch {}, hub term {}", fence.key_epoch, fence.hub_term);
                Finding::new(Level::Ok, "fence", FENCE, found, "")
            }
        });
    }
    if let Some(there) = seen("config", &facts.config, all) {
        let was_there = matches!(&facts.fence, Ok(Some(data)) if fence::says_seen(Some(data)));
        match there {
            OwnersConfig::Missing if was_there => all.push(lost(Lost::ObjectUnread)),
            OwnersConfig::Missing => {
                let found = "is not there: nothing narrows what the hub's policy allows here".to_owned();
                all.push(Finding::new(Level::Note, "config", CONFIG_MAP, found, "make one with a ceiling (docs/execution.md)"));
            }
            OwnersConfig::NoKey => all.push(lost(Lost::KeyUnread)),
            OwnersConfig::Text(text) => config(facts, text, all),
        }
    }
}

/// As a spoke says it that starts now; one that has read a text before goes by that.
fn lost(lost: Lost) -> Finding {
    let next = "write its key config.yaml; an empty document lifts the ceiling";
    Finding::new(Level::Problem, "config", CONFIG_MAP, format!("a spoke that starts now says: {lost}"), next)
}

fn lease(lease: &Lease) -> Finding {
    let (level, found, next) = match (lease.holder.as_str(), lease.age) {
        ("", _) => (Level::Note, "nobody leads: no spoke runs yet, or all have ended".to_owned(), ""),
        (holder, Some(age)) if age > lease.lasts => {
            let found = format!("{holder} held it last, {} s ago: no spoke runs", age.as_secs());
            (Level::Warning, found, "look at the spokes' logs and at the API server's latency")
        }
        (holder, _) => (Level::Ok, format!("{holder} leads"), ""),
    };
    Finding::new(level, "lease", LEASE, found, next)
}

fn config(facts: &Facts, text: &str, all: &mut Vec<Finding>) {
    let mut tell = |level, found: String, next: &str| all.push(Finding::new(level, "config", CONFIG_MAP, found, next));
    let config: Config = match parse(text) {
        Ok(config) => config,
        Err(errors) => {
            for error in errors {
                tell(Level::Problem, error.to_string(), "mend it: a spoke that starts with it only observes");
            }
            return;
        }
    };
    if config.ceiling.stop {
        tell(Level::Warning, "ceiling.stop is true: nothing but releases is done".to_owned(), "take it off to go on");
    }
    tell(Level::Ok, format!("its own limit is mode {}, asked for is {}", config.mode(), facts.mode.name()), "");
}

/// Whether all of `ours` is in what the API server has, which fills in defaults of its own.
fn holds(theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            ours.iter().all(|(key, ours)| theirs.get(key).map_or(ours.is_null(), |theirs| holds(theirs, ours)))
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len() && theirs.iter().zip(ours).all(|(theirs, ours)| holds(theirs, ours))
        }
        (Value::Number(theirs), Value::Number(ours)) => theirs.as_f64() == ours.as_f64(),
        (theirs, ours) => theirs == ours,
    }
}
