//! Pure: bodies of requests: JSON and YAML; other encodings are refused as a server without them does.

use axum::body::Bytes;
use serde_json::Value;

use crate::status::ApiError;

/// Decodes by content type; an empty body is `null`.
pub(crate) fn decode(body: &Bytes, content_type: &str) -> Result<Value, ApiError> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if body.is_empty() {
        return Ok(Value::Null);
    }
    match kind {
        "application/yaml" | "application/apply-patch+yaml" => yaml(body),
        "" | "application/json" => json(body),
        "application/vnd.kubernetes.protobuf" => super::protobuf::decode(body).ok_or_else(|| ApiError::unsupported_media(kind)),
        patch if patch.ends_with("+json") => json(body),
        other => Err(ApiError::unsupported_media(other)),
    }
}

fn json(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the object provided is unrecognized (must be of type json): {error}")))
}

fn yaml(body: &Bytes) -> Result<Value, ApiError> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let text = std::str::from_utf8(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    serde_saphyr::from_str(text).map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
}

/// For the recorder: whatever can be read of it.
pub(crate) fn loose(body: &Bytes) -> Option<Value> {
    if body.is_empty() { None } else { super::protobuf::decode(body).or_else(|| yaml(body).ok()) }
}

/// `dryRun` in the body of a delete or an eviction.
pub(crate) fn asks_dry_run(body: &Bytes) -> bool {
    let Some(body) = (if body.len() < 4_096 { loose(body) } else { None }) else { return false };
    ["/dryRun/0", "/deleteOptions/dryRun/0"].iter().any(|at| body.pointer(at).and_then(Value::as_str) == Some("All"))
}
