//! What lists and events leave behind.

use gpuheal_spoke_core::gpu_resources::GpuResources;
use serde_json::json;

use super::*;

fn node(name: &str, uid: &str) -> NodeSeen {
    serde_json::from_value(json!({"metadata": {"name": name, "uid": uid, "resourceVersion": "1"}})).unwrap()
}

fn pod(name: &str, node: &str, gpu: &str) -> PodSeen {
    let spec = json!({"nodeName": node, "containers": [{"resources": {"limits": {gpu: "1"}}}]});
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ml", "uid": format!("{name}-{node}")}, "spec": spec}))
        .unwrap()
}

#[test]
fn only_a_whole_list_removes_what_it_does_not_bring_and_that_is_told() {
    let touched = Touched::new();
    let (mut keep, _, nodes) =
        keepers(Ears::new(vec![Arc::clone(&touched)]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
    keep.begin();
    keep.put(node("a", "1"));
    keep.put(node("b", "1"));
    assert!(!nodes.listed.borrow().nodes);
    keep.end();
    assert!(nodes.listed.borrow().nodes);
    let _ = touched.take();
    // This one breaks off.
    keep.begin();
    keep.put(node("a", "2"));
    assert_eq!(nodes.nodes().len(), 2);
    keep.begin();
    keep.put(node("a", "2"));
    keep.end();
    assert!(nodes.node("b").is_none() && nodes.shows("a", "2"));
    assert_eq!(touched.take(), ["a".to_owned(), "b".to_owned()].into());
}

#[test]
fn a_list_of_what_is_known_already_moves_nothing_and_wakes_nobody() {
    let touched = Touched::new();
    let (mut nodes, mut pods, view) =
        keepers(Ears::new(vec![Arc::clone(&touched)]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
    for list in 0..2 {
        let before = (view.node("a"), view.pods_on("a").pop());
        let changes = *view.changes().borrow();
        nodes.begin();
        nodes.put(node("a", "1"));
        nodes.end();
        pods.begin();
        pods.put(pod("p", "a", "nvidia.com/gpu"));
        pods.end();
        let after = (view.node("a").unwrap(), view.pods_on("a").pop().unwrap());
        if list > 0 {
            assert!(touched.take().is_empty());
            assert!(Arc::ptr_eq(&before.0.unwrap(), &after.0) && Arc::ptr_eq(&before.1.unwrap(), &after.1));
            assert_eq!(*view.changes().borrow(), changes + 2, "only that both lists are whole");
        }
        let _ = touched.take();
    }
}

#[test]
fn a_pod_is_found_by_its_node_and_leaves_it_when_another_of_its_name_is_elsewhere() {
    let touched = Touched::new();
    let (_, mut keep, nodes) =
        keepers(Ears::new(vec![Arc::clone(&touched)]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
    keep.put(pod("a", "n1", "nvidia.com/gpu"));
    keep.put(pod("b", "n1", "nvidia.com/gpu"));
    keep.put(pod("c", "n1", "cpu"));
    let names = |node: &str| nodes.pods_on(node).iter().map(|pod| pod.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names("n1"), ["a", "b"]);
    let _ = touched.take();
    keep.put(pod("a", "n2", "nvidia.com/gpu"));
    assert_eq!((names("n1"), names("n2")), (vec!["b".to_owned()], vec!["a".to_owned()]));
    assert_eq!(touched.take(), ["n1".to_owned(), "n2".to_owned()].into(), "both nodes have changed");
    // Another one of that name asks for no GPU.
    keep.put(pod("a", "n2", "cpu"));
    keep.remove(pod("b", "n1", "nvidia.com/gpu"));
    assert!(nodes.pods().is_empty() && names("n1").is_empty() && names("n2").is_empty());
}

/// Inventory, watch, what the device plugin offers, and the drain's plan.
#[test]
fn one_word_says_what_a_gpu_is_to_all_who_look_at_nodes_and_pods() {
    let gpus = GpuResources::of(&["amd.com/gpu".to_owned()]);
    let (mut nodes, mut pods, view) = keepers(Ears::new(vec![]), &gpus);
    let status = json!({"capacity": {"amd.com/gpu": "8", "nvidia.com/gpu": "4"}, "allocatable": {"amd.com/gpu": "7", "nvidia.com/gpu": "4"}});
    nodes.put(serde_json::from_value(json!({"metadata": {"name": "a", "uid": "a"}, "status": status})).unwrap());
    pods.put(pod("theirs", "a", "nvidia.com/gpu"));
    pods.put(pod("ours", "a", "amd.com/gpu"));
    let node = view.node("a").unwrap();
    assert_eq!((node.capacity_gpus, node.allocatable_gpus), (8, 7));
    assert_eq!(node.offers().iter().map(|offer| offer.resource.as_str()).collect::<Vec<_>>(), ["amd.com/gpu"]);
    let kept = view.pods_on("a");
    assert_eq!(kept.iter().map(|pod| (&*pod.name, pod.gpus)).collect::<Vec<_>>(), [("ours", 1)]);
    assert!(gpuheal_spoke_core::drain::holds_gpu(&kept[0].facts(), view.gpus(), &[].into()), "and a drain takes it for one too");
}
