//! PATCH in its four formats, and the scale subresource.

use std::sync::Arc;

use ::http::header;
use serde_json::{Value, json};

use super::answer::Answer;
use super::dispatch::Call;
use crate::managed::{self, Apply};
use crate::obj;
use crate::patch::{self, JsonPatch, PatchError};
use crate::rest::{self, Part, WriteOptions};
use crate::status::{ApiError, Cause};
use crate::store::Stored;

pub(super) fn answer(call: &Call<'_>, part: Part) -> Result<Answer, ApiError> {
    let content_type = call.asked.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned();
    let body = call.decode()?;
    if content_type == "application/apply-patch+yaml" {
        return apply(call, part, body);
    }
    let change = Change::decode(call, &content_type, body)?;
    let key = call.key();
    let stored = call.asked.app.store.write(call.dry_run()?, |txn| {
        let stored = txn.get(&call.kind.storage, &key).ok_or_else(|| ApiError::not_found(&call.kind, &key.name))?;
        let object = change.apply(&stored.value(&call.kind))?;
        same_name(call, &object)?;
        rest::update(txn, &call.kind, object, part, &call.options())
    })?;
    Ok(call.show(200, &stored))
}

enum Change {
    Json(JsonPatch),
    Merge(Value),
    Strategic(Value),
}

impl Change {
    fn decode(call: &Call<'_>, content_type: &str, body: Value) -> Result<Self, ApiError> {
        match content_type {
            "application/json-patch+json" => JsonPatch::parse(&body).map(Self::Json).map_err(refused),
            "application/merge-patch+json" if body.is_object() => Ok(Self::Merge(body)),
            "application/strategic-merge-patch+json" if call.kind.custom.is_none() && body.is_object() => Ok(Self::Strategic(body)),
            "application/merge-patch+json" | "application/strategic-merge-patch+json" if !body.is_object() => {
                Err(ApiError::bad_request("cannot unmarshal patch: not an object"))
            }
            other => Err(ApiError::unsupported_media(other)),
        }
    }

    fn apply(&self, object: &Value) -> Result<Value, ApiError> {
        let mut object = object.clone();
        match self {
            Self::Json(patch) => return patch.apply(&object).map_err(refused),
            Self::Merge(patch) => patch::merge(&mut object, patch),
            Self::Strategic(patch) => patch::strategic_merge(&mut object, patch),
        }
        Ok(object)
    }
}

fn refused(error: PatchError) -> ApiError {
    match error {
        PatchError::Malformed(why) => ApiError::bad_request(format!("error decoding patch: {why}")),
        PatchError::DoesNotApply(_) => ApiError::patch_does_not_apply(),
    }
}

fn same_name(call: &Call<'_>, object: &Value) -> Result<(), ApiError> {
    let key = call.key();
    if obj::name(object) == &*key.name && obj::namespace(object) == &*key.namespace {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({}) does not match the name on the URL ({})",
        obj::name(object),
        key.name
    )))
}

/// Server-side apply: the given fields become so; the object is made when it is not there.
fn apply(call: &Call<'_>, part: Part, mut wanted: Value) -> Result<Answer, ApiError> {
    if call.asked.info.param("fieldManager").is_empty() {
        let cause = Cause::required("fieldManager", "is required for apply patch");
        let options =
            crate::registry::ResourceKind { kind: "PatchOptions".into(), group: "meta.k8s.io".into(), ..(*call.kind).clone() };
        return Err(ApiError::invalid(&options, "", &[cause]));
    }
    let key = call.key();
    let metadata = obj::metadata(&mut wanted);
    metadata.entry("name").or_insert_with(|| json!(&*key.name));
    if call.kind.namespaced {
        metadata.insert("namespace".into(), json!(&*key.namespace));
    }
    same_name(call, &wanted)?;
    let options = WriteOptions { applied: true, ..call.options() };
    let force = call.asked.info.flag("force");
    let (code, stored) = call.asked.app.store.write(call.dry_run()?, |txn| {
        let now = txn.clock.stamp();
        let how = Apply { manager: &options.manager, force, part, now: &now };
        let current = txn.get(&call.kind.storage, &key).map(|stored| stored.value(&call.kind));
        let object = managed::apply(&call.kind, current.as_ref(), &wanted, &how)?;
        if current.is_some() {
            rest::update(txn, &call.kind, object, part, &options).map(|stored| (200, stored))
        } else {
            rest::create(txn, &call.kind, &key.namespace, object, &options).map(|stored| (201, stored))
        }
    })?;
    Ok(call.show(code, &stored))
}

/// `autoscaling/v1` Scale over `spec.replicas`.
pub(super) fn scale(call: &Call<'_>) -> Result<Answer, ApiError> {
    let key = call.key();
    let missing = || ApiError::not_found(&call.kind, &key.name);
    let paths = ScalePaths::of(call);
    if call.asked.info.verb == "get" {
        let stored = call.asked.app.store.load(&call.kind.storage, &key).ok_or_else(missing)?;
        return Ok(Answer::value(200, &paths.show(&stored.value(&call.kind))));
    }
    let body = call.decode()?;
    let content_type = call.asked.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned();
    let stored: Arc<Stored> = call.asked.app.store.write(call.dry_run()?, |txn| {
        let stored = txn.get(&call.kind.storage, &key).ok_or_else(missing)?;
        let mut object = stored.value(&call.kind);
        let scale = match call.asked.info.verb.as_str() {
            "update" => body,
            _ => Change::decode(call, &content_type, body)?.apply(&paths.show(&object))?,
        };
        let version = obj::resource_version(&scale);
        if !version.is_empty() && version != obj::resource_version(&object) {
            return Err(ApiError::modified(&call.kind, &key.name));
        }
        obj::child(&mut object, "spec").insert("replicas".into(), scale["spec"]["replicas"].clone());
        rest::update(txn, &call.kind, object, Part::Main, &call.options())
    })?;
    Ok(Answer::value(200, &paths.show(&stored.value(&call.kind))))
}

struct ScalePaths {
    status: String,
}

impl ScalePaths {
    fn of(call: &Call<'_>) -> Self {
        let declared = call.kind.custom.as_ref().and_then(|custom| custom.scale.as_ref());
        let status = declared.map_or(".status.replicas", |scale| obj::text(scale, "/statusReplicasPath"));
        Self { status: status.replace('.', "/") }
    }

    fn show(&self, object: &Value) -> Value {
        let metadata: serde_json::Map<String, Value> = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"]
            .iter()
            .map(|field| ((*field).to_owned(), object["metadata"][field].clone()))
            .collect();
        json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": { "replicas": object["spec"]["replicas"] },
            "status": { "replicas": obj::int(object, &self.status).unwrap_or(0), "selector": selector_text(object) },
        })
    }
}

fn selector_text(object: &Value) -> String {
    let terms: Vec<String> =
        obj::entries(object, "/spec/selector/matchLabels").map(|(key, value)| format!("{key}={value}")).collect();
    terms.join(",")
}
