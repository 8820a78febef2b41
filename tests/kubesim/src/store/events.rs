//! Pure: core/v1 Event and events.k8s.io/v1 Event are one stored object under two sets of names.

use serde_json::{Value, json};

/// (core/v1, events.k8s.io/v1)
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(crate) fn to_events_v1(mut event: Value) -> Value {
    rename(&mut event, NAMES.iter().copied());
    event["apiVersion"] = json!("events.k8s.io/v1");
    event
}

pub(crate) fn to_core(mut event: Value) -> Value {
    rename(&mut event, NAMES.iter().map(|(core, new)| (*new, *core)));
    event["apiVersion"] = json!("v1");
    event
}

fn rename<'n>(event: &mut Value, names: impl Iterator<Item = (&'n str, &'n str)>) {
    let Some(map) = event.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}
