//! Pages: how many items, and from where on. A token says after which item its page begins; it is opaque to callers and
//! worth nothing to another list.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use tonic::Status;
use uuid::Uuid;

use crate::store::fleet::Before;

/// Items when nobody says how many.
const DEFAULT: u32 = 100;
/// Most items of a page: at 1 KiB each a page is 1 MiB.
const MAX: u32 = 1000;
/// A token's length: a cluster's id and a node's name, with room.
const TOKEN_BYTES_MAX: usize = 1024;

/// How many items a page has.
pub(super) fn size(asked: u32) -> u32 {
    if asked == 0 { DEFAULT } else { asked.min(MAX) }
}

/// A token of list `kind` whose page begins after the item with this key.
pub(super) fn token(kind: &str, key: &[&str]) -> String {
    let parts: Vec<&str> = std::iter::once(kind).chain(key.iter().copied()).collect();
    URL_SAFE_NO_PAD.encode(parts.join("\n"))
}

/// The key in a token of list `kind`; `None` for the first page.
pub(super) fn key<const N: usize>(kind: &str, token: &str) -> Result<Option<[String; N]>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let refused = || Status::invalid_argument("page_token is not one that this list gave out; begin again without it");
    if token.len() > TOKEN_BYTES_MAX {
        return Err(refused());
    }
    let text = URL_SAFE_NO_PAD.decode(token).map_err(|_| refused())?;
    let text = String::from_utf8(text).ok().filter(|text| !text.contains('\0')).ok_or_else(refused)?;
    let mut parts = text.split('\n').map(str::to_owned);
    if parts.next().as_deref() != Some(kind) {
        return Err(refused());
    }
    parts.collect::<Vec<_>>().try_into().map(Some).map_err(|_| refused())
}

/// A token of a list that is newest first.
pub(super) fn newest_token(kind: &str, at: DateTime<Utc>, id: Uuid) -> String {
    token(kind, &[&at.timestamp_micros().to_string(), &id.to_string()])
}

/// The place in a list that is newest first.
pub(super) fn newest_key(kind: &str, token: &str) -> Result<Option<Before>, Status> {
    let Some([at, id]) = key(kind, token)? else { return Ok(None) };
    let at = at.parse().ok().and_then(DateTime::from_timestamp_micros);
    match (at, Uuid::try_parse(&id)) {
        (Some(at), Ok(id)) => Ok(Some(Before { at, id })),
        _ => Err(Status::invalid_argument("page_token is damaged; begin again without it")),
    }
}

/// Cuts a list that was asked for one item more than the page has; true when there was one more.
pub(super) fn cut<T>(items: &mut Vec<T>, size: u32) -> bool {
    let more = items.len() > size as usize;
    items.truncate(size as usize);
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_the_key_that_it_was_made_of() {
        let token = token("nodes", &["alpha", "node-7"]);
        assert_eq!(key::<2>("nodes", &token).unwrap(), Some(["alpha".to_owned(), "node-7".to_owned()]));
        assert_eq!(key::<2>("nodes", "").unwrap(), None);
        let at = DateTime::from_timestamp_micros(1_764_442_800_123_456).unwrap();
        let before = newest_key("incidents", &newest_token("incidents", at, Uuid::nil())).unwrap().unwrap();
        assert_eq!((before.at, before.id), (at, Uuid::nil()));
    }

    #[test]
    fn a_token_of_another_list_or_of_nobody_is_refused() {
        let foreign = token("clusters", &["alpha"]);
        for bad in [foreign.as_str(), "!!!", "AAAA", &"A".repeat(2000), &token("nodes", &["one"]), &token("nodes", &["a", "\0"])] {
            let refused = key::<2>("nodes", bad).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn a_page_is_never_larger_than_allowed() {
        assert_eq!((size(0), size(7), size(u32::MAX)), (DEFAULT, 7, MAX));
        let mut items = vec![1, 2, 3];
        assert!(cut(&mut items, 2));
        assert_eq!(items, [1, 2]);
        assert!(!cut(&mut items, 2));
    }
}
