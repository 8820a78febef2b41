//! What an eviction would lose: pods that nobody makes anew, and data that is on the node alone.

use gpuheal_proto::link::v1::CommandState;
use serde_json::{Value, json};

use super::in_state;
use crate::{
    hub::{drain, mark},
    replica::Spoke,
    world::World,
};

testkube::claims![
    a_pod_that_no_controller_makes_anew_stays_and_is_named_until_its_own_label_lets_it_go,
    pods_with_scratch_space_go_like_any_other,
];

async fn a_pod_that_no_controller_makes_anew_stays_and_is_named_until_its_own_label_lets_it_go(w: World) {
    w.gpu_pod("bare-1", "n1", json!({"metadata": {"ownerReferences": null}})).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    let why = in_state(&end, "bare-1", "skipped").unwrap();
    assert!(why.contains("no controller makes it anew") && why.contains("gpu-selfhealing.io/evict: now"), "{why}");
    assert!(end.reason.contains("1 of 1 pods gone"), "{}", end.reason);
    assert!(w.pod("bare-1").await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()));
    w.change_pod("bare-1", json!({"metadata": {"labels": {"gpu-selfhealing.io/evict": "now"}}})).await;
    let end = spoke.carry_out(&w.command("n1", 2, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("bare-1").await;
}

async fn pods_with_scratch_space_go_like_any_other(w: World) {
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let volumes: [(&str, Value); 3] = [
        ("scratch", json!({"emptyDir": {}})),
        ("cache", json!({"hostPath": {"path": "/var/cache/models"}})),
        ("ephemeral", json!({"ephemeral": {"volumeClaimTemplate": claim}})),
    ];
    for (name, volume) in &volumes {
        let mut volume = volume.clone();
        volume["name"] = json!("data");
        w.gpu_pod(name, "n1", json!({"spec": {"volumes": [volume]}})).await;
    }
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "no namespace's word is asked for: {}", end.reason);
    for (name, _) in &volumes {
        w.gone(name).await;
    }
    assert_eq!(w.evictions().await.len(), volumes.len());
}
