//! A small map in one piece of memory. A cluster has 40,000 GPUs with five maps each: a tree of each would be five times what is
//! in it. Written as any other map.

use std::{borrow::Borrow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

/// Keys in order, each with its value. For a dozen of them, not for thousands: putting one in moves those behind it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sorted<K, V>(Vec<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> Sorted<K, V> {
    fn at<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.at(key).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.at(key).is_ok()
    }

    /// Puts a value in; gives back the one before.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.at(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.make_room(at, key, value);
                None
            }
        }
    }

    /// The value of the key, put in if there was none.
    pub(super) fn get_or_insert(&mut self, key: K, value: V) -> &mut V {
        let at = match self.at(&key) {
            Ok(at) => at,
            Err(at) => {
                self.make_room(at, key, value);
                at
            }
        };
        &mut self.0[at].1
    }

    /// Room for this one alone: what is in such a map settles soon, and would else leave half of it empty.
    fn make_room(&mut self, at: usize, key: K, value: V) {
        self.0.reserve_exact(1);
        self.0.insert(at, (key, value));
    }
}

impl<K, V> Sorted<K, V> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Empties it, and keeps its room.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Serialize, V: Serialize> Serialize for Sorted<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Sorted<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = Sorted<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Sorted::default();
                while let Some((key, value)) = map.next_entry()? {
                    all.insert(key, value);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_and_is_written_as_any_other_map(entries in prop::collection::vec((0_u16..20, any::<u32>()), 0..40)) {
            let (mut tree, mut sorted) = (BTreeMap::new(), Sorted::default());
            for (key, value) in entries {
                prop_assert_eq!(tree.insert(key, value), sorted.insert(key, value));
                prop_assert_eq!(sorted.get(&key), Some(&value));
            }
            prop_assert!(tree.iter().eq(sorted.iter()) && tree.len() == sorted.len());
            prop_assert_eq!(sorted.get(&20), None);
            let text = serde_json::to_string(&sorted).unwrap();
            prop_assert_eq!(&text, &serde_json::to_string(&tree).unwrap());
            prop_assert_eq!(serde_json::from_str::<Sorted<u16, u32>>(&text).unwrap(), sorted);
        }
    }
}
