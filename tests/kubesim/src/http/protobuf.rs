//! Pure: the protobuf bodies that kubectl sends although it reads JSON. Which kinds and fields is said in `fields.rs`;
//! what is not listed there is skipped.

mod fields;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use fields::{Field, Shape, fields_of};

const MAGIC: &[u8] = b"k8s\0";

/// The object, if its kind is one of the few.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let envelope = split(body.strip_prefix(MAGIC)?)?;
    let part = |wanted: u64| envelope.iter().find_map(|(number, wire)| if *number == wanted { wire.bytes() } else { None });
    let types = split(part(1)?)?;
    let text = |wanted: u64| {
        types.iter().find_map(|(number, wire)| if *number == wanted { wire.text() } else { None }).unwrap_or_default()
    };
    let (api_version, kind) = (text(1), text(2));
    let mut object = message(part(2).unwrap_or_default(), fields_of(&kind)?)?;
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("kind".into(), json!(kind));
    Some(Value::Object(object))
}

enum Wire<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl<'b> Wire<'b> {
    fn bytes(&self) -> Option<&'b [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }

    fn text(&self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

fn message(bytes: &[u8], fields: &[Field]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for (number, wire) in split(bytes)? {
        let Some((_, name, shape)) = fields.iter().find(|(known, ..)| *known == number) else { continue };
        match (shape, &wire) {
            (Shape::Text, _) => {
                if let Some(text) = wire.text().filter(|text| !text.is_empty()) {
                    object.insert((*name).into(), json!(text));
                }
            }
            (Shape::Number, Wire::Number(number)) => {
                object.insert((*name).into(), json!(number.cast_signed()));
            }
            (Shape::Texts, _) => {
                let list = object.entry(*name).or_insert_with(|| json!([]));
                if let (Some(list), Some(text)) = (list.as_array_mut(), wire.text()) {
                    list.push(json!(text));
                }
            }
            (Shape::Pairs | Shape::Blobs, Wire::Bytes(pair)) => {
                let pair = split(pair)?;
                let of = |wanted: u64| {
                    pair.iter().find_map(|(number, wire)| if *number == wanted { wire.bytes() } else { None }).unwrap_or_default()
                };
                let value = match shape {
                    Shape::Blobs => STANDARD.encode(of(2)),
                    _ => String::from_utf8_lossy(of(2)).into_owned(),
                };
                let map = object.entry(*name).or_insert_with(|| json!({}));
                if let Some(map) = map.as_object_mut() {
                    map.insert(String::from_utf8_lossy(of(1)).into_owned(), json!(value));
                }
            }
            (Shape::Message(inner), Wire::Bytes(bytes)) => {
                object.insert((*name).into(), Value::Object(message(bytes, inner)?));
            }
            (Shape::Messages(inner), Wire::Bytes(bytes)) => {
                let list = object.entry(*name).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(Value::Object(message(bytes, inner)?));
                }
            }
            (Shape::NumberOrText, Wire::Bytes(bytes)) => {
                let either = message(bytes, &[(1, "type", Shape::Number), (2, "number", Shape::Number), (3, "text", Shape::Text)])?;
                let word = if either.get("type") == Some(&json!(1)) { "text" } else { "number" };
                object.insert((*name).into(), either.get(word).cloned().unwrap_or_else(|| json!(0)));
            }
            (Shape::Number, Wire::Bytes(_))
            | (Shape::Pairs | Shape::Blobs | Shape::NumberOrText | Shape::Message(_) | Shape::Messages(_), Wire::Number(_)) => {
                return None;
            }
        }
    }
    Some(object)
}

/// Fields by number, in the order they came.
fn split(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let wire = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Wire::Bytes(value)
            }
            _ => return None,
        };
        fields.push((tag >> 3, wire));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_read() {
        let mut body = MAGIC.to_vec();
        body.extend([0x0a, 0x0f, 0x0a, 0x02]);
        body.extend(b"v1");
        body.extend([0x12, 0x09]);
        body.extend(b"Namespace");
        body.extend([0x12, 0x06, 0x0a, 0x04, 0x0a, 0x02]);
        body.extend(b"ml");
        assert_eq!(decode(&body), Some(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "ml" } })));
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_not_read() {
        assert_eq!(decode(b"k8s\0\x0a\xff"), None);
        assert_eq!(decode(b"{}"), None);
    }
}
