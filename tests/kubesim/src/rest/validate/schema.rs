//! Pure: custom resources against their OpenAPI v3 schema: types, required, enums, bounds; unknown fields pruned, defaults
//! filled in.

use serde_json::Value;

use crate::obj;
use crate::status::Cause;

/// Takes away what the schema does not know; gives the paths of what went.
pub(super) fn prune(schema: &Value, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_at(schema, object, "", true, &mut unknown);
    unknown
}

fn prune_at(schema: &Value, value: &mut Value, path: &str, root: bool, unknown: &mut Vec<String>) {
    if obj::flag(schema, "/x-kubernetes-preserve-unknown-fields") || schema["additionalProperties"].as_bool() == Some(true) {
        return;
    }
    match value {
        Value::Object(map) if schema["additionalProperties"].is_object() => {
            for (key, child) in map.iter_mut() {
                prune_at(&schema["additionalProperties"], child, &join(path, key), false, unknown);
            }
        }
        Value::Object(map) => {
            let known =
                |key: &str| (root && matches!(key, "apiVersion" | "kind" | "metadata")) || schema["properties"].get(key).is_some();
            let strange: Vec<String> = map.keys().filter(|key| !known(key)).cloned().collect();
            for key in strange {
                map.remove(&key);
                unknown.push(join(path, &key));
            }
            for (key, child) in map.iter_mut().filter(|(key, _)| !(root && *key == "metadata")) {
                if let Some(inner) = schema["properties"].get(key.as_str()) {
                    prune_at(inner, child, &join(path, key), false, unknown);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune_at(&schema["items"], item, &format!("{path}[{index}]"), false, unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Puts in what the schema gives to a field that is absent, or null where null is not allowed.
pub(super) fn fill(schema: &Value, object: &mut Value) {
    fill_at(schema, object, true);
}

fn fill_at(schema: &Value, value: &mut Value, root: bool) {
    match value {
        Value::Object(map) => {
            for (key, inner) in
                schema["properties"].as_object().into_iter().flatten().filter(|(key, _)| !(root && *key == "metadata"))
            {
                let absent = map.get(key).is_none_or(|given| given.is_null() && !obj::flag(inner, "/nullable"));
                if let Some(default) = inner.get("default").filter(|_| absent) {
                    map.insert(key.clone(), default.clone());
                }
                if let Some(child) = map.get_mut(key) {
                    fill_at(inner, child, false);
                }
            }
            if schema["additionalProperties"].is_object() {
                map.values_mut().for_each(|child| fill_at(&schema["additionalProperties"], child, false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_at(&schema["items"], item, false)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

pub(super) fn check(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if value.is_null() && (obj::flag(schema, "/nullable") || path.is_empty()) {
        return;
    }
    if let Some(why) = type_differs(schema, value) {
        causes.push(Cause::wrong_type(path, format!("\"{}\"", type_name(value)), &why));
        return;
    }
    bounds(schema, value, path, causes);
    match value {
        Value::Object(map) => {
            for field in obj::list(schema, "/required").iter().filter_map(Value::as_str) {
                if !map.contains_key(field) {
                    causes.push(Cause::required(join(path, field), ""));
                }
            }
            for (key, child) in map {
                let inner =
                    schema["properties"].get(key).or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()));
                if let Some(inner) = inner.filter(|_| !(path.is_empty() && key == "metadata")) {
                    check(inner, child, &join(path, key), causes);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{index}]"), causes);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn type_differs(schema: &Value, value: &Value) -> Option<String> {
    if obj::flag(schema, "/x-kubernetes-int-or-string") {
        return (!value.is_string() && !value.is_i64()).then(|| "must be integer or string".to_owned());
    }
    let wanted = obj::text(schema, "/type");
    let fits = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    };
    (!fits).then(|| format!("must be of type {wanted}: \"{}\"", type_name(value)))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn bounds(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let allowed = obj::list(schema, "/enum");
    if !allowed.is_empty() && !allowed.contains(value) {
        let supported: Vec<String> = allowed.iter().map(Value::to_string).collect();
        causes.push(Cause::unsupported(path, value, &supported.join(", ")));
    }
    let number = value.as_f64();
    if let (Some(number), Some(least)) = (number, schema["minimum"].as_f64())
        && number < least
    {
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be greater than or equal to {least}")));
    }
    if let (Some(number), Some(most)) = (number, schema["maximum"].as_f64())
        && number > most
    {
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be less than or equal to {most}")));
    }
    let length = value.as_str().map(|text| text.chars().count() as u64);
    if let (Some(length), Some(most)) = (length, schema["maxLength"].as_u64())
        && length > most
    {
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be at most {most} chars long")));
    }
    if let (Some(length), Some(least)) = (length, schema["minLength"].as_u64())
        && length < least
    {
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be at least {least} chars long")));
    }
    let items = value.as_array().map(|items| items.len() as u64);
    if let (Some(items), Some(most)) = (items, schema["maxItems"].as_u64())
        && items > most
    {
        causes.push(Cause::invalid(path, items, &format!("{path} in body should have at most {most} items")));
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
