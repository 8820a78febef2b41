//! Others write to the node all the time, before, between and after our own writes: what they wrote last is what is there, and
//! of us there is nothing but what a release leaves. Races are real ones, and some of them are lost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use gpuheal_proto::{command::Step, link::v1::CommandState};
use kube::Client;
use serde_json::{Value, json};
use testkube::raw;
use tokio_util::sync::CancellationToken;

use crate::{
    hub::{mark, release},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    whatever_others_write_while_we_mark_and_release_is_there_afterwards,
    a_cordon_is_ours_also_when_a_mark_in_between_asked_for_none,
];

/// Under it are all keys of the one who writes here.
const FOREIGN: &str = "foreign.example.com/";
/// Keys of each kind.
const KEYS: u32 = 4;
/// Marks with their releases, at least.
const ROUNDS_MIN: u64 = 3;
/// And at most, until one of our patches has lost a race: one in fifty does where each write is slow, and one of eight hundred is sure to.
const ROUNDS_MAX: u64 = 400;
/// Mean pause between two of its writes, in times that one takes. Ours takes two or three of them, record, look and patch: it loses a
/// race now and then on a machine of any speed, and never the twelve in a row after which it gives up.
const PAUSE: f64 = 8.0;
/// One that was held up counts as no longer than this: a pause of seconds would outlast all rounds.
const TOOK_MAX: Duration = Duration::from_millis(20);

/// What the other one wrote last.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kept {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// In their order.
    taints: Vec<Value>,
    /// By its type.
    conditions: BTreeMap<String, String>,
}

impl Kept {
    fn of(node: &Value) -> Self {
        let map = |field: &str| {
            let all = node["metadata"][field].as_object().into_iter().flatten();
            all.filter(|(key, _)| key.starts_with(FOREIGN)).map(|(key, value)| (key.clone(), text(value))).collect()
        };
        let list = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let taints = list(&node["spec"]["taints"]).into_iter().filter(|taint| text(&taint["key"]).starts_with(FOREIGN));
        let conditions = list(&node["status"]["conditions"]).into_iter();
        let conditions = conditions.map(|one| (text(&one["type"]), text(&one["reason"])));
        Self {
            labels: map("labels"),
            annotations: map("annotations"),
            taints: taints.collect(),
            conditions: conditions.filter(|(kind, _)| kind.starts_with(FOREIGN)).collect(),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn draw(below: u32) -> u32 {
    getrandom::u32().unwrap() % below
}

/// Writes at random until told to stop. A write is of the whole object as it was read, as many controllers do it, and is done
/// again when it has lost a race; what it says of a condition is a patch of the status.
async fn writes(client: Client, path: String, stop: CancellationToken) -> Kept {
    let mut kept = Kept::default();
    let mut took = Duration::ZERO;
    while !stop.is_cancelled() {
        tokio::time::sleep(took.min(TOOK_MAX).mul_f64(PAUSE * f64::from(draw(100)) / 50.0)).await;
        let began = Instant::now();
        let (key, value) = (format!("{FOREIGN}k{}", draw(KEYS)), draw(1000).to_string());
        if draw(5) == 0 {
            let condition = json!({"type": key, "status": "True", "reason": format!("R{value}")});
            let patch = json!({"status": {"conditions": [condition]}});
            raw::patch(&client, &format!("{path}/status"), raw::STRATEGIC_MERGE_PATCH, &patch).await.expect(200);
            kept.conditions.insert(key, format!("R{value}"));
            took = began.elapsed();
            continue;
        }
        let what = draw(5);
        loop {
            let mut node = raw::get(&client, &path).await.expect(200).json;
            write(&mut node, what, &key, &value);
            let answer = raw::put(&client, &path, &node).await;
            if answer.code != 409 {
                let conditions = kept.conditions;
                kept = Kept { conditions, ..Kept::of(&answer.expect(200).json) };
                break;
            }
        }
        took = began.elapsed();
    }
    kept
}

fn write(node: &mut Value, what: u32, key: &str, value: &str) {
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.retain(|taint| taint["key"] != key);
    match what {
        0 => node["metadata"]["labels"][key] = json!(value),
        1 => drop(node["metadata"]["labels"].as_object_mut().unwrap().remove(key)),
        2 => node["metadata"]["annotations"][key] = json!(value),
        3 => {
            let at = "2026-01-01T00:00:00Z";
            taints.push(json!({"key": key, "value": value, "effect": "PreferNoSchedule", "timeAdded": at}));
            node["spec"]["taints"] = json!(taints);
        }
        _ => node["spec"]["taints"] = json!(taints),
    }
}

async fn whatever_others_write_while_we_mark_and_release_is_there_afterwards(w: World) {
    let w = Arc::new(w);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let stop = CancellationToken::new();
    let path = format!("/api/v1/nodes/{}", w.name("n1"));
    let other = tokio::spawn(writes(w.admin.clone(), path, stop.clone()));
    let mut lost = 0;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && lost > 0 {
            break;
        }
        let marked = spoke.carry_out(&w.command("n1", 2 * round + 1, vec![mark()]).await).await;
        assert_eq!(marked.state(), CommandState::Succeeded, "{}", marked.reason);
        let released = spoke.carry_out(&w.command("n1", 2 * round + 2, vec![release(marked.undo.clone())]).await).await;
        assert_eq!(released.state(), CommandState::Succeeded, "{}", released.reason);
        let writes = w.writes_to("nodes").await;
        lost = writes.iter().filter(|write| write.code == 409).count();
        spoke.ack(&marked).await;
        spoke.ack(&released).await;
    }
    stop.cancel();
    let kept = other.await.unwrap();
    let node = w.node("n1").await;
    assert!(lost > 0, "no race was lost: nothing was shown");
    assert_eq!(Kept::of(&node), kept);
    assert_eq!(marks(&node), (false, 0, false), "{node}");
    assert_ne!(kept, Kept::default());
}

async fn a_cordon_is_ours_also_when_a_mark_in_between_asked_for_none(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut undo = None;
    for (plan_rev, cordon) in [(1, true), (2, false), (3, true)] {
        spoke.sees(&w, "n1").await;
        let step = Step::Mark { label: true, taint: true, cordon };
        let end = spoke.carry_out(&w.command("n1", plan_rev, vec![step]).await).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
        undo = end.undo;
    }
    let end = spoke.carry_out(&w.command("n1", 4, vec![release(undo)]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false), "{}", end.reason);
}
