//! Who may change a node on its way, after we have written it and before our own policies look at it: mutating webhooks, and
//! MutatingAdmissionPolicies where the API server has them.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    super::facts::{Mutator, Seen},
    all,
};

const GROUP: &str = "admissionregistration.k8s.io";
/// Of MutatingAdmissionPolicies, the newest first: v1 since Kubernetes 1.36.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

pub(super) async fn mutators(client: &Client) -> Seen<Vec<Mutator>> {
    let mut found = webhooks(client).await?;
    found.extend(policies(client).await?);
    Ok(found)
}

async fn webhooks(client: &Client) -> Seen<Vec<Mutator>> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let found = all(&api, ListParams::default(), |configuration| {
        let configuration = serde_json::to_value(configuration).ok()?;
        let name = text(&configuration["metadata"]["name"]);
        let webhooks = list(&configuration["webhooks"]).iter().filter(|webhook| list(&webhook["rules"]).iter().any(changes_nodes));
        let mutator = |webhook: &Value| Mutator {
            name: format!("webhook {} of {name}", text(&webhook["name"])),
            conditional: selects(&webhook["objectSelector"]) || !list(&webhook["matchConditions"]).is_empty(),
        };
        Some(webhooks.map(mutator).collect::<Vec<_>>())
    })
    .await?;
    Ok(found.into_iter().flatten().collect())
}

/// A policy does nothing before it is bound.
async fn policies(client: &Client) -> Seen<Vec<Mutator>> {
    let Some(version) = served(client, "mutatingadmissionpolicies").await else { return Ok(Vec::new()) };
    let policies = objects(client, version, "MutatingAdmissionPolicy", "mutatingadmissionpolicies").await?;
    let bindings = objects(client, version, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings").await?;
    let mut found = Vec::new();
    for policy in
        policies.iter().filter(|policy| list(&policy["spec"]["matchConstraints"]["resourceRules"]).iter().any(changes_nodes))
    {
        let name = text(&policy["metadata"]["name"]);
        let mut bound = bindings.iter().filter(|binding| text(&binding["spec"]["policyName"]) == name).peekable();
        if bound.peek().is_some() {
            let narrowed = bound.all(|binding| binding["spec"]["matchResources"].as_object().is_some_and(|all| !all.is_empty()));
            let looks_at = &policy["spec"]["matchConstraints"]["objectSelector"];
            let conditional = narrowed || selects(looks_at) || !list(&policy["spec"]["matchConditions"]).is_empty();
            found.push(Mutator { name: format!("policy {name}"), conditional });
        }
    }
    Ok(found)
}

/// In which version the API server has such objects, if in any.
async fn served(client: &Client, plural: &str) -> Option<&'static str> {
    for version in VERSIONS {
        let resources = super::call(client.list_api_group_resources(&format!("{GROUP}/{version}"))).await;
        if resources.is_ok_and(|there| there.resources.iter().any(|resource| resource.name == plural)) {
            return Some(version);
        }
    }
    None
}

async fn objects(client: &Client, version: &str, kind: &str, plural: &str) -> Seen<Vec<Value>> {
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: version.to_owned(),
        api_version: format!("{GROUP}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    all(&api, ListParams::default(), |object| serde_json::to_value(object).ok()).await
}

/// Whether a rule takes in a change of a node.
fn changes_nodes(rule: &Value) -> bool {
    let any = |field: &str, words: &[&str]| list(&rule[field]).iter().any(|word| words.contains(&text(word)));
    any("operations", &["UPDATE", "*"])
        && any("apiGroups", &["", "*"])
        && any("resources", &["nodes", "*", "*/*"])
        && rule["scope"] != "Namespaced"
}

fn selects(selector: &Value) -> bool {
    selector.as_object().is_some_and(|selector| !selector.is_empty())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_is_about_nodes_when_it_names_them_or_takes_in_everything() {
        let rule = |operations: &str, group: &str, resource: &str, scope: &str| {
            changes_nodes(&json!({"operations": [operations], "apiGroups": [group], "resources": [resource], "scope": scope}))
        };
        for (operation, group, resource, scope) in
            [("UPDATE", "", "nodes", "*"), ("*", "*", "*", "Cluster"), ("UPDATE", "", "*/*", "*")]
        {
            assert!(rule(operation, group, resource, scope), "{operation} {group} {resource} {scope}");
        }
        for (operation, group, resource, scope) in [
            ("CREATE", "", "nodes", "*"),
            ("UPDATE", "apps", "*", "*"),
            ("UPDATE", "", "nodes/status", "*"),
            ("UPDATE", "", "*", "Namespaced"),
        ] {
            assert!(!rule(operation, group, resource, scope), "{operation} {group} {resource} {scope}");
        }
    }
}
