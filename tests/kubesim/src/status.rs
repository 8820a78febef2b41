//! `metav1.Status` answers with the codes, reasons and wording of a real API server.
//! Pure. Clients branch on these fields, so they are built here and nowhere else.

use serde_json::{Map, Value, json};

use crate::registry::ResourceKind;

/// A refusal, as it goes over the wire.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; may be empty, as a real server's is for a bare 500.
    pub reason: String,
    /// For people.
    pub message: String,
    /// `details`, when there are any.
    pub details: Option<Value>,
    /// Also sent as the `Retry-After` header.
    pub retry_after_seconds: Option<u32>,
}

impl ApiError {
    /// An answer without details.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: None, retry_after_seconds: None }
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        let mut details = match &self.details {
            Some(Value::Object(map)) => Some(map.clone()),
            _ => None,
        };
        if let Some(seconds) = self.retry_after_seconds.filter(|s| *s > 0) {
            details.get_or_insert_with(Map::new).insert("retryAfterSeconds".into(), json!(seconds));
        }
        if let Some(details) = details {
            status["details"] = Value::Object(details);
        }
        status
    }

    pub(crate) fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(crate) fn with_retry_after(mut self, seconds: Option<u32>) -> Self {
        self.retry_after_seconds = seconds;
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn not_found(kind: &ResourceKind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified())).with_details(object(kind, name))
    }

    /// The path names nothing that this server serves.
    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with_details(json!({}))
    }

    pub(crate) fn method_not_allowed(method: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource ({method})");
        Self::new(405, "MethodNotAllowed", message).with_details(json!({}))
    }

    pub(crate) fn already_exists(kind: &ResourceKind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.qualified())).with_details(object(kind, name))
    }

    pub(crate) fn conflict(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified());
        Self::new(409, "Conflict", message).with_details(object(kind, name))
    }

    pub(crate) fn modified(kind: &ResourceKind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(crate) fn forbidden(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() { kind.qualified() } else { format!("{} \"{name}\"", kind.qualified()) };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}")).with_details(object(kind, name))
    }

    /// 422 with one cause per broken field.
    pub(crate) fn invalid(kind: &ResourceKind, name: &str, causes: &[Cause]) -> Self {
        let lines: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let joined = if lines.len() == 1 { lines[0].clone() } else { format!("[{}]", lines.join(", ")) };
        let details = json!({
            "name": name, "group": kind.group, "kind": kind.kind,
            "causes": causes.iter().map(Cause::to_value).collect::<Vec<_>>(),
        });
        Self::new(422, "Invalid", format!("{} \"{name}\" is invalid: {joined}", kind.kind)).with_details(details)
    }

    /// What a patch that does not apply answers: 422 with nothing to tell it from any other bad patch.
    pub(crate) fn patch_does_not_apply() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request").with_details(json!({}))
    }

    pub(crate) fn too_many_requests(message: &str, retry_after: Option<u32>) -> Self {
        Self::new(429, "TooManyRequests", message).with_details(json!({})).with_retry_after(retry_after)
    }

    pub(crate) fn expired(message: &str) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn unsupported_media(content_type: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml (got {content_type:?})"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }
}

/// One broken field of a 422.
#[derive(Debug, Clone)]
pub(crate) struct Cause {
    reason: &'static str,
    field: String,
    message: String,
}

impl Cause {
    pub(crate) fn invalid(field: impl Into<String>, value: impl std::fmt::Display, why: &str) -> Self {
        Self { reason: "FieldValueInvalid", field: field.into(), message: format!("Invalid value: {value}: {why}") }
    }

    pub(crate) fn required(field: impl Into<String>, why: &str) -> Self {
        let message = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: impl std::fmt::Display, supported: &str) -> Self {
        let message = format!("Unsupported value: {value}: supported values: {supported}");
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: impl std::fmt::Display) -> Self {
        Self { reason: "FieldValueDuplicate", field: field.into(), message: format!("Duplicate value: {value}") }
    }

    pub(crate) fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {why}") }
    }

    pub(crate) fn wrong_type(field: impl Into<String>, value: impl std::fmt::Display, why: &str) -> Self {
        Self { reason: "FieldValueTypeInvalid", field: field.into(), message: format!("Invalid value: {value}: {why}") }
    }

    fn to_value(&self) -> Value {
        json!({ "reason": self.reason, "message": self.message, "field": self.field })
    }
}

fn object(kind: &ResourceKind, name: &str) -> Value {
    let mut details = json!({ "kind": kind.plural });
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    details
}
