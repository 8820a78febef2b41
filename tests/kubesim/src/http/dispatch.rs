//! From a request to the rule of `rest` that answers it.

use std::sync::Arc;

use ::http::header;
use serde_json::{Value, json};

use super::answer::Answer;
use super::{Asked, body, discovery, list, openapi, patching, reviews, table, watching};
use crate::obj;
use crate::registry::ResourceKind;
use crate::rest::{self, DeleteOptions, Deleted, Eviction, Part, WriteOptions};
use crate::status::ApiError;
use crate::store::{ObjKey, Stored};

/// Longest `managedFields` manager, as on a real server.
const MANAGER_MAX: usize = 128;

pub(super) fn answer(asked: &Asked) -> Answer {
    let result = if asked.info.resource.is_empty() { paths(asked) } else { resource(asked) };
    result.unwrap_or_else(Answer::from)
}

fn paths(asked: &Asked) -> Result<Answer, ApiError> {
    match asked.info.path.trim_end_matches('/') {
        "/healthz" | "/readyz" | "/livez" => Ok(Answer::text(200, "ok")),
        "/version" => Ok(Answer::value(200, &discovery::version(&asked.app.version))),
        path if path.starts_with("/openapi") => openapi::answer(&asked.app.store, path),
        path => discovery::answer(&asked.app.store, path),
    }
}

fn resource(asked: &Asked) -> Result<Answer, ApiError> {
    let info = &asked.info;
    if let Some(review) = reviews::answer(asked) {
        return review;
    }
    let kind = asked.app.store.find(&info.group, &info.version, &info.resource).ok_or_else(ApiError::no_such_path)?;
    if kind.namespaced && info.namespace.is_empty() && !matches!(info.verb.as_str(), "list" | "watch") {
        return Err(ApiError::no_such_path());
    }
    let call = Call { asked, kind: kind.clone() };
    if !info.subresource.is_empty() {
        return call.subresource();
    }
    match info.verb.as_str() {
        "get" => call.get(),
        "list" => list::answer(asked, &kind),
        "watch" => watching::answer(asked, &kind),
        "create" if info.name.is_empty() => call.create(),
        "update" => call.update(Part::Main),
        "patch" => patching::answer(&call, Part::Main),
        "delete" => call.delete(),
        "deletecollection" => call.delete_collection(),
        _ => Err(ApiError::method_not_allowed(&info.verb)),
    }
}

/// A request about one known resource.
pub(super) struct Call<'a> {
    pub(super) asked: &'a Asked,
    pub(super) kind: Arc<ResourceKind>,
}

impl Call<'_> {
    pub(super) fn key(&self) -> ObjKey {
        ObjKey::new(&self.asked.info.namespace, &self.asked.info.name)
    }

    pub(super) fn decode(&self) -> Result<Value, ApiError> {
        body::decode(&self.asked.body, self.asked.header(header::CONTENT_TYPE))
    }

    /// The field manager: the query's word, else the program part of the user agent.
    pub(super) fn options(&self) -> WriteOptions {
        let asked = self.asked.info.param("fieldManager");
        let agent = self.asked.header(header::USER_AGENT).split('/').next().unwrap_or_default();
        let manager: String = if asked.is_empty() { agent } else { asked }.chars().take(MANAGER_MAX).collect();
        WriteOptions { strict: self.asked.info.strict(), ..WriteOptions::by(&manager) }
    }

    pub(super) fn dry_run(&self) -> Result<bool, ApiError> {
        dry_run_of(self.asked.info.param("dryRun"))
    }

    pub(super) fn show(&self, code: u16, stored: &Stored) -> Answer {
        table::shown(self.asked, &self.kind, code, stored)
    }

    fn get(&self) -> Result<Answer, ApiError> {
        let key = self.key();
        let stored =
            self.asked.app.store.load(&self.kind.storage, &key).ok_or_else(|| ApiError::not_found(&self.kind, &key.name))?;
        Ok(self.show(200, &stored))
    }

    /// The body, with the type that the path says.
    fn typed(&self) -> Result<Value, ApiError> {
        let mut object = self.decode()?;
        if !object.is_object() {
            return Err(ApiError::bad_request("the object provided is unrecognized (must be of type Object)"));
        }
        let (version, kind) = (obj::text(&object, "/apiVersion").to_owned(), obj::text(&object, "/kind").to_owned());
        if (!kind.is_empty() && kind != self.kind.kind) || (!version.is_empty() && version != self.kind.api_version()) {
            let message = format!(
                "{kind} in version \"{version}\" cannot be handled as a {}: the API version in the data ({version}) does not match the expected API version ({})",
                self.kind.kind,
                self.kind.api_version()
            );
            return Err(ApiError::bad_request(message));
        }
        object["apiVersion"] = json!(self.kind.api_version());
        object["kind"] = json!(self.kind.kind);
        Ok(object)
    }

    fn create(&self) -> Result<Answer, ApiError> {
        let object = self.typed()?;
        let namespace = &self.asked.info.namespace;
        let stored =
            self.asked.app.store.write(self.dry_run()?, |txn| rest::create(txn, &self.kind, namespace, object, &self.options()))?;
        Ok(self.show(201, &stored))
    }

    fn update(&self, part: Part) -> Result<Answer, ApiError> {
        let mut object = self.typed()?;
        let key = self.key();
        let named = obj::name(&object);
        if named != &*key.name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({named}) does not match the name on the URL ({})",
                key.name
            )));
        }
        if self.kind.namespaced {
            let given = obj::namespace(&object);
            if !given.is_empty() && given != &*key.namespace {
                return Err(ApiError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            obj::metadata(&mut object).insert("namespace".into(), json!(&*key.namespace));
        }
        let options = WriteOptions { replace: true, ..self.options() };
        let stored = self.asked.app.store.write(self.dry_run()?, |txn| rest::update(txn, &self.kind, object, part, &options))?;
        Ok(self.show(200, &stored))
    }

    fn delete_options(&self) -> Result<(DeleteOptions, bool), ApiError> {
        let body = self.decode()?;
        let info = &self.asked.info;
        let mut options = DeleteOptions::parse(&body);
        options.grace_seconds = options.grace_seconds.or_else(|| info.param("gracePeriodSeconds").parse().ok());
        let propagation = info.param("propagationPolicy");
        options.propagation = options.propagation.or_else(|| (!propagation.is_empty()).then(|| propagation.to_owned()));
        let dry_run = self.dry_run()? || obj::text(&body, "/dryRun/0") == "All";
        Ok((options, dry_run))
    }

    fn delete(&self) -> Result<Answer, ApiError> {
        let (options, dry_run) = self.delete_options()?;
        let deleted = self.asked.app.store.write(dry_run, |txn| rest::delete(txn, &self.kind, &self.key(), &options))?;
        Ok(match deleted {
            Deleted::Going(stored) => self.show(200, &stored),
            Deleted::Gone(stored) if self.kind.is("pods") => self.show(200, &stored),
            Deleted::Gone(stored) => {
                let object = stored.bare();
                let details = json!({ "name": obj::name(&object), "group": self.kind.group, "kind": self.kind.plural, "uid": obj::uid(&object) });
                Answer::value(
                    200,
                    &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details }),
                )
            }
        })
    }

    fn delete_collection(&self) -> Result<Answer, ApiError> {
        let (options, dry_run) = self.delete_options()?;
        let page = list::select(self.asked, &self.kind)?;
        let mut items = Vec::new();
        for (key, _) in &page.rows {
            let deleted = self.asked.app.store.write(dry_run, |txn| rest::delete(txn, &self.kind, key, &options));
            if let Ok(Deleted::Gone(stored) | Deleted::Going(stored)) = deleted {
                items.push((key.clone(), stored));
            }
        }
        Ok(Answer::json(200, list::text(&self.kind, &items, self.asked.app.store.version(), None, None)))
    }

    fn subresource(&self) -> Result<Answer, ApiError> {
        let info = &self.asked.info;
        if !self.kind.has(&info.subresource) {
            return Err(ApiError::no_such_path());
        }
        match (info.subresource.as_str(), info.verb.as_str()) {
            ("status", "get") => self.get(),
            ("status", "update") => self.update(Part::Status),
            ("status", "patch") => patching::answer(self, Part::Status),
            ("finalize", "update") => self.update(Part::Main),
            ("scale", "get" | "update" | "patch") => super::patching::scale(self),
            ("eviction", "create") => self.evict(),
            ("binding", "create") => self.bind(),
            ("log", "get") => self.log(),
            ("token", "create") => Ok(reviews::token(self.asked, &self.decode()?)),
            _ => Err(ApiError::method_not_allowed(&info.verb)),
        }
    }

    fn log(&self) -> Result<Answer, ApiError> {
        let key = self.key();
        self.asked.app.store.load("pods", &key).ok_or_else(|| ApiError::not_found(&self.kind, &key.name))?;
        Ok(Answer::text(200, ""))
    }

    fn evict(&self) -> Result<Answer, ApiError> {
        let body = self.decode()?;
        let ignored = unknown_fields(&body);
        if self.asked.info.strict() && !ignored.is_empty() {
            let list: Vec<String> = ignored.iter().map(|field| format!("unknown field \"{field}\"")).collect();
            return Err(ApiError::bad_request(format!(
                "Eviction in version \"v1\" cannot be handled as a Eviction: strict decoding error: {}",
                list.join(", ")
            )));
        }
        if obj::text(&body, "/kind") != "Eviction" && !obj::text(&body, "/kind").is_empty() {
            return Err(ApiError::bad_request(format!("not a Eviction object: {}", obj::text(&body, "/kind"))));
        }
        let key = self.key();
        if obj::name(&body) != &*key.name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let asked = self.dry_run()?;
        let inside = obj::list(&body, "/deleteOptions/dryRun");
        if !inside.is_empty() && !self.asked.info.param("dryRun").is_empty() && inside != [json!("All")] {
            // The handler's error has no status of its own, and so becomes a 500.
            return Err(ApiError::new(500, "", "Non-matching dry-run options in request and content: [All] and different"));
        }
        for value in inside {
            dry_run_of(value.as_str().unwrap_or_default())?;
        }
        let eviction = Eviction { pod: key, options: DeleteOptions::parse(&body["deleteOptions"]) };
        let result =
            self.asked.app.store.write(asked || !inside.is_empty(), |txn| rest::evict(txn, &self.kind, &eviction, &self.options()));
        let answer = match result {
            Ok(()) => Answer::value(
                201,
                &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
            ),
            Err(error) => Answer::from(error),
        };
        Ok(answer.ignoring(ignored))
    }

    fn bind(&self) -> Result<Answer, ApiError> {
        let body = self.decode()?;
        let node = obj::text(&body, "/target/name").to_owned();
        self.asked.app.store.write(self.dry_run()?, |txn| rest::bind(txn, &self.kind, &self.key(), &node, &self.options()))?;
        Ok(Answer::value(201, &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 })))
    }
}

fn dry_run_of(value: &str) -> Result<bool, ApiError> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(ApiError::new(
            422,
            "Invalid",
            format!("CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"{other}\": supported values: \"All\""),
        )),
    }
}

/// What an Eviction carries that policy/v1 does not know. The classic is `delete_options`.
fn unknown_fields(body: &Value) -> Vec<String> {
    let strange = |at: &Value, known: &[&str], prefix: &str| -> Vec<String> {
        let keys = at.as_object().into_iter().flat_map(serde_json::Map::keys);
        keys.filter(|key| !known.contains(&key.as_str())).map(|key| format!("{prefix}{key}")).collect()
    };
    const OPTIONS: &[&str] = &[
        "apiVersion",
        "kind",
        "gracePeriodSeconds",
        "preconditions",
        "orphanDependents",
        "propagationPolicy",
        "dryRun",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
    ];
    let mut unknown = strange(body, &["apiVersion", "kind", "metadata", "deleteOptions"], "");
    unknown.extend(strange(&body["deleteOptions"], OPTIONS, "deleteOptions."));
    unknown.extend(strange(&body["deleteOptions"]["preconditions"], &["uid", "resourceVersion"], "deleteOptions.preconditions."));
    unknown
}
