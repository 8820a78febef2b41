//! Pure: sets of field paths, and their `FieldsV1` form: `f:` a field, `k:` an item of a keyed list, `v:` a value of a set.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::patch::merge_key;

pub(super) type Path = Vec<String>;

/// What the server writes itself, and nobody owns.
const UNOWNED: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// Every leaf of an object, by path.
#[derive(Debug, Default)]
pub(super) struct Leaves(BTreeMap<Path, Value>);

impl Leaves {
    pub(super) fn of(object: &Value) -> Self {
        let mut leaves = Self::default();
        for (field, value) in object.as_object().into_iter().flatten() {
            match field.as_str() {
                "apiVersion" | "kind" => {}
                "metadata" => {
                    for (field, value) in
                        value.as_object().into_iter().flatten().filter(|(field, _)| !UNOWNED.contains(&field.as_str()))
                    {
                        leaves.walk(vec!["f:metadata".into(), format!("f:{field}")], "metadata", field, value);
                    }
                }
                _ => leaves.walk(vec![format!("f:{field}")], "", field, value),
            }
        }
        leaves
    }

    fn walk(&mut self, path: Path, parent: &str, field: &str, value: &Value) {
        let child = |element: String| path.iter().cloned().chain([element]).collect::<Path>();
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (name, value) in map {
                    self.walk(child(format!("f:{name}")), field, name, value);
                }
            }
            Value::Array(items) if field == "finalizers" => {
                for item in items {
                    self.0.insert(child(format!("v:{item}")), item.clone());
                }
            }
            Value::Array(items) => match merge_key(parent, field, items).filter(|_| !items.is_empty()) {
                Some(key) => {
                    for item in items {
                        let mut at = child(format!("k:{}", json!({ key: item[key] })));
                        self.walk(at.clone(), field, "", item);
                        at.push(".".into());
                        self.0.insert(at, Value::Null);
                    }
                }
                None => {
                    self.0.insert(path, value.clone());
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                self.0.insert(path, value.clone());
            }
        }
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Value> {
        self.0.get(path)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &Value)> {
        self.0.iter()
    }

    pub(super) fn paths(&self) -> BTreeSet<Path> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn differing_from(&self, other: &Self) -> BTreeSet<Path> {
        self.0.iter().filter(|(path, value)| other.0.get(*path) != Some(value)).map(|(path, _)| path.clone()).collect()
    }

    pub(super) fn missing_in(&self, other: &Self) -> BTreeSet<Path> {
        self.0.keys().filter(|path| !other.0.contains_key(*path)).cloned().collect()
    }
}

/// The fields of one manager.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet(BTreeSet<Path>);

impl FieldSet {
    pub(super) fn decode(fields: &Value) -> Self {
        let mut set = Self::default();
        set.collect(&mut Vec::new(), fields);
        set
    }

    fn collect(&mut self, path: &mut Path, fields: &Value) {
        let Some(map) = fields.as_object().filter(|map| !map.is_empty()) else {
            if !path.is_empty() {
                self.0.insert(path.clone());
            }
            return;
        };
        for (element, inner) in map {
            path.push(element.clone());
            self.collect(path, inner);
            path.pop();
        }
    }

    pub(super) fn encode(&self) -> Value {
        let mut root = Map::new();
        for path in &self.0 {
            let mut at = &mut root;
            for element in path {
                let slot = at.entry(element.clone()).or_insert_with(|| json!({}));
                at = slot.as_object_mut().expect("only maps are inserted here");
            }
        }
        Value::Object(root)
    }

    pub(super) fn from_paths(paths: BTreeSet<Path>) -> Self {
        Self(paths)
    }

    pub(super) fn add(&mut self, paths: &BTreeSet<Path>) {
        self.0.extend(paths.iter().cloned());
    }

    pub(super) fn remove(&mut self, paths: &BTreeSet<Path>) {
        self.0.retain(|path| !paths.contains(path));
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.0.contains(path)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter()
    }
}

/// A path as people read it: `.spec.taints`, `.status.conditions[type="Ready"]`.
pub(super) fn shown(path: &Path) -> String {
    path.iter()
        .filter(|element| *element != ".")
        .map(|element| match element.split_at(2) {
            ("f:", name) => format!(".{name}"),
            (_, key) => format!("[{}]", key.trim_matches(['{', '}']).replace(':', "=")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_set_survives_its_encoding() {
        let object = json!({
            "metadata": { "name": "n", "labels": { "a": "b" }, "finalizers": ["x"] },
            "spec": { "taints": [{ "key": "k" }], "unschedulable": true }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        let set = FieldSet::from_paths(Leaves::of(&object).paths());
        assert_eq!(FieldSet::decode(&set.encode()), set);
        assert_eq!(
            set.encode(),
            json!({
                "f:metadata": { "f:labels": { "f:a": {} }, "f:finalizers": { "v:\"x\"": {} } },
                "f:spec": { "f:taints": {}, "f:unschedulable": {} },
                "f:status": { "f:conditions": { "k:{\"type\":\"Ready\"}": { ".": {}, "f:type": {}, "f:status": {} } } },
            })
        );
    }
}
