//! A HealAction's name: its command's id in 26 letters instead of 36, so that a line of `kubectl get` has room for what was done. One
//! id has one name, and no other id has the same.

use std::borrow::Cow;

use gpuheal_proto::ids::CommandId;

/// What five bits are: base32 with the digits first, so that names sort as their ids do, by time. Kubernetes takes all of these in a name.
const LETTERS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// 128 bits, five to a letter.
const NAME_LETTERS: u32 = 26;

/// The name of a command's HealAction. What is no command's id is its own name.
#[must_use]
pub fn name_of(id: &str) -> Cow<'_, str> {
    let Ok(command) = CommandId::parse(id) else { return Cow::Borrowed(id) };
    let bits = command.uuid().as_u128();
    let letter = |place: u32| char::from(LETTERS[(bits >> (5 * place) & 31) as usize]);
    Cow::Owned((0..NAME_LETTERS).rev().map(letter).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(bits: u128) -> String {
        CommandId::from_uuid(uuid::Uuid::from_u128(bits)).to_string()
    }

    #[test]
    fn a_name_is_short_and_one_that_kubernetes_takes() {
        assert_eq!(name_of("0195e0a0-7c1b-7000-8000-0000000000ff"), "01inga0v0re00800000000007v");
        assert_eq!(name_of(&id(u128::MAX)), "7vvvvvvvvvvvvvvvvvvvvvvvvv");
        assert_eq!(name_of(&id(0)), "0".repeat(26));
        assert_eq!(name_of("probe"), "probe");
    }

    proptest! {
        #[test]
        fn two_ids_have_two_names_in_the_same_order(one: u128, other: u128) {
            let (a, b) = (id(one), id(other));
            prop_assert_eq!(name_of(&a).cmp(&name_of(&b)), one.cmp(&other));
            prop_assert!(name_of(&a).len() == 26 && name_of(&a).bytes().all(|letter| LETTERS.contains(&letter)));
        }
    }
}
