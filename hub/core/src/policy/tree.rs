//! YAML as a tree in which each node knows its place, so that every error can name its line. Nothing here knows what a
//! policy is.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::Problem;

/// A node and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tree {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Whole(i64),
    Real(f64),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(Key, Tree)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) text: String,
}

/// Reads one document.
pub(super) fn read(text: &str) -> Result<Tree, Problem> {
    serde_saphyr::from_str::<Tree>(text).map_err(|error| {
        let place = error.location().map_or(Place { line: 1, column: 1 }, |at| place(&at));
        Problem::new(place, "", plain(&error))
    })
}

/// The error's words without the picture of the text around it.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("not YAML");
    gpuheal_proto::bytes_text::clip(line, 300).to_owned()
}

fn place(at: &serde_saphyr::Location) -> Place {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Place { line: number(at.line()), column: number(at.column()) }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { place: place(&spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(Self { place: place(&spanned.referenced), text: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Whole(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or_else(|_| Value::Text(number.to_string()), Value::Whole))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Text(number.to_string()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Text(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Real(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = access.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = access.next_entry()? {
            map.push(entry);
        }
        Ok(Value::Map(map))
    }
}
