//! The API server's own record of requests, in the shape in which tests ask about it.
//! Read from the audit log's JSON lines; a line that is still being written is left for the next reading.
//! Never judges: a claim such as "no write happened" is the test's to make.

use serde::Deserialize;

/// One answered request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// As Kubernetes names it: get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// API group, empty for the core one.
    pub group: String,
    /// Plural, empty for paths such as /version.
    pub resource: String,
    /// Such as `status` or `eviction`; empty for the object itself.
    pub subresource: String,
    /// Empty for what is cluster-scoped.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Who asked.
    pub user: String,
    /// What it called itself.
    pub user_agent: String,
    /// HTTP status of the answer.
    pub code: u16,
    /// Path and query.
    pub uri: String,
}

/// Verbs that change nothing.
const READING: [&str; 3] = ["get", "list", "watch"];

impl AuditEntry {
    /// True for whatever asks for a change, also when it was refused. Not for reviews of rights, which are
    /// created but change nothing, and not for what asks in its query for a dry run.
    #[must_use]
    pub fn is_write(&self) -> bool {
        let reads = READING.contains(&self.verb.as_str()) || self.resource.ends_with("reviews");
        !self.resource.is_empty() && !reads && !self.uri.contains("dryRun=All")
    }

    /// True for a request that stays open; one is not counted as a request per healed node.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// `create pods/eviction ns/name 201`, for messages of failed assertions.
    #[must_use]
    pub fn brief(&self) -> String {
        let resource = match self.subresource.as_str() {
            "" => self.resource.clone(),
            sub => format!("{}/{sub}", self.resource),
        };
        format!("{} {resource} {}/{} {} by {}", self.verb, self.namespace, self.name, self.code, self.user_agent)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "auditID")]
    audit_id: String,
    #[serde(default)]
    stage: String,
    #[serde(rename = "requestURI", default)]
    request_uri: String,
    #[serde(default)]
    verb: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
}

#[derive(Deserialize, Default)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    subresource: String,
}

#[derive(Deserialize, Default)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// The whole lines of `text`, one entry for each request.
///
/// A watch has two lines, one when its answer begins and one when it ends; the first is the one kept.
#[must_use]
pub fn parse(text: &str) -> Vec<AuditEntry> {
    let mut seen = std::collections::BTreeSet::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .filter_map(|line| serde_json::from_str::<Line>(line).ok())
        .filter(|line| line.stage != "RequestReceived" && seen.insert(line.audit_id.clone()))
        .map(entry)
        .collect()
}

fn entry(line: Line) -> AuditEntry {
    AuditEntry {
        verb: line.verb,
        group: line.object_ref.api_group,
        resource: line.object_ref.resource,
        subresource: line.object_ref.subresource,
        namespace: line.object_ref.namespace,
        name: line.object_ref.name,
        user: line.user.username,
        user_agent: line.user_agent,
        code: line.response_status.code,
        uri: line.request_uri,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTION: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/n/pods/p/eviction","verb":"create","user":{"username":"admin"},"userAgent":"spoke","objectRef":{"resource":"pods","namespace":"n","name":"p","apiVersion":"v1","subresource":"eviction"},"responseStatus":{"metadata":{},"code":429}}"#;

    #[test]
    fn an_eviction_line_gives_its_subresource_and_answer() {
        let entries = parse(&format!("{EVICTION}\n"));
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].brief(), "create pods/eviction n/p 429 by spoke");
        assert!(entries[0].is_write());
    }

    #[test]
    fn a_half_written_last_line_is_left_for_the_next_reading() {
        assert_eq!(parse(&format!("{EVICTION}\n{}", &EVICTION[..80])).len(), 1);
        assert_eq!(parse(&EVICTION[..80]), vec![]);
    }

    #[test]
    fn a_review_of_rights_and_a_dry_run_are_no_writes() {
        let entry = |resource: &str, uri: &str| AuditEntry {
            verb: "create".into(),
            resource: resource.into(),
            uri: uri.into(),
            ..AuditEntry::default()
        };
        assert!(!entry("selfsubjectaccessreviews", "/x").is_write());
        assert!(!entry("pods", "/api/v1/namespaces/n/pods?dryRun=All").is_write());
        assert!(entry("pods", "/api/v1/namespaces/n/pods").is_write());
    }

    #[test]
    fn a_watch_of_two_stages_is_one_request() {
        let watch = r#"{"auditID":"w","stage":"ResponseStarted","verb":"watch","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}"#;
        let text = format!("{watch}\n{}\n", watch.replace("ResponseStarted", "ResponseComplete"));
        assert_eq!(parse(&text).len(), 1);
        assert!(!parse(&text)[0].is_write());
    }
}
