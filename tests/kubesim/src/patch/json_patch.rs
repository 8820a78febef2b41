//! Pure: RFC 6902 as the API server's library applies it. All or nothing; a `test` that differs fails the whole patch.

use serde_json::Value;

/// Most operations one patch may hold, as on a real server.
const OPERATIONS_MAX: usize = 10_000;

/// Why a patch did not go through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatchError {
    /// Not a patch at all: 400.
    #[error("{0}")]
    Malformed(String),
    /// A patch that does not fit the object: 422.
    #[error("{0}")]
    DoesNotApply(String),
}

#[derive(Debug, Clone)]
enum Operation {
    Add(Vec<String>, Value),
    Remove(Vec<String>),
    Replace(Vec<String>, Value),
    Move(Vec<String>, Vec<String>),
    Copy(Vec<String>, Vec<String>),
    Test(Vec<String>, Value),
}

/// A decoded patch.
#[derive(Debug, Clone)]
pub(crate) struct JsonPatch(Vec<Operation>);

impl JsonPatch {
    pub(crate) fn parse(patch: &Value) -> Result<Self, PatchError> {
        let Some(operations) = patch.as_array() else {
            return Err(PatchError::Malformed("json: cannot unmarshal object into Go value of type jsonpatch.Patch".into()));
        };
        if operations.len() > OPERATIONS_MAX {
            return Err(PatchError::Malformed(format!(
                "the allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
                operations.len()
            )));
        }
        operations.iter().map(operation).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn apply(&self, target: &Value) -> Result<Value, PatchError> {
        let mut object = target.clone();
        for operation in &self.0 {
            step(&mut object, operation)?;
        }
        Ok(object)
    }
}

fn operation(item: &Value) -> Result<Operation, PatchError> {
    let path = |field: &str| {
        let text = item.get(field).and_then(Value::as_str);
        text.map(pointer).ok_or_else(|| PatchError::DoesNotApply(format!("operation lacks {field}")))
    };
    let value = || item.get("value").cloned().ok_or_else(|| PatchError::DoesNotApply("operation lacks value".into()));
    match item.get("op").and_then(Value::as_str).unwrap_or_default() {
        "add" => Ok(Operation::Add(path("path")?, value()?)),
        "remove" => Ok(Operation::Remove(path("path")?)),
        "replace" => Ok(Operation::Replace(path("path")?, value()?)),
        "move" => Ok(Operation::Move(path("from")?, path("path")?)),
        "copy" => Ok(Operation::Copy(path("from")?, path("path")?)),
        "test" => Ok(Operation::Test(path("path")?, item.get("value").cloned().unwrap_or(Value::Null))),
        other => Err(PatchError::DoesNotApply(format!("unexpected kind: {other}"))),
    }
}

fn pointer(text: &str) -> Vec<String> {
    text.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect()
}

fn step(object: &mut Value, operation: &Operation) -> Result<(), PatchError> {
    match operation {
        Operation::Add(path, value) => add(object, path, value.clone()),
        Operation::Remove(path) => remove(object, path).map(drop),
        Operation::Replace(path, value) => {
            *find(object, path)? = value.clone();
            Ok(())
        }
        Operation::Move(from, path) => {
            let value = remove(object, from)?;
            add(object, path, value)
        }
        Operation::Copy(from, path) => {
            let value = find(object, from)?.clone();
            add(object, path, value)
        }
        // A missing field passes a test for null, as in the server's library.
        Operation::Test(path, value) => match find(object, path) {
            Ok(found) if found == value => Ok(()),
            Err(_) if value.is_null() => Ok(()),
            Ok(_) | Err(_) => Err(PatchError::DoesNotApply(format!("testing value /{} failed", path.join("/")))),
        },
    }
}

fn missing(path: &[String]) -> PatchError {
    PatchError::DoesNotApply(format!("doc is missing path: \"/{}\"", path.join("/")))
}

fn find<'v>(object: &'v mut Value, path: &[String]) -> Result<&'v mut Value, PatchError> {
    path.iter()
        .try_fold(object, |value, token| match value {
            Value::Object(map) => map.get_mut(token),
            Value::Array(items) => token.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
        .ok_or_else(|| missing(path))
}

fn add(object: &mut Value, path: &[String], value: Value) -> Result<(), PatchError> {
    let Some((last, parent)) = path.split_last() else {
        *object = value;
        return Ok(());
    };
    match find(object, parent)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
            Ok(())
        }
        Value::Array(items) if last == "-" => {
            items.push(value);
            Ok(())
        }
        Value::Array(items) => {
            let index = last.parse::<usize>().ok().filter(|index| *index <= items.len()).ok_or_else(|| missing(path))?;
            items.insert(index, value);
            Ok(())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing(path)),
    }
}

fn remove(object: &mut Value, path: &[String]) -> Result<Value, PatchError> {
    let (last, parent) = path.split_last().ok_or_else(|| missing(path))?;
    match find(object, parent)? {
        Value::Object(map) => map.remove(last).ok_or_else(|| missing(path)),
        Value::Array(items) => {
            let index = last.parse::<usize>().ok().filter(|index| *index < items.len());
            index.map(|index| items.remove(index)).ok_or_else(|| missing(path))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing(path)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(object: Value, patch: Value) -> Result<Value, PatchError> {
        JsonPatch::parse(&patch)?.apply(&object)
    }

    #[test]
    fn every_operation_does_what_the_rfc_says() {
        let object = json!({ "a": 1, "l": [1, 3], "m": { "x/y": "z" } });
        let patch = json!([
            { "op": "test", "path": "/a", "value": 1 },
            { "op": "add", "path": "/l/1", "value": 2 },
            { "op": "add", "path": "/l/-", "value": 4 },
            { "op": "replace", "path": "/m/x~1y", "value": "w" },
            { "op": "copy", "from": "/a", "path": "/b" },
            { "op": "move", "from": "/a", "path": "/c" },
            { "op": "remove", "path": "/l/0" },
        ]);
        assert_eq!(apply(object, patch), Ok(json!({ "b": 1, "c": 1, "l": [2, 3, 4], "m": { "x/y": "w" } })));
    }

    #[test]
    fn a_patch_that_does_not_fit_changes_nothing_and_says_so() {
        let node = || json!({ "spec": {} });
        for patch in [
            json!([{ "op": "test", "path": "/spec/x", "value": 1 }]),
            json!([{ "op": "add", "path": "/spec/taints/-", "value": {} }]),
            json!([{ "op": "remove", "path": "/spec/x" }]),
            json!([{ "op": "replace", "path": "/spec/x", "value": 1 }]),
            json!([{ "op": "fly", "path": "/spec" }]),
        ] {
            assert!(matches!(apply(node(), patch.clone()), Err(PatchError::DoesNotApply(_))), "{patch}");
        }
    }

    #[test]
    fn a_test_for_null_passes_where_nothing_is() {
        assert!(apply(json!({}), json!([{ "op": "test", "path": "/x", "value": null }])).is_ok());
    }

    #[test]
    fn what_is_no_list_is_no_patch() {
        assert!(matches!(apply(json!({}), json!({})), Err(PatchError::Malformed(_))));
    }
}
