//! Lists: selectors, pages that all show one version, and tokens that expire with the window.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::Answer;
use super::{Asked, table};
use crate::registry::ResourceKind;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::ApiError;
use crate::store::{ObjKey, Stored};

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

pub(super) type Row = (ObjKey, Arc<Stored>);

/// Which objects a request is about.
pub(super) struct Selection {
    namespace: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    pub(super) fn of(asked: &Asked, kind: &ResourceKind) -> Result<Self, ApiError> {
        let labels =
            LabelSelector::parse(asked.info.param("labelSelector")).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse_for(kind, asked.info.param("fieldSelector")).map_err(ApiError::bad_request)?;
        Ok(Self { namespace: asked.info.namespace.clone(), labels, fields })
    }

    pub(super) fn matches(&self, key: &ObjKey, stored: &Stored) -> bool {
        (self.namespace.is_empty() || *self.namespace == *key.namespace)
            && self.labels.matches(stored)
            && self.fields.matches(key, stored)
    }

    fn is_narrow(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Token {
    rv: u64,
    /// Namespace and name of the last object shown.
    after: (String, String),
}

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!(self).to_string())
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| ApiError::bad_request("continue key is not valid: invalid value"))
    }
}

/// One page.
pub(super) struct Page {
    pub(super) rows: Vec<Row>,
    pub(super) version: u64,
    token: Option<String>,
    remaining: Option<usize>,
}

pub(super) fn answer(asked: &Asked, kind: &ResourceKind) -> Result<Answer, ApiError> {
    let page = select(asked, kind)?;
    if let Some(shown) = table::list(asked, kind, &page.rows, page.version, page.token.as_deref(), page.remaining) {
        return Ok(shown);
    }
    Ok(Answer::json(200, text(kind, &page.rows, page.version, page.token.as_deref(), page.remaining)))
}

pub(super) fn select(asked: &Asked, kind: &ResourceKind) -> Result<Page, ApiError> {
    let selection = Selection::of(asked, kind)?;
    let store = &asked.app.store;
    let token = Some(asked.info.param("continue")).filter(|token| !token.is_empty()).map(Token::decode).transpose()?;
    let exact = asked.info.number("resourceVersion").filter(|_| asked.info.param("resourceVersionMatch") == "Exact");
    let (rows, version) = match (&token, exact) {
        (Some(token), _) => {
            (store.snapshot_at(&kind.storage, token.rv).map_err(|_| ApiError::expired(CONTINUE_EXPIRED))?, token.rv)
        }
        (None, Some(rv)) => (
            store
                .snapshot_at(&kind.storage, rv)
                .map_err(|_| ApiError::expired("The resourceVersion for the provided list is too old."))?,
            rv,
        ),
        (None, None) => store.snapshot(&kind.storage),
    };
    let after = token.map(|token| ObjKey::new(&token.after.0, &token.after.1));
    let mut rows = rows;
    rows.retain(|(key, stored)| after.as_ref().is_none_or(|after| key > after) && selection.matches(key, stored));
    let limit = asked.info.number("limit").and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
    let rest = limit.map_or(0, |limit| rows.len().saturating_sub(limit));
    rows.truncate(rows.len() - rest);
    let token = rows
        .last()
        .filter(|_| rest > 0)
        .map(|(key, _)| Token { rv: version, after: (key.namespace.to_string(), key.name.to_string()) }.encode());
    let remaining = (rest > 0 && !selection.is_narrow()).then_some(rest);
    Ok(Page { rows, version, token, remaining })
}

pub(super) fn metadata(version: u64, token: Option<&str>, remaining: Option<usize>) -> serde_json::Value {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if let Some(token) = token {
        metadata["continue"] = json!(token);
    }
    if let Some(remaining) = remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    metadata
}

/// The list's JSON text, put together without parsing its items.
pub(super) fn text(kind: &ResourceKind, rows: &[Row], version: u64, token: Option<&str>, remaining: Option<usize>) -> String {
    let items: Vec<String> = rows.iter().map(|(_, stored)| stored.json_in_list(kind)).collect();
    format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[{}]}}",
        kind.list_kind,
        kind.api_version(),
        metadata(version, token, remaining),
        items.join(",")
    )
}
