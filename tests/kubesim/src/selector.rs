//! Label and field selectors, as queries and as objects carry them. Pure.

mod fields;
mod labels;

pub(crate) use fields::FieldSelector;
pub(crate) use labels::LabelSelector;
