//! Other shapes of objects that a client may ask for: tables, as `kubectl get` prints them, and bare metadata.

mod age;
mod cells;
mod columns;
mod jsonpath;

use ::http::header;
use serde_json::{Value, json};

use super::answer::Answer;
use super::list::{Row, metadata};
use super::{App, Asked};
use crate::registry::ResourceKind;
use crate::store::Stored;

/// How objects are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Full,
    /// Rows with the object's metadata, or with the whole object.
    Table {
        whole: bool,
    },
    Metadata,
}

impl Shape {
    /// The first of the accepted media types that is known here.
    pub(crate) fn of(asked: &Asked) -> Self {
        let whole = asked.info.param("includeObject") == "Object";
        let accepted = asked.header(header::ACCEPT).split(',').map(str::trim);
        accepted
            .filter_map(|media| {
                let has = |part: &str| media.split(';').any(|given| given.trim() == part);
                if !media.starts_with("application/json") && !media.starts_with("*/*") {
                    None
                } else if has("as=Table") && has("v=v1") {
                    Some(Self::Table { whole })
                } else if has("as=PartialObjectMetadata") || has("as=PartialObjectMetadataList") {
                    Some(Self::Metadata)
                } else if media.contains("as=") {
                    None
                } else {
                    Some(Self::Full)
                }
            })
            .next()
            .unwrap_or(Self::Full)
    }

    /// One object as JSON text.
    pub(crate) fn text(self, app: &App, kind: &ResourceKind, stored: &Stored) -> String {
        match self {
            Self::Full => stored.json(kind),
            Self::Metadata => partial(&stored.value(kind)).to_string(),
            Self::Table { whole } => {
                let object = stored.value(kind);
                let metadata = json!({ "resourceVersion": stored.rv.to_string() });
                table(app, kind, &[object], whole, metadata).to_string()
            }
        }
    }

    /// A bookmark in this shape.
    pub(crate) fn bookmark(self, object: Value) -> Value {
        match self {
            Self::Full => object,
            Self::Metadata => partial(&object),
            Self::Table { .. } => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": { "resourceVersion": object["metadata"]["resourceVersion"] },
                "columnDefinitions": [], "rows": [{ "cells": [], "object": partial(&object) }],
            }),
        }
    }
}

pub(super) fn shown(asked: &Asked, kind: &ResourceKind, code: u16, stored: &Stored) -> Answer {
    Answer::json(code, Shape::of(asked).text(&asked.app, kind, stored))
}

/// A list in another shape than its own; none when the plain list is wanted.
pub(super) fn list(
    asked: &Asked,
    kind: &ResourceKind,
    rows: &[Row],
    version: u64,
    token: Option<&str>,
    remaining: Option<usize>,
) -> Option<Answer> {
    let metadata = metadata(version, token, remaining);
    let objects = || rows.iter().map(|(_, stored)| stored.value(kind));
    match Shape::of(asked) {
        Shape::Full => None,
        Shape::Metadata => {
            let items: Vec<Value> = objects().map(|object| partial(&object)).collect();
            Some(Answer::value(
                200,
                &json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items }),
            ))
        }
        Shape::Table { whole } => {
            let objects: Vec<Value> = objects().collect();
            Some(Answer::value(200, &table(&asked.app, kind, &objects, whole, metadata)))
        }
    }
}

fn partial(object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

fn table(app: &App, kind: &ResourceKind, objects: &[Value], whole: bool, metadata: Value) -> Value {
    let now = app.clock.now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let shown = if whole { object.clone() } else { partial(object) };
            json!({ "cells": cells::of(kind, object, now), "object": shown })
        })
        .collect();
    json!({ "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns::of(kind), "rows": rows })
}
