//! Reviews of access and tokens, and service account tokens: asked, answered, never stored.
//! An admin may do all; a `Deny` fault is RBAC's refusal, and a review says so beforehand.

use std::sync::PoisonError;

use ::http::header;
use serde_json::{Value, json};
use uuid::Uuid;

use super::answer::Answer;
use super::{Asked, body};
use crate::config::User;
use crate::faults::Subject;
use crate::obj;
use crate::status::ApiError;

/// The answer to a review; none when the request is about something else.
pub(super) fn answer(asked: &Asked) -> Option<Result<Answer, ApiError>> {
    let info = &asked.info;
    if info.verb != "create" || !matches!(info.group.as_str(), "authorization.k8s.io" | "authentication.k8s.io") {
        return None;
    }
    let review = match body::decode(&asked.body, asked.header(header::CONTENT_TYPE)) {
        Ok(review) => review,
        Err(error) => return Some(Err(error)),
    };
    let status = match info.resource.as_str() {
        "selfsubjectaccessreviews" | "localsubjectaccessreviews" => access(asked, &asked.user.name, &review),
        "subjectaccessreviews" => access(asked, obj::text(&review, "/spec/user"), &review),
        "selfsubjectrulesreviews" => json!({
            "incomplete": false, "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
        }),
        "tokenreviews" => token_status(asked, &review),
        "selfsubjectreviews" => json!({ "userInfo": user_info(&asked.user) }),
        _ => return Some(Err(ApiError::no_such_path())),
    };
    let mut review = review;
    review["status"] = status;
    Some(Ok(Answer::value(201, &review)))
}

fn access(asked: &Asked, user: &str, review: &Value) -> Value {
    let of = |field: &str| obj::text(review, &format!("/spec/resourceAttributes/{field}"));
    let denied = asked.app.faults.denies(&Subject {
        verb: of("verb"),
        resource: of("resource"),
        subresource: of("subresource"),
        namespace: of("namespace"),
        name: of("name"),
        user,
        user_agent: asked.header(header::USER_AGENT),
    });
    json!({ "allowed": !denied, "reason": if denied { "" } else { "RBAC: allowed" } })
}

fn user_info(user: &User) -> Value {
    json!({ "username": user.name, "groups": user.groups })
}

fn token_status(asked: &Asked, review: &Value) -> Value {
    let tokens = asked.app.tokens.lock().unwrap_or_else(PoisonError::into_inner);
    match tokens.get(obj::text(review, "/spec/token")) {
        Some(user) => json!({ "authenticated": true, "user": user_info(user), "audiences": review["spec"]["audiences"] }),
        None => json!({ "authenticated": false, "error": "invalid bearer token" }),
    }
}

/// A fresh token for a service account, good until the cluster stops.
pub(super) fn token(asked: &Asked, request: &Value) -> Answer {
    let info = &asked.info;
    let token = Uuid::new_v4().to_string();
    let name = format!("system:serviceaccount:{}:{}", info.namespace, info.name);
    let groups =
        vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", info.namespace), "system:authenticated".into()];
    asked.app.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), User { name, groups });
    let seconds = obj::int(request, "/spec/expirationSeconds").unwrap_or(3_600);
    let expires = crate::clock::stamp(asked.app.clock.now() + chrono::Duration::seconds(seconds));
    let mut answer = json!({ "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": { "name": info.name, "namespace": info.namespace } });
    answer["spec"] = request["spec"].clone();
    answer["status"] = json!({ "token": token, "expirationTimestamp": expires });
    Answer::value(201, &answer)
}
