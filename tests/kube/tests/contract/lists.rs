//! Lists: pages that fit together, selectors, and refusals of what cannot be selected.

use serde_json::json;
use testkube::raw;

use crate::world::{World, names};

testkube::claims![
    list_in_pages_gives_each_object_once,
    list_by_node_name_gives_the_pods_bound_there,
    list_by_node_name_in_pages_gives_each_pod_once,
    list_by_label_sets_and_absence,
    list_by_an_unknown_field_is_400,
    list_with_a_broken_continue_token_is_400,
    list_gives_a_resource_version_to_watch_from,
    list_of_an_unknown_resource_is_404,
    list_over_all_namespaces_holds_the_namespaced,
    list_of_nodes_by_label_and_by_name,
    list_of_metadata_only,
];

async fn some_config_maps(w: &World, count: u32) {
    for number in 0..count {
        let labels = if number % 2 == 0 { json!({ "kind": "even" }) } else { json!({ "kind": "odd", "extra": "x" }) };
        let body = json!({ "metadata": { "name": format!("m-{number}"), "labels": labels } });
        raw::post(&w.client, &w.core("configmaps"), &body).await.expect(201);
    }
}

/// Follows `continue` to the end; gives the names seen and the number of pages.
async fn pages(w: &World, path: &str) -> (Vec<String>, usize) {
    let (mut seen, mut count, mut token) = (Vec::new(), 0, String::new());
    loop {
        let page = w.get(&format!("{path}&continue={token}")).await;
        seen.extend(names(&page));
        count += 1;
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return (seen, count);
        }
    }
}

async fn list_in_pages_gives_each_object_once(w: World) {
    some_config_maps(&w, 7).await;
    let (mut seen, count) = pages(&w, &format!("{}?limit=3&labelSelector=kind", w.core("configmaps"))).await;
    assert_eq!(count, 3);
    seen.sort();
    assert_eq!(seen, ["m-0", "m-1", "m-2", "m-3", "m-4", "m-5", "m-6"]);
}

async fn list_by_node_name_gives_the_pods_bound_there(w: World) {
    let _machines = w.nodes(2, 8).await;
    let pod = w.running_pod(w.pool.pod("here", 1)).await;
    let mut elsewhere = w.pool.pod("unbound", 1);
    elsewhere["spec"]["nodeSelector"] = json!({ "no": "such" });
    w.create(&[elsewhere]).await;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let list = w.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")).await;
    assert_eq!(names(&list), ["here"]);
}

async fn list_by_node_name_in_pages_gives_each_pod_once(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&[w.pool.deployment("many", 5, 1)]).await;
    w.ready_pods("many", 5).await;
    let path = format!("/api/v1/pods?limit=2&fieldSelector=spec.nodeName%3D{}-1", w.pool.name);
    let (mut seen, count) = pages(&w, &path).await;
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), count), (5, 3));
}

async fn list_by_label_sets_and_absence(w: World) {
    some_config_maps(&w, 4).await;
    let select = |selector: &str| format!("{}?labelSelector={selector}", w.core("configmaps"));
    assert_eq!(names(&w.get(&select("kind%20in%20(even,other)")).await), ["m-0", "m-2"]);
    assert_eq!(names(&w.get(&select("kind,!extra")).await), ["m-0", "m-2"]);
    assert_eq!(names(&w.get(&select("kind,kind!%3Deven")).await), ["m-1", "m-3"]);
    assert_eq!(names(&w.get(&select("kind%3Deven,extra%3Dx")).await), Vec::<String>::new());
}

async fn list_by_an_unknown_field_is_400(w: World) {
    let path = format!("{}?fieldSelector=spec.unheardOf%3D1", w.core("pods"));
    assert_eq!(raw::get(&w.client, &path).await.expect(400).reason(), "BadRequest");
}

async fn list_with_a_broken_continue_token_is_400(w: World) {
    raw::get(&w.client, &format!("{}?limit=1&continue=broken", w.core("configmaps"))).await.expect(400);
}

async fn list_gives_a_resource_version_to_watch_from(w: World) {
    some_config_maps(&w, 1).await;
    let list = w.get(&w.core("configmaps")).await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    some_more(&w).await;
    let path = format!("{}?watch=true&resourceVersion={version}&labelSelector=later", w.core("configmaps"));
    let events = raw::watch(&w.client, &path, |events| !events.is_empty()).await;
    assert_eq!(events[0]["object"]["metadata"]["name"], "later");
}

async fn some_more(w: &World) {
    let body = json!({ "metadata": { "name": "later", "labels": { "later": "yes" } } });
    raw::post(&w.client, &w.core("configmaps"), &body).await.expect(201);
}

async fn list_of_an_unknown_resource_is_404(w: World) {
    raw::get(&w.client, &w.core("unheardofs")).await.expect(404);
    raw::get(&w.client, "/apis/unheard.of/v1/things").await.expect(404);
}

async fn list_over_all_namespaces_holds_the_namespaced(w: World) {
    w.config_map("everywhere", json!({})).await;
    let list = w.get(&format!("/api/v1/configmaps?fieldSelector=metadata.namespace%3D{},metadata.name%3Deverywhere", w.ns())).await;
    assert_eq!(names(&list), ["everywhere"]);
    assert_eq!(list["kind"], "ConfigMapList");
}

async fn list_of_nodes_by_label_and_by_name(w: World) {
    let _machines = w.nodes(2, 8).await;
    let label = format!("labelSelector=gpu-selfhealing.io%2Ftest-pool%3D{}", w.pool.name);
    let first = format!("{}-1", w.pool.name);
    assert_eq!(names(&w.get(&format!("/api/v1/nodes?{label}")).await).len(), 2);
    assert_eq!(names(&w.get(&format!("/api/v1/nodes?{label}&fieldSelector=metadata.name%3D{first}")).await), [first]);
}

/// What a watcher of metadata asks for, with the list's own order of preference.
async fn list_of_metadata_only(w: World) {
    let made = w.config_map("a", json!({ "k": "1" })).await;
    let api: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::namespaced(w.client.clone(), w.ns());
    let found = api.get_metadata("a").await.expect("the metadata of what was made");
    assert_eq!(found.metadata.uid.as_deref(), made["metadata"]["uid"].as_str());
    let listed = api.list_metadata(&kube::api::ListParams::default()).await.expect("a list");
    assert!(listed.items.iter().any(|item| item.metadata.name.as_deref() == Some("a")));
}
