//! Pure: from a CustomResourceDefinition to the resources it declares.
//! All served versions share one storage, and only apiVersion differs between them (conversion strategy `None`).

use std::sync::Arc;

use serde_json::Value;

use super::{ResourceKind, View};
use crate::obj;

/// What a custom version says about itself.
#[derive(Debug, Clone)]
pub(crate) struct CustomSpec {
    pub(crate) schema: Option<Value>,
    pub(crate) columns: Vec<Value>,
    pub(crate) scale: Option<Value>,
    /// Fields that a field selector may name.
    pub(crate) selectable: Vec<String>,
}

pub(super) fn storage(definition: &Value) -> String {
    format!("{}.{}", obj::text(definition, "/spec/names/plural"), obj::text(definition, "/spec/group"))
}

pub(super) fn kinds(definition: &Value) -> Vec<ResourceKind> {
    let versions = obj::list(definition, "/spec/versions").iter();
    versions.filter(|version| obj::flag(version, "/served")).map(|version| of_version(definition, version)).collect()
}

fn of_version(definition: &Value, version: &Value) -> ResourceKind {
    let kind = obj::text(definition, "/spec/names/kind").to_owned();
    let or = |pointer: &str, fallback: String| match obj::text(definition, pointer) {
        "" => fallback,
        given => given.to_owned(),
    };
    let strings = |pointer: &str| obj::list(definition, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let declared = ["status", "scale"].into_iter().filter(|name| version.pointer(&format!("/subresources/{name}")).is_some());
    ResourceKind {
        group: obj::text(definition, "/spec/group").to_owned(),
        version: obj::text(version, "/name").to_owned(),
        plural: obj::text(definition, "/spec/names/plural").to_owned(),
        singular: or("/spec/names/singular", kind.to_lowercase()),
        list_kind: or("/spec/names/listKind", format!("{kind}List")),
        namespaced: obj::text(definition, "/spec/scope") == "Namespaced",
        short_names: strings("/spec/names/shortNames"),
        categories: strings("/spec/names/categories"),
        subresources: declared.map(str::to_owned).collect(),
        generation: true,
        unconditional_update: false,
        custom: Some(Arc::new(CustomSpec {
            schema: version.pointer("/schema/openAPIV3Schema").cloned(),
            columns: obj::list(version, "/additionalPrinterColumns").to_vec(),
            scale: version.pointer("/subresources/scale").cloned(),
            selectable: obj::list(version, "/selectableFields")
                .iter()
                .map(|field| obj::text(field, "/jsonPath").to_owned())
                .collect(),
        })),
        storage: Arc::from(storage(definition)),
        view: View::Same,
        prefix: String::new(),
        kind,
    }
}
