//! What is held beside the faults: by key, the last value counts, an empty one removes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::record::{self, Held};

pub(super) fn keep(held: &mut BTreeMap<String, Bytes>, key: String, value: Bytes) {
    if value.is_empty() {
        held.remove(&key);
    } else {
        held.insert(key, value);
    }
}

/// All that is held, in records of half the largest size.
pub(super) fn checkpoint(held: &BTreeMap<String, Bytes>) -> Vec<Vec<Held>> {
    let mut out = Vec::new();
    let mut bytes = 0;
    for (key, value) in held {
        if out.is_empty() || bytes > record::RECORD_BYTES_MAX / 4 {
            out.push(Vec::new());
            bytes = 0;
        }
        bytes += key.len() + value.len();
        let last: &mut Vec<Held> = out.last_mut().expect("one was just pushed");
        last.push(Held { key: key.clone(), value: value.clone() });
    }
    out
}
