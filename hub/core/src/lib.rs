//! What the hub decides, and why: policy, classification, corroboration, incidents, budgets, cooldowns, the audit chain.
//! Pure: no IO, no clock, no chance; time is an argument and ids come from content. The hub's stages call it.

pub mod admit;
pub mod adopt;
pub mod audit;
pub mod budget;
pub mod catalogue;
pub mod classify;
pub mod cooldown;
pub mod corroborate;
pub mod decide;
mod gpu;
pub mod incident;
pub mod policy;
pub mod snapshot;

#[cfg(test)]
mod story;
