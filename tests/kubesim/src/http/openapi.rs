//! Just enough OpenAPI v3 for clients to learn that field validation and dry run are the server's work.
//! No schemas of built-in types; v2 is not served.

use serde_json::{Map, Value, json};

use super::answer::Answer;
use crate::registry::ResourceKind;
use crate::status::ApiError;
use crate::store::Store;

pub(super) fn answer(store: &Store, path: &str) -> Result<Answer, ApiError> {
    let kinds = store.kinds();
    let document = match path.strip_prefix("/openapi/v3") {
        Some("") => {
            let paths: Map<String, Value> = kinds
                .iter()
                .map(|kind| (place(kind), json!({ "serverRelativeURL": format!("/openapi/v3/{}?hash=0", place(kind)) })))
                .collect();
            json!({ "paths": paths })
        }
        Some(rest) => {
            let wanted = rest.trim_start_matches('/');
            let paths: Map<String, Value> =
                kinds.iter().filter(|kind| place(kind) == wanted).map(|kind| operations(kind)).collect();
            if paths.is_empty() {
                return Err(ApiError::no_such_path());
            }
            json!({ "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": "v1" }, "paths": paths, "components": { "schemas": {} } })
        }
        None => return Err(ApiError::no_such_path()),
    };
    Ok(Answer::value(200, &document))
}

fn place(kind: &ResourceKind) -> String {
    if kind.group.is_empty() { format!("api/{}", kind.version) } else { format!("apis/{}/{}", kind.group, kind.version) }
}

fn operations(kind: &ResourceKind) -> (String, Value) {
    let namespace = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
        .iter()
        .map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string", "uniqueItems": true } }))
        .collect();
    let gvk = json!({ "group": kind.group, "kind": kind.kind, "version": kind.version });
    let operation = |action: &str| {
        json!({
            "operationId": format!("{action}{}", kind.kind), "parameters": parameters, "responses": {},
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk,
        })
    };
    let path = format!("/{}{namespace}/{}/{{name}}", place(kind), kind.plural);
    (path, json!({ "patch": operation("patch"), "put": operation("put") }))
}
