//! Discovery documents: which groups, versions and resources there are. The aggregated form is not served;
//! clients that ask for it see plain JSON and fall back.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use crate::registry::ResourceKind;
use crate::status::ApiError;
use crate::store::Store;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// (group, version, plural, kind, namespaced): created, never stored.
const REVIEWS: &[(&str, &str, &str, &str, bool)] = &[
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", false),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", false),
];

pub(super) fn version(git: &str) -> Value {
    let mut numbers = git.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("36"));
    json!({
        "major": major, "minor": minor, "gitVersion": git, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
    })
}

pub(super) fn answer(store: &Store, path: &str) -> Result<Answer, ApiError> {
    let kinds = store.kinds();
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    let document = match words.as_slice() {
        [] => json!({ "paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"] }),
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["apis"] => json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(&kinds) }),
        ["apis", group] => {
            groups(&kinds).into_iter().find(|g| g["name"] == *group).map(typed_group).ok_or_else(ApiError::no_such_path)?
        }
        ["api", version] => resources(&kinds, "", version)?,
        ["apis", group, version] => resources(&kinds, group, version)?,
        _ => return Err(ApiError::no_such_path()),
    };
    Ok(Answer::value(200, &document))
}

fn typed_group(mut group: Value) -> Value {
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    group
}

fn groups(kinds: &[Arc<ResourceKind>]) -> Vec<Value> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let reviews = REVIEWS.iter().map(|(group, version, ..)| (*group, *version));
    for (group, version) in kinds.iter().map(|kind| (kind.group.as_str(), kind.version.as_str())).chain(reviews) {
        let of_group = versions.entry(group).or_default();
        if !of_group.contains(&version) {
            of_group.push(version);
        }
    }
    versions.remove("");
    versions
        .into_iter()
        .map(|(group, versions)| {
            let named: Vec<Value> =
                versions.iter().rev().map(|v| json!({ "groupVersion": format!("{group}/{v}"), "version": v })).collect();
            json!({ "name": group, "versions": named, "preferredVersion": named[0] })
        })
        .collect()
}

fn resources(kinds: &[Arc<ResourceKind>], group: &str, version: &str) -> Result<Value, ApiError> {
    let mut list: Vec<Value> =
        kinds.iter().filter(|kind| kind.group == group && kind.version == version).flat_map(|kind| entries(kind)).collect();
    let reviews = REVIEWS.iter().filter(|(g, v, ..)| *g == group && *v == version);
    list.extend(reviews.map(|(_, _, plural, kind, namespaced)| {
        json!({ "name": plural, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": ["create"] })
    }));
    if list.is_empty() {
        return Err(ApiError::no_such_path());
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list }))
}

fn entries(kind: &ResourceKind) -> Vec<Value> {
    let mut main = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": VERBS,
    });
    if !kind.short_names.is_empty() {
        main["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        main["categories"] = json!(kind.categories);
    }
    let subresources = kind.subresources.iter().map(|name| subresource(kind, name));
    std::iter::once(main).chain(subresources).collect()
}

fn subresource(kind: &ResourceKind, name: &str) -> Value {
    let (kind_name, group, version, verbs): (&str, &str, &str, &[&str]) = match name {
        "eviction" => ("Eviction", "policy", "v1", &["create"]),
        "binding" => ("Binding", "", "", &["create"]),
        "token" => ("TokenRequest", "authentication.k8s.io", "v1", &["create"]),
        "scale" => ("Scale", "autoscaling", "v1", &["get", "patch", "update"]),
        "log" => (&kind.kind, "", "", &["get"]),
        "finalize" => (&kind.kind, "", "", &["update"]),
        _ => (&kind.kind, "", "", &["get", "patch", "update"]),
    };
    let mut entry = json!({
        "name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced, "kind": kind_name, "verbs": verbs,
    });
    if !group.is_empty() {
        entry["group"] = json!(group);
        entry["version"] = json!(version);
    }
    entry
}
