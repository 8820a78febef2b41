use std::collections::BTreeSet;

use gpuheal_proto::kubernetes::NAMESPACE;
use serde_json::Value;

use super::*;

fn shipped(sheet: Sheet) -> String {
    format!("{}/../deploy/spoke/{}", env!("CARGO_MANIFEST_DIR"), sheet.file())
}

fn everything(namespace: &str) -> Vec<Value> {
    Sheet::ALL.into_iter().flat_map(|sheet| sheet.objects(namespace)).collect()
}

/// Set `UPDATE=1` to write the files anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "a developer's switch, which no program has")]
fn the_rights_in_deploy_are_those_of_the_table() {
    for sheet in Sheet::ALL {
        let (path, text) = (shipped(sheet), sheet.yaml(NAMESPACE, &[]));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(there, text, "{path}: run UPDATE=1 cargo test -p gpuheal-spoke the_rights");
    }
}

#[test]
fn every_row_of_the_table_is_one_rule_of_its_file_and_there_is_no_other() {
    for grant in Grant::ALL {
        let sheet = grant.sheet();
        let texts = |rule: &Value, field: &str| -> Vec<String> {
            rule[field].as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let mut rules: Vec<_> = sheet
            .objects("ns")
            .iter()
            .flat_map(|object| object["rules"].as_array().cloned().unwrap_or_default())
            .map(|rule| {
                (texts(&rule, "apiGroups"), texts(&rule, "resources"), texts(&rule, "resourceNames"), texts(&rule, "verbs"))
            })
            .collect();
        let owned = |words: &[&str]| words.iter().map(|word| word.replace(OWN_NAMESPACE, "ns")).collect::<Vec<_>>();
        let mut rows: Vec<_> = RIGHTS
            .iter()
            .filter(|right| right.grant == grant)
            .map(|right| (owned(&[right.group]), owned(&[right.resource]), owned(right.names), owned(right.verbs)))
            .collect();
        rules.sort();
        rows.sort();
        assert_eq!(rules, rows, "{sheet:?}");
    }
}

#[test]
fn for_some_namespaces_what_is_done_to_pods_and_workloads_is_in_a_role_of_each_and_in_no_role_of_the_cluster() {
    let within = ["ml".to_owned(), "train".to_owned()];
    for grant in Grant::ALL {
        let objects = grant.sheet().objects_within("ns", &within);
        if !grant.narrows() {
            assert_eq!(objects, grant.sheet().objects("ns"), "{grant:?}");
            continue;
        }
        let rules = |namespace: Option<&str>| -> Vec<(String, String)> {
            let there = objects.iter().filter(|object| object["metadata"]["namespace"].as_str() == namespace);
            let rules = there.flat_map(|object| object["rules"].as_array().cloned().unwrap_or_default());
            rules.map(|rule| (rule["resources"][0].as_str().unwrap().to_owned(), rule["verbs"].to_string())).collect()
        };
        let rows = |place: Place| -> Vec<(String, String)> {
            let rows = RIGHTS.iter().filter(|right| right.grant == grant && right.place == place);
            rows.map(|right| (right.resource.to_owned(), serde_json::json!(right.verbs).to_string())).collect()
        };
        for namespace in &within {
            assert_eq!(rules(Some(namespace)), rows(Place::Workloads), "{grant:?}");
            let bound = |object: &&Value| object["kind"] == "RoleBinding" && object["metadata"]["namespace"] == namespace.as_str();
            let binding = objects.iter().find(bound).unwrap();
            assert_eq!(binding["roleRef"]["kind"], "Role");
            assert_eq!(binding["subjects"][0]["namespace"], "ns", "the account is in our own namespace");
        }
        assert_eq!(rules(None), rows(Place::Cluster), "{grant:?}");
    }
}

#[test]
fn what_is_granted_in_the_whole_cluster_beside_a_narrow_file_only_reads_but_for_nodes() {
    for right in RIGHTS.iter().filter(|right| right.place == Place::Cluster && right.resource != "nodes") {
        assert!(right.verbs.iter().all(|verb| ["get", "list", "watch"].contains(verb)), "{right:?}");
    }
}

#[test]
fn nothing_is_granted_by_wildcard_and_what_leads_to_more_rights_never() {
    const NEVER: [&str; 12] = [
        "secrets",
        "serviceaccounts",
        "serviceaccounts/token",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "pods/exec",
        "nodes/status",
        "nodes/proxy",
        "customresourcedefinitions",
        "validatingadmissionpolicies",
    ];
    for right in RIGHTS {
        let words: Vec<&str> = right.verbs.iter().chain(right.names).chain([&right.group, &right.resource]).copied().collect();
        assert!(!words.iter().any(|word| word.contains('*')), "{right:?}");
        assert!(!NEVER.contains(&right.resource), "{right:?}");
        let grows = ["impersonate", "escalate", "bind", "deletecollection"];
        assert!(right.verbs.iter().all(|verb| !grows.contains(verb)), "{right:?}");
        // Nobody can limit a creation by name.
        let by_name = ["leases", "configmaps"].contains(&right.resource);
        assert!(!by_name || (!right.names.is_empty() && !right.verbs.contains(&"create")), "{right:?}");
    }
}

#[test]
fn who_only_observes_may_write_in_our_own_namespace_alone() {
    let reads = ["get", "list", "watch"];
    for right in RIGHTS.iter().filter(|right| right.grant == Grant::Observe && right.place != Place::Own) {
        assert!(right.verbs.iter().all(|verb| reads.contains(verb)), "{right:?}");
    }
}

#[test]
fn each_grant_covers_those_before_it_and_the_last_two_stand_beside_each_other() {
    let covered = |grant: Grant| -> BTreeSet<&str> {
        RIGHTS.iter().filter(|right| grant.covers(right.grant)).map(|right| right.grant.name()).collect()
    };
    assert_eq!(covered(Grant::Mark), BTreeSet::from(["observe", "notify", "mark"]));
    assert_eq!(covered(Grant::Restart), BTreeSet::from(["observe", "notify", "mark", "heal", "restart"]));
    assert_eq!(covered(Grant::PastBudgets), BTreeSet::from(["observe", "notify", "mark", "heal", "past-budgets"]));
}

#[test]
fn the_files_for_two_namespaces_share_no_object() {
    let names = |namespace: &str| -> BTreeSet<String> {
        let name = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            format!("{} {}/{}", object["kind"].as_str().unwrap(), text("namespace"), text("name"))
        };
        everything(namespace).iter().map(name).collect()
    };
    let (ours, other) = (names("gpu-selfhealing"), names("other"));
    assert_eq!(ours.intersection(&other).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(ours.len(), everything("other").len(), "none is named twice");
}

#[test]
fn the_policies_name_each_key_that_is_ours_and_bind_our_account_alone() {
    let objects = Sheet::Admission.objects("ns");
    let policies: Vec<_> = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy").collect();
    assert_eq!((policies.len(), objects.len()), (2, 4));
    for policy in &policies {
        let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(condition.contains("\"system:serviceaccount:ns:gpuheal-spoke\""), "{condition}");
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let bound = objects.iter().filter(|object| object["spec"]["policyName"] == policy["metadata"]["name"]);
        assert_eq!(bound.map(|binding| binding["spec"]["validationActions"][0].clone()).collect::<Vec<_>>(), ["Deny"]);
    }
    let text = Sheet::Admission.yaml("ns", &[]);
    assert!(!text.contains('$'), "a placeholder is left");
    for key in ["status", "faulty", "last-process-time", "process-id", "plan-revision", "restarted-by"] {
        assert!(text.contains(&format!("gpu-selfhealing.io/{key}")), "{key}");
    }
}

/// The row of docs/execution.md.
fn documented(right: &Right) -> String {
    let place = match right.place {
        Place::Own => "ours",
        Place::NodeEvents => NODE_EVENTS,
        Place::Cluster => "all",
        Place::Workloads => "all, or some",
    };
    let group = if right.group.is_empty() { String::new() } else { format!(" of `{}`", right.group) };
    let name = |name: &&str| if *name == OWN_NAMESPACE { "ours".to_owned() } else { format!("`{name}`") };
    let names: Vec<String> = right.names.iter().map(name).collect();
    let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let (grant, resource, verbs) = (right.grant.name(), right.resource, right.verbs.join(", "));
    format!("| {grant} | {place} | `{resource}`{group}{names} | {verbs} | {} |", right.why)
}

#[test]
fn every_right_is_explained_in_the_docs_line_by_line() {
    let page = include_str!("../../../docs/execution.md");
    let missing: Vec<String> = RIGHTS.iter().map(documented).filter(|row| !page.contains(row.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new(), "\n{}", missing.join("\n"));
    let rows = page.lines().filter(|line| Grant::ALL.iter().any(|grant| line.starts_with(&format!("| {} |", grant.name()))));
    assert_eq!(rows.count(), RIGHTS.len(), "no row is there that the table has not");
}
