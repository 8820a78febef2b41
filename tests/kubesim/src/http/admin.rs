//! The cluster's own switches over HTTP, under /kubesim/v1/. For the admin only; neither recorded nor faulty.
//!
//! GET, POST, DELETE faults (and DELETE faults/ID) · POST watches/drop?resource= · POST compact · POST clock?advanceMs= |
//! skewSeconds= · GET, DELETE requests (?since=&writes=1&resource=) · POST nodes/NAME/replace.

use std::time::Duration;

use ::http::Method;
use axum::body::Bytes;
use serde_json::{Value, json};

use super::App;
use super::answer::Answer;
use super::info::Info;
use crate::config::User;
use crate::faults::{Fault, FaultId};
use crate::recorder::Record;
use crate::sim::ADMIN;
use crate::status::ApiError;

pub(super) fn answer(app: &App, user: &User, method: &Method, path: &str, info: &Info, body: &Bytes) -> Answer {
    if user.name != ADMIN {
        return ApiError::new(403, "Forbidden", "only the admin may do that").into();
    }
    act(app, method, path, info, body).map_or_else(Answer::from, |value| Answer::value(200, &value))
}

fn act(app: &App, method: &Method, path: &str, info: &Info, body: &Bytes) -> Result<Value, ApiError> {
    let words: Vec<&str> = path.split('/').collect();
    match (method.as_str(), words.as_slice()) {
        ("GET", ["faults"]) => Ok(
            json!({ "items": app.faults.all().iter().map(|(id, fault)| json!({ "id": id, "fault": fault })).collect::<Vec<_>>() }),
        ),
        ("POST", ["faults"]) => {
            let fault: Fault = serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
            Ok(json!({ "id": app.faults.add(fault) }))
        }
        ("DELETE", ["faults"]) => {
            app.faults.clear();
            Ok(json!({}))
        }
        ("DELETE", ["faults", id]) => {
            let id = id.parse().map_err(|_| ApiError::bad_request("a fault's id is a number"))?;
            if app.faults.remove(FaultId(id)) { Ok(json!({})) } else { Err(ApiError::no_such_path()) }
        }
        ("POST", ["watches", "drop"]) => {
            app.faults.drop_watches(if info.param("resource").is_empty() { "*" } else { info.param("resource") });
            Ok(json!({}))
        }
        ("POST", ["compact"]) => {
            app.store.compact();
            Ok(json!({}))
        }
        ("POST", ["clock"]) => {
            if let Some(ms) = info.number("advanceMs") {
                app.clock.advance(Duration::from_millis(ms));
            }
            if let Ok(seconds) = info.param("skewSeconds").parse() {
                app.faults.set_clock_skew(seconds);
            }
            Ok(json!({ "now": app.clock.stamp_micros() }))
        }
        ("GET", ["requests"]) => Ok(requests(app, info)),
        ("DELETE", ["requests"]) => {
            app.recorder.clear();
            Ok(json!({}))
        }
        ("POST", ["nodes", name, "replace"]) => app.store.replace_node(name),
        _ => Err(ApiError::no_such_path()),
    }
}

fn requests(app: &App, info: &Info) -> Value {
    let (writes, resource) = (info.flag("writes"), info.param("resource"));
    let wanted = |record: &Record| {
        (!writes || record.is_write()) && (resource.is_empty() || record.resource == resource || record.target() == resource)
    };
    let items: Vec<Record> = app.recorder.requests_since(info.number("since").unwrap_or(0)).into_iter().filter(wanted).collect();
    json!({ "next": app.recorder.mark(), "items": items })
}
