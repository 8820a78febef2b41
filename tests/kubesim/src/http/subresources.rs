//! What hangs below an object: status, scale, eviction, binding, log, token.

use serde_json::{Value, json};

use super::answer::Answer;
use super::dispatch::{Call, dry_run_of};
use super::{patching, reviews};
use crate::obj;
use crate::rest::{self, DeleteOptions, Eviction, Part};
use crate::status::ApiError;

pub(super) fn answer(call: &Call<'_>) -> Result<Answer, ApiError> {
    call.subresource()
}

impl Call<'_> {
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
            ("scale", "get" | "update" | "patch") => patching::scale(self),
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
