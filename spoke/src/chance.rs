//! The one source of jitter: the only place that draws a number. Nothing that decides or signs draws one.

/// A number from 0 to 1; `otherwise` when the machine has no randomness to give, which is no reason to stop.
pub(crate) fn chance(otherwise: f64) -> f64 {
    getrandom::u32().map_or(otherwise, |n| f64::from(n) / f64::from(u32::MAX))
}
