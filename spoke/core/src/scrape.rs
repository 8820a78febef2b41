//! Stage `scrape`, the pure part: raw text of every source in, typed signals out.
//!
//! Nothing here decides: a reading says what a source said, and `derive` makes faults of it. Every parser is tolerant
//! by line or by item (one bad row never costs the page) and counts what it refused, with the place and the reason.

pub mod alias;
pub mod allocatable;
pub mod conditions;
pub mod dcgm;
pub mod exposition;
pub mod kernel;
pub mod metric;
pub mod slot;
pub mod webhook;
