//! The field numbers of the Kubernetes API, for the kinds that `kubectl create` sends as protobuf. A table; no behaviour.

#[derive(Clone, Copy)]
pub(super) enum Shape {
    Text,
    Texts,
    Number,
    NumberOrText,
    /// Text by text.
    Pairs,
    /// Bytes by text.
    Blobs,
    Message(&'static [Field]),
    Messages(&'static [Field]),
}

use Shape::{Blobs, Message, Messages, Number, NumberOrText, Pairs, Text, Texts};

pub(super) type Field = (u64, &'static str, Shape);

const META: &[Field] =
    &[(1, "name", Text), (2, "generateName", Text), (3, "namespace", Text), (11, "labels", Pairs), (12, "annotations", Pairs)];
const METADATA: Field = (1, "metadata", Message(META));

const RESOURCE: &[Field] = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const ACCESS: &[Field] =
    &[(1, "resourceAttributes", Message(RESOURCE)), (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)]))];
const DELETE: &[Field] = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
const TOKEN: &[Field] = &[(1, "audiences", Texts), (4, "expirationSeconds", Number)];

const SELECTOR: &[Field] = &[
    (1, "matchLabels", Pairs),
    (2, "matchExpressions", Messages(&[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)])),
];
const CONTAINER: &[Field] = &[
    (1, "name", Text),
    (2, "image", Text),
    (3, "command", Texts),
    (4, "args", Texts),
    (6, "ports", Messages(&[(1, "name", Text), (3, "containerPort", Number), (4, "protocol", Text)])),
    (7, "env", Messages(&[(1, "name", Text), (2, "value", Text)])),
];
const POD: &[Field] = &[
    (2, "containers", Messages(CONTAINER)),
    (3, "restartPolicy", Text),
    (4, "terminationGracePeriodSeconds", Number),
    (7, "nodeSelector", Pairs),
];
const TEMPLATE: &[Field] = &[METADATA, (2, "spec", Message(POD))];
const DEPLOYMENT: &[Field] = &[(1, "replicas", Number), (2, "selector", Message(SELECTOR)), (3, "template", Message(TEMPLATE))];
const JOB: &[Field] = &[
    (1, "parallelism", Number),
    (2, "completions", Number),
    (4, "selector", Message(SELECTOR)),
    (6, "template", Message(TEMPLATE)),
];
const BUDGET: &[Field] =
    &[(1, "minAvailable", NumberOrText), (2, "selector", Message(SELECTOR)), (3, "maxUnavailable", NumberOrText)];

const RULES: &[Field] = &[
    (1, "verbs", Texts),
    (2, "apiGroups", Texts),
    (3, "resources", Texts),
    (4, "resourceNames", Texts),
    (5, "nonResourceURLs", Texts),
];
const SUBJECTS: &[Field] = &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)];
const ROLE: &[Field] = &[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)];

pub(super) fn fields_of(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "Namespace" | "ServiceAccount" | "SelfSubjectReview" => &[METADATA],
        "ConfigMap" => &[METADATA, (2, "data", Pairs), (3, "binaryData", Blobs)],
        "Secret" => &[METADATA, (2, "data", Blobs), (3, "type", Text), (4, "stringData", Pairs)],
        "Pod" => TEMPLATE,
        "Deployment" => &[METADATA, (2, "spec", Message(DEPLOYMENT))],
        "Job" => &[METADATA, (2, "spec", Message(JOB))],
        "PodDisruptionBudget" => &[METADATA, (2, "spec", Message(BUDGET))],
        "Role" | "ClusterRole" => &[METADATA, (2, "rules", Messages(RULES))],
        "RoleBinding" | "ClusterRoleBinding" => &[METADATA, (2, "subjects", Messages(SUBJECTS)), (3, "roleRef", Message(ROLE))],
        "SelfSubjectAccessReview" => &[METADATA, (2, "spec", Message(ACCESS))],
        "SelfSubjectRulesReview" => &[METADATA, (2, "spec", Message(&[(1, "namespace", Text)]))],
        "TokenRequest" => &[METADATA, (2, "spec", Message(TOKEN))],
        "Eviction" => &[METADATA, (2, "deleteOptions", Message(DELETE))],
        "DeleteOptions" => DELETE,
        _ => return None,
    })
}
