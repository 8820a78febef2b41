//! The account that ships with the spoke: made from the files of deploy/spoke, and waited for until the API server goes by
//! them. Where RBAC is not looked at, on kubesim, it may do everything.

use std::collections::BTreeMap;

use gpuheal_spoke::rights::{ACCOUNT, Grant, NODE_EVENTS, OWN_NAMESPACE, Place, RIGHTS, Right, Sheet};
use kube::Client;
use serde_json::json;
use testkube::{TestCluster, connect::connect, raw, settled};

/// Who it is to the API server.
pub(crate) fn user(home: &str) -> String {
    format!("system:serviceaccount:{home}:{ACCOUNT}")
}

/// Installs it with these grants, under the admission policies, and gives its kubeconfig once the grants are in force.
pub(crate) async fn install(cluster: &TestCluster, admin: &Client, home: &str, grants: &[Grant]) -> String {
    install_within(cluster, admin, home, grants, &[]).await
}

/// The same, for pods and workloads of these namespaces alone where any is named.
pub(crate) async fn install_within(
    cluster: &TestCluster,
    admin: &Client,
    home: &str,
    grants: &[Grant],
    within: &[String],
) -> String {
    cluster.apply(admin, &Sheet::Observe.objects(home)).await;
    cluster.apply(admin, &Sheet::Admission.objects(home)).await;
    for grant in grants {
        cluster.apply(admin, &grant.sheet().objects_within(home, within)).await;
    }
    let kubeconfig = cluster.account_kubeconfig(admin, home, ACCOUNT).await;
    let account = connect(&kubeconfig, "installer").await.unwrap();
    // A role is seen whole: one right of each is enough.
    let mut one_of_each = BTreeMap::new();
    for right in RIGHTS.iter().filter(|right| grants.contains(&right.grant)) {
        one_of_each.entry((right.grant, right.place)).or_insert(right);
    }
    for right in one_of_each.into_values() {
        let there = if right.place == Place::Workloads { within } else { &[] };
        for namespace in there.iter().map(String::as_str).chain(there.is_empty().then_some("")) {
            let has = || may_in(&account, right, right.verbs[0], home, namespace);
            settled::is_true("the account has what it was granted", has).await;
        }
    }
    kubeconfig
}

/// Whether the API server lets its caller do it, to pods and workloads everywhere.
pub(crate) async fn may(client: &Client, right: &Right, verb: &str, home: &str) -> bool {
    may_in(client, right, verb, home, "").await
}

/// The same, to pods and workloads of this namespace.
async fn may_in(client: &Client, right: &Right, verb: &str, home: &str, there: &str) -> bool {
    let name = right.names.first().map_or("", |name| if *name == OWN_NAMESPACE { home } else { name });
    let namespace = match right.place {
        Place::Own => home,
        Place::NodeEvents => NODE_EVENTS,
        Place::Cluster => "",
        Place::Workloads => there,
    };
    let attributes = json!({
        "verb": verb, "group": right.group, "resource": right.plural(), "subresource": right.subresource(),
        "namespace": namespace, "name": name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes},
    });
    let answer = raw::post(client, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.expect(201);
    answer.json["status"]["allowed"] == true
}
