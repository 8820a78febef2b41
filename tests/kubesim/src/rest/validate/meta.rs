//! Pure: the syntax of names, label keys and label values.

use serde_json::Value;

use crate::obj;
use crate::registry::ResourceKind;
use crate::status::{ApiError, Cause};

const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const LABEL_KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

pub(in crate::rest) fn name(kind: &ResourceKind, object: &Value) -> Result<(), ApiError> {
    let name = obj::name(object);
    let fits = if kind.group == "rbac.authorization.k8s.io" { !name.contains(['/', '%']) } else { subdomain(name) };
    if fits {
        Ok(())
    } else {
        Err(ApiError::invalid(kind, name, &[Cause::invalid("metadata.name", format!("\"{name}\""), SUBDOMAIN)]))
    }
}

pub(super) fn labels(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, value) in obj::entries(object, "/metadata/labels") {
        if !qualified(key) {
            causes.push(Cause::invalid("metadata.labels", format!("\"{key}\""), LABEL_KEY));
        }
        if !label_value(value) {
            causes.push(Cause::invalid("metadata.labels", format!("\"{value}\""), LABEL_VALUE));
        }
    }
    for (key, _) in obj::entries(object, "/metadata/annotations") {
        if !qualified(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", format!("\"{key}\""), LABEL_KEY));
        }
    }
    causes
}

fn subdomain(name: &str) -> bool {
    let part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(allowed) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= NAME_MAX && name.split('.').all(part)
}

fn qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => subdomain(prefix) && !name.is_empty() && label_value(name),
        None => !key.is_empty() && label_value(key),
    }
}

fn label_value(value: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= LABEL_MAX && value.bytes().all(inside) && edge(value.bytes().next()) && edge(value.bytes().last())
}
