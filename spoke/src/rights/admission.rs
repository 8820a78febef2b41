//! What RBAC cannot say: which fields of a node, and of a workload, the account may change. Two policies that the API
//! server evaluates itself, with every rule a comparison of the object before and after. Whatever is not named as ours
//! must be as it was: labels, annotations, taints with their order and `timeAdded`, every other field of spec and
//! metadata. They bind the spoke's account alone, and everything about nodes that is no change is refused to it too.

use gpuheal_proto::kubernetes::{
    ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PLAN_REVISION, ANNOTATION_PROCESS_ID, LABEL_STATUS, TAINT_EFFECT, TAINT_FAULTY,
};

use super::{ACCOUNT, sheet::named};
use crate::execute::RESTARTED_BY;

/// For whoever reads the file.
pub(super) const ABOUT: &str = "What the spoke's account must not change of nodes and workloads, whatever its roles say: \
    of a node its own label, its own taint, its three annotations and spec.unschedulable, of a workload its own annotation on the \
    pod template, and nothing else. Nobody else's requests are looked at. Kubernetes 1.30 and later.";

/// Both policies, each with its binding.
pub(super) fn objects(namespace: &str) -> Vec<String> {
    let account = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
    let annotations = [ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PROCESS_ID, ANNOTATION_PLAN_REVISION];
    let policy = |what: &str, text: &str| {
        text.replace("$UPDATES", UPDATES)
            .replace("$METADATA_KEPT", METADATA_KEPT)
            .replace("$NAME", &named(namespace, what))
            .replace("$ACCOUNT", &account)
            .replace("$ANNOTATIONS", &format!("[{}]", annotations.map(|key| format!("\"{key}\"")).join(", ")))
            .replace("$LABEL", LABEL_STATUS)
            .replace("$TAINT", TAINT_FAULTY)
            .replace("$EFFECT", TAINT_EFFECT)
            .replace("$RESTARTED_BY", RESTARTED_BY)
    };
    [("nodes", NODES), ("workloads", WORKLOADS)]
        .into_iter()
        .flat_map(|(what, text)| [policy(what, text), policy(what, BINDING)])
        .collect()
}

const BINDING: &str = r"apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: $NAME
spec:
  policyName: $NAME
  validationActions: [Deny]
";

/// A change of the object itself, in both policies.
const UPDATES: &str = r#"request.operation == "UPDATE" && (!has(request.subResource) || request.subResource == "")"#;

/// All of its metadata but what is looked at by itself is as it was, in both policies.
const METADATA_KEPT: &str = "variables.is.metadata.all(field, field in variables.openMetadata ||
        (field in variables.was.metadata && variables.is.metadata[field] == variables.was.metadata[field])) &&
      variables.was.metadata.all(field, field in variables.openMetadata || field in variables.is.metadata)";

/// `dyn` keeps the API server's type check from taking an object's fields for something that cannot be walked over.
const NODES: &str = r#"apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: $NAME
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE, DELETE, CONNECT]
      resources: [nodes, nodes/*]
  matchConditions:
  - name: the-spokes-account
    expression: request.userInfo.username == "$ACCOUNT"
  variables:
  - name: changes
    expression: $UPDATES
  - name: was
    expression: 'variables.changes ? dyn(oldObject) : dyn({"metadata": {}, "spec": {}})'
  - name: is
    expression: 'variables.changes ? dyn(object) : dyn({"metadata": {}, "spec": {}})'
  - name: labelsBefore
    expression: 'has(variables.was.metadata.labels) ? variables.was.metadata.labels : dyn({})'
  - name: labels
    expression: 'has(variables.is.metadata.labels) ? variables.is.metadata.labels : dyn({})'
  - name: annotationsBefore
    expression: 'has(variables.was.metadata.annotations) ? variables.was.metadata.annotations : dyn({})'
  - name: annotations
    expression: 'has(variables.is.metadata.annotations) ? variables.is.metadata.annotations : dyn({})'
  - name: taintsBefore
    expression: 'has(variables.was.spec.taints) ? variables.was.spec.taints : dyn([])'
  - name: taints
    expression: 'has(variables.is.spec.taints) ? variables.is.spec.taints : dyn([])'
  - name: ourAnnotations
    expression: '$ANNOTATIONS'
  - name: ourSpec
    expression: '["taints", "unschedulable"]'
  # Labels and annotations are looked at key by key; the other three the API server writes itself.
  - name: openMetadata
    expression: '["labels", "annotations", "managedFields", "resourceVersion", "generation"]'
  validations:
  - reason: Forbidden
    message: the spoke changes nodes, and neither makes, deletes nor connects to them nor writes their status
    expression: variables.changes
  - reason: Forbidden
    message: of a node's labels the spoke changes $LABEL alone
    expression: >-
      variables.labels.all(key, key == "$LABEL" ||
        (key in variables.labelsBefore && variables.labels[key] == variables.labelsBefore[key])) &&
      variables.labelsBefore.all(key, key == "$LABEL" || key in variables.labels)
  - reason: Forbidden
    message: of a node's annotations the spoke changes its own three alone
    expression: >-
      variables.annotations.all(key, key in variables.ourAnnotations ||
        (key in variables.annotationsBefore && variables.annotations[key] == variables.annotationsBefore[key])) &&
      variables.annotationsBefore.all(key, key in variables.ourAnnotations || key in variables.annotations)
  - reason: Forbidden
    message: of a node's taints the spoke changes $TAINT:$EFFECT alone
    expression: >-
      variables.taints.filter(taint, taint.key != "$TAINT" || taint.effect != "$EFFECT") ==
      variables.taintsBefore.filter(taint, taint.key != "$TAINT" || taint.effect != "$EFFECT")
  - reason: Forbidden
    message: of a node's spec the spoke changes its own taint and unschedulable alone
    expression: >-
      variables.is.spec.all(field, field in variables.ourSpec ||
        (field in variables.was.spec && variables.is.spec[field] == variables.was.spec[field])) &&
      variables.was.spec.all(field, field in variables.ourSpec || field in variables.is.spec)
  - reason: Forbidden
    message: the spoke leaves a node's finalizers, owners and all else of its metadata as they are
    expression: >-
      $METADATA_KEPT
"#;

const WORKLOADS: &str = r#"apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: $NAME
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [apps]
      apiVersions: [v1]
      operations: [CREATE, UPDATE, DELETE, CONNECT]
      resources: [deployments, deployments/*, statefulsets, statefulsets/*, daemonsets, daemonsets/*]
  matchConditions:
  - name: the-spokes-account
    expression: request.userInfo.username == "$ACCOUNT"
  variables:
  - name: changes
    expression: $UPDATES
  - name: was
    expression: 'variables.changes ? dyn(oldObject) : dyn({"metadata": {}, "spec": {"template": {"metadata": {}}}})'
  - name: is
    expression: 'variables.changes ? dyn(object) : dyn({"metadata": {}, "spec": {"template": {"metadata": {}}}})'
  - name: templateBefore
    expression: 'variables.was.spec.template'
  - name: template
    expression: 'variables.is.spec.template'
  - name: annotationsBefore
    expression: 'has(variables.templateBefore.metadata.annotations) ? variables.templateBefore.metadata.annotations : dyn({})'
  - name: annotations
    expression: 'has(variables.template.metadata.annotations) ? variables.template.metadata.annotations : dyn({})'
  - name: ownAnnotationsBefore
    expression: 'has(variables.was.metadata.annotations) ? variables.was.metadata.annotations : dyn({})'
  - name: ownAnnotations
    expression: 'has(variables.is.metadata.annotations) ? variables.is.metadata.annotations : dyn({})'
  # Annotations are looked at key by key; the other three the API server writes itself.
  - name: openMetadata
    expression: '["annotations", "managedFields", "resourceVersion", "generation"]'
  # As which apps/v1 shows a DaemonSet's count of its templates: the API server's own too.
  - name: counter
    expression: '"deprecated.daemonset.template.generation"'
  validations:
  - reason: Forbidden
    message: the spoke changes workloads, and neither makes, deletes nor scales them nor writes their status
    expression: variables.changes
  - reason: Forbidden
    message: the spoke leaves a workload's labels, finalizers, owners and all else of its metadata as they are
    expression: >-
      $METADATA_KEPT
  - reason: Forbidden
    message: the spoke leaves a workload's own annotations as they are
    expression: >-
      variables.ownAnnotations.all(key, key == variables.counter || (key in variables.ownAnnotationsBefore &&
        variables.ownAnnotations[key] == variables.ownAnnotationsBefore[key])) &&
      variables.ownAnnotationsBefore.all(key, key == variables.counter || key in variables.ownAnnotations)
  - reason: Forbidden
    message: of a workload's spec the spoke changes the pod template alone
    expression: >-
      variables.is.spec.all(field, field == "template" ||
        (field in variables.was.spec && variables.is.spec[field] == variables.was.spec[field])) &&
      variables.was.spec.all(field, field == "template" || field in variables.is.spec)
  - reason: Forbidden
    message: of a pod template the spoke changes its annotations alone
    expression: >-
      variables.template.all(field, field == "metadata" ||
        (field in variables.templateBefore && variables.template[field] == variables.templateBefore[field])) &&
      variables.templateBefore.all(field, field == "metadata" || field in variables.template) &&
      variables.template.metadata.all(field, field == "annotations" || (field in variables.templateBefore.metadata &&
        variables.template.metadata[field] == variables.templateBefore.metadata[field])) &&
      variables.templateBefore.metadata.all(field, field == "annotations" || field in variables.template.metadata)
  - reason: Forbidden
    message: of a pod template's annotations the spoke changes $RESTARTED_BY alone
    expression: >-
      variables.annotations.all(key, key == "$RESTARTED_BY" ||
        (key in variables.annotationsBefore && variables.annotations[key] == variables.annotationsBefore[key])) &&
      variables.annotationsBefore.all(key, key == "$RESTARTED_BY" || key in variables.annotations)
"#;
