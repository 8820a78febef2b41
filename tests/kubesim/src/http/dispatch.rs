//! From a request to the rule of `rest` that answers it.

use std::sync::Arc;

use ::http::header;
use serde_json::{Value, json};

use super::answer::Answer;
use super::{Asked, body, discovery, list, openapi, patching, reviews, subresources, table, watching};
use crate::obj;
use crate::registry::ResourceKind;
use crate::rest::{self, DeleteOptions, Deleted, Part, WriteOptions};
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
        return subresources::answer(&call);
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

    pub(super) fn get(&self) -> Result<Answer, ApiError> {
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

    pub(super) fn update(&self, part: Part) -> Result<Answer, ApiError> {
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
}

pub(super) fn dry_run_of(value: &str) -> Result<bool, ApiError> {
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
