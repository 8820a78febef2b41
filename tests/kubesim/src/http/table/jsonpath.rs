//! Pure: the JSONPath that printer columns use: `.a.b`, `['a.b']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

use serde_json::Value;

/// The first match.
pub(super) fn first<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    let mut at = vec![object];
    let mut rest = path.trim().trim_start_matches('$');
    while !rest.is_empty() && !at.is_empty() {
        let (step, tail) = take(rest)?;
        at = at.into_iter().flat_map(|value| follow(value, step)).collect();
        rest = tail;
    }
    at.first().copied()
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Field(&'p str),
    Index(usize),
    All,
    Where(&'p str, &'p str),
}

fn take(path: &str) -> Option<(Step<'_>, &str)> {
    if let Some(inner) = path.strip_prefix("[?(@.") {
        let (filter, tail) = inner.split_once(")]")?;
        let (field, value) = filter.split_once("==")?;
        return Some((Step::Where(field.trim(), value.trim().trim_matches(['"', '\''])), tail));
    }
    if let Some(inner) = path.strip_prefix('[') {
        let (inside, tail) = inner.split_once(']')?;
        let step = match inside {
            "*" => Step::All,
            quoted if quoted.starts_with(['\'', '"']) => Step::Field(quoted.trim_matches(['\'', '"'])),
            number => Step::Index(number.parse().ok()?),
        };
        return Some((step, tail));
    }
    let field = path.strip_prefix('.').unwrap_or(path);
    let mut end = 0;
    let bytes = field.as_bytes();
    while end < bytes.len() && !matches!(bytes[end], b'.' | b'[') {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    let end = end.min(field.len());
    Some((Step::Field(&field[..end]), &field[end..]))
}

fn follow<'v>(value: &'v Value, step: Step<'_>) -> Vec<&'v Value> {
    match step {
        Step::Field(name) => value.get(name.replace('\\', "")).into_iter().collect(),
        Step::Index(index) => value.get(index).into_iter().collect(),
        Step::All => value.as_array().into_iter().flatten().collect(),
        Step::Where(field, wanted) => {
            value.as_array().into_iter().flatten().filter(|item| item.get(field).and_then(Value::as_str) == Some(wanted)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printer_columns_find_their_value() {
        let object = json!({ "metadata": { "labels": { "a.b/c": "x" } }, "status": { "conditions": [{ "type": "A", "status": "no" }, { "type": "Done", "status": "yes" }] } });
        for (path, value) in [
            (".status.conditions[?(@.type==\"Done\")].status", "yes"),
            (".status.conditions[1].type", "Done"),
            (".status.conditions[*].type", "A"),
            (".metadata.labels['a.b/c']", "x"),
            (".metadata.labels.a\\.b/c", "x"),
        ] {
            assert_eq!(first(&object, path), Some(&json!(value)), "{path}");
        }
        assert_eq!(first(&object, ".spec.none"), None);
    }
}
