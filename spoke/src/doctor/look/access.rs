//! What the spoke's account may do: asked of itself where it is the account that asks, else of whoever may review others.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
    },
};
use kube::{Api, Client, api::PostParams};

use super::{
    super::facts::{Account, Pod, Seen},
    call,
};
use crate::{
    args::Doctor,
    rights::{ACCOUNT, NODE_EVENTS, OWN_NAMESPACE, Place, RIGHTS, Right},
};

/// Questions under way at once.
const AT_ONCE: usize = 8;

/// Namespaces that are asked about one by one: with some nine verbs each, and [`AT_ONCE`] under way, so many are asked about in a few
/// seconds.
const NAMESPACES_MAX: usize = 64;

/// By row of the table and verb.
type Held = BTreeMap<(usize, &'static str), bool>;

/// What no spoke ever does: verb, group, resource.
const BEYOND: [(&str, &str, &str); 9] = [
    ("delete", "", "nodes"),
    ("update", "", "nodes"),
    ("patch", "", "nodes/status"),
    ("create", "", "pods"),
    ("create", "", "pods/exec"),
    ("list", "", "secrets"),
    ("create", "", "serviceaccounts/token"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("impersonate", "", "users"),
];

/// Who asks about whom.
enum Asker {
    /// The spoke's account about itself.
    Account,
    /// Somebody about the spoke's account.
    Reviewer,
    /// Somebody who may not, about himself.
    Other,
}

/// Its rights by the table.
pub(super) async fn account(client: &Client, args: &Doctor, pods: &[Pod]) -> Seen<Account> {
    let namespace = args.namespace.as_str();
    let account = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
    let me =
        call(Api::<SelfSubjectReview>::all(client.clone()).create(&PostParams::default(), &SelfSubjectReview::default())).await;
    let me = me.ok().and_then(|me| me.status?.user_info?.username).unwrap_or_default();
    let probe = attributes(&RIGHTS[0], RIGHTS[0].verbs[0], RIGHTS[0].names.first(), namespace, place(&RIGHTS[0], namespace));
    let asker = if me == account {
        Asker::Account
    } else if may(client, &Asker::Reviewer, namespace, probe).await.is_ok() {
        Asker::Reviewer
    } else {
        Asker::Other
    };
    let held = held(client, &asker, namespace).await?;
    let within = within(client, &asker, args, &held, pods).await?;
    let mut beyond = Vec::new();
    for (verb, group, resource) in BEYOND {
        let right = Right { grant: RIGHTS[0].grant, place: Place::Cluster, group, resource, names: &[], verbs: &[], why: "" };
        if may(client, &asker, namespace, attributes(&right, verb, None, namespace, "")).await? {
            beyond.push(format!("{verb} {resource}"));
        }
    }
    let ours = !matches!(asker, Asker::Other);
    Ok(Account { user: if ours { account } else { me }, ours, held, within, beyond })
}

/// Row by row, each where it is to hold; what is about pods and workloads in the whole cluster.
async fn held(client: &Client, asker: &Asker, namespace: &str) -> Seen<Held> {
    let rows = RIGHTS.iter().enumerate().flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, right, *verb)));
    // A right to objects by their names is held once it is to each of them.
    let asked = rows.flat_map(|(at, right, verb)| names(right).into_iter().map(move |name| (at, right, verb, name)));
    let asked = asked.map(|(at, right, verb, name)| async move {
        let attributes = attributes(right, verb, name, namespace, place(right, namespace));
        Ok::<_, String>(((at, verb), may(client, asker, namespace, attributes).await?))
    });
    let answers: Vec<_> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).try_collect().await?;
    let mut held = BTreeMap::new();
    for (key, may) in answers {
        *held.entry(key).or_insert(true) &= may;
    }
    Ok(held)
}

/// What of the rights to pods and workloads that the account has not everywhere it has in single namespaces: those that were named, and
/// those with pods that a drain would meet.
async fn within(
    client: &Client,
    asker: &Asker,
    args: &Doctor,
    held: &Held,
    pods: &[Pod],
) -> Seen<BTreeMap<String, BTreeSet<(usize, &'static str)>>> {
    let rows = RIGHTS.iter().enumerate();
    let rows = rows.filter(|(_, right)| right.place == Place::Workloads && args.mode.covers(right.grant));
    let verbs = rows.flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, right, *verb)));
    let lacking: Vec<_> = verbs.filter(|(at, _, verb)| held.get(&(*at, *verb)) != Some(&true)).collect();
    if lacking.is_empty() {
        return Ok(BTreeMap::new());
    }
    let with_pods = pods.iter().map(|pod| &pod.namespace);
    let mut found: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for namespace in args.namespaces.iter().chain(with_pods) {
        if found.len() < NAMESPACES_MAX {
            found.entry(namespace.clone()).or_default();
        }
    }
    let namespaces: Vec<String> = found.keys().cloned().collect();
    let asked = namespaces.iter().flat_map(|there| lacking.iter().map(move |(at, right, verb)| (there, *at, *right, *verb)));
    let asked = asked.map(|(there, at, right, verb)| async move {
        let attributes = attributes(right, verb, None, &args.namespace, there);
        Ok::<_, String>((there, (at, verb), may(client, asker, &args.namespace, attributes).await?))
    });
    let answers: Vec<_> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).try_collect().await?;
    for (there, key, _) in answers.into_iter().filter(|(_, _, may)| *may) {
        found.entry(there.clone()).or_default().insert(key);
    }
    Ok(found)
}

/// The objects that a right names; one that names none is about any.
fn names(right: &Right) -> Vec<Option<&'static &'static str>> {
    if right.names.is_empty() { vec![None] } else { right.names.iter().map(Some).collect() }
}

/// Where a right is to hold; empty for the whole cluster.
const fn place<'a>(right: &Right, home: &'a str) -> &'a str {
    match right.place {
        Place::Own => home,
        Place::NodeEvents => NODE_EVENTS,
        Place::Cluster | Place::Workloads => "",
    }
}

fn attributes(right: &Right, verb: &str, name: Option<&&'static str>, namespace: &str, place: &str) -> ResourceAttributes {
    let name = name.map(|name| if *name == OWN_NAMESPACE { namespace } else { name });
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(right.group.to_owned()),
        resource: Some(right.plural().to_owned()),
        subresource: Some(right.subresource().to_owned()).filter(|subresource| !subresource.is_empty()),
        namespace: Some(place.to_owned()),
        name: name.map(str::to_owned),
        ..ResourceAttributes::default()
    }
}

async fn may(client: &Client, asker: &Asker, namespace: &str, attributes: ResourceAttributes) -> Seen<bool> {
    let (client, params) = (client.clone(), PostParams::default());
    let status = match asker {
        Asker::Account | Asker::Other => {
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            call(Api::<SelfSubjectAccessReview>::all(client).create(&params, &review)).await?.status
        }
        Asker::Reviewer => {
            let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
            let spec = SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{ACCOUNT}")),
                groups: Some(groups.map(str::to_owned).to_vec()),
                resource_attributes: Some(attributes),
                ..Default::default()
            };
            let review = SubjectAccessReview { spec, ..Default::default() };
            call(Api::<SubjectAccessReview>::all(client).create(&params, &review)).await?.status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}
