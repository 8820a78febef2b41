//! The patch formats of the API: JSON patch, merge patch, strategic merge patch. Pure.

mod json_patch;
mod strategic;

use serde_json::Value;

pub(crate) use json_patch::{JsonPatch, PatchError};
pub(crate) use strategic::{merge_key, strategic_merge};

/// RFC 7386: null removes, maps merge, all else replaces.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patch_removes_by_null_and_replaces_lists_whole() {
        let mut node = json!({ "a": { "b": 1, "c": 2 }, "l": [1, 2] });
        merge(&mut node, &json!({ "a": { "b": null, "d": { "e": null } }, "l": [3] }));
        assert_eq!(node, json!({ "a": { "c": 2, "d": {} }, "l": [3] }));
    }
}
