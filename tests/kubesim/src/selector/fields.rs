//! Pure: field selectors: dotted paths compared with `=`, `==` or `!=`.
//! `spec.nodeName` and the metadata fields are answered without parsing the object.

use serde_json::Value;

use crate::registry::ResourceKind;
use crate::store::{ObjKey, Stored};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    path: String,
    value: String,
    equal: bool,
}

/// A conjunction of comparisons; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<Term>);

impl FieldSelector {
    /// A selector for one resource; a field that the resource does not offer is an error, as on a real server.
    pub(crate) fn parse_for(kind: &ResourceKind, text: &str) -> Result<Self, String> {
        let mut selector = Self::parse(text)?;
        for term in &mut selector.0 {
            if let Some(renamed) = term.path.strip_prefix("regarding.").filter(|_| kind.is("events")) {
                term.path = format!("involvedObject.{renamed}");
            }
            if !offered(kind, &term.path) {
                let resource = format!("{}, Resource={}", kind.api_version(), kind.plural);
                return Err(format!(
                    "Unable to find \"{resource}\" that match label selector \"\", field selector \"{text}\": field label not supported: {}",
                    term.path
                ));
            }
        }
        Ok(selector)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let terms = text.split(',').map(str::trim).filter(|term| !term.is_empty());
        terms.map(parse_term).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, key: &ObjKey, stored: &Stored) -> bool {
        let mut parsed = None;
        self.0.iter().all(|term| {
            let equal = match term.path.as_str() {
                "metadata.name" => *key.name == *term.value,
                "metadata.namespace" => *key.namespace == *term.value,
                "spec.nodeName" => stored.node.as_deref().unwrap_or_default() == term.value,
                path => shown(parsed.get_or_insert_with(|| stored.bare()), path) == term.value,
            };
            equal == term.equal
        })
    }
}

fn offered(kind: &ResourceKind, path: &str) -> bool {
    let own: &[&str] = match &*kind.storage {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        "nodes" => &["spec.unschedulable"],
        name if name.starts_with("resourceslices") => &["spec.nodeName", "spec.driver"],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "secrets" => &["type"],
        "namespaces" => &["status.phase"],
        "replicasets.apps" | "replicationcontrollers" => &["status.replicas"],
        "jobs.batch" => &["status.successful"],
        _ => &[],
    };
    let selectable =
        kind.custom.as_ref().is_some_and(|custom| custom.selectable.iter().any(|field| field.trim_start_matches('.') == path));
    matches!(path, "metadata.name" | "metadata.namespace") || own.contains(&path) || selectable
}

fn parse_term(term: &str) -> Result<Term, String> {
    let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
        (path, value, false)
    } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (path, value, true)
    } else {
        return Err(format!("invalid selector: '{term}'; can't understand '{term}'"));
    };
    Ok(Term { path: path.trim().into(), value: value.trim().into(), equal })
}

/// A scalar as a field selector compares it; an absent boolean or string is empty.
fn shown(object: &Value, path: &str) -> String {
    let path = if path == "source" { "source.component" } else { path };
    let value = path.split('.').try_fold(object, |value, field| value.get(field));
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        None if path == "spec.unschedulable" => "false".into(),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_by_dotted_path() {
        let object = json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": { "nodeName": "a" }, "status": { "phase": "Running" }, "involvedObject": { "kind": "Node" } });
        let stored = Stored::new(object, 1);
        let key = ObjKey::new("n", "p");
        let matches = |text: &str| FieldSelector::parse(text).unwrap().matches(&key, &stored);
        for yes in [
            "",
            "spec.nodeName=a",
            "metadata.name==p,metadata.namespace=n",
            "status.phase!=Failed",
            "involvedObject.kind=Node",
            "spec.unschedulable=false",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in ["spec.nodeName=b", "metadata.name!=p", "status.phase=Failed", "involvedObject.name=x"] {
            assert!(!matches(no), "{no}");
        }
    }
}
