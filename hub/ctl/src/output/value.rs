//! Results for scripts: JSON and YAML that carry every character of the data, those that cannot be seen escaped as the
//! format does it, since people look at these too.

use std::io;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;

use crate::visible;

pub(super) fn json(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    Ok(visible::json(&text) + "\n")
}

pub(super) fn yaml(value: &impl Serialize) -> io::Result<String> {
    let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    if !text.chars().any(visible::steers) {
        return Ok(text);
    }
    let tree = serde_json::to_value(value).map_err(io::Error::other)?;
    let text = serde_saphyr::to_string(&Quoted(&tree)).map_err(io::Error::other)?;
    Ok(visible::yaml(&text))
}

/// Strings that hold what must be escaped are in double quotes: only there can it be.
struct Quoted<'a>(&'a Value);

impl Serialize for Quoted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) if text.chars().any(visible::steers) => DoubleQuoted(text).serialize(serializer),
            Value::Array(items) => serializer.collect_seq(items.iter().map(Quoted)),
            Value::Object(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, Quoted(value)))),
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_carry_what_cannot_be_seen_and_show_it() {
        let texts = [
            "plain",
            "a\u{202e}b",
            "\u{2066}x\u{2069}",
            "c\u{9b}31m\x1b[0m\x7f",
            "tag\u{e0041}",
            "\u{feff}\u{200b}'q' \"d\" \\n",
            "two\nlines\t",
        ];
        let value = serde_json::json!({"items": texts, "n": 1, "on": true, "name": "x\u{2028}y"});
        let (as_json, as_yaml) = (json(&value).unwrap(), yaml(&value).unwrap());
        for text in [&as_json, &as_yaml] {
            assert!(!text.chars().any(visible::steers), "{text:?}");
        }
        assert_eq!(serde_json::from_str::<Value>(&as_json).unwrap(), value, "{as_json}");
        assert_eq!(serde_saphyr::from_str::<Value>(&as_yaml).unwrap(), value, "{as_yaml}");
    }
}
