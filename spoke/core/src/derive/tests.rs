//! What each source's oddities must and must not lead to, one claim each.

mod alerts;
mod clock;
mod exporter;
mod kernel;
mod memory;
mod node;
mod places;
mod source;
mod taken_up;
mod thermal;
