//! Fail points of hub and spoke: places with a name at which a test build dies when it is told to (docs/link.md, *Failure table*).
//! In every other build `dies_at!` is nothing: without the feature `armed` there is no function to call.

/// Dies here, if this build may and was told to.
#[cfg(feature = "armed")]
#[macro_export]
macro_rules! dies_at {
    ($point:literal) => {
        $crate::at($point);
    };
}

/// Dies here, if this build may and was told to. This one may not.
#[cfg(not(feature = "armed"))]
#[macro_export]
macro_rules! dies_at {
    ($point:literal) => {};
}

/// Ends the program where it is when `FAILPOINTS` names this point, as a crash would: nothing is unwound, flushed, closed or
/// given back.
#[cfg(feature = "armed")]
#[expect(clippy::disallowed_methods, reason = "no build that ships has this, nor an argument for it")]
pub fn at(point: &str) {
    if std::env::var("FAILPOINTS").is_ok_and(|named| named == point) {
        eprintln!("dies at {point}");
        std::process::abort();
    }
}
