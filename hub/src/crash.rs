//! Fail points: places with a name at which a test build dies when `FAILPOINTS` says so (docs/link.md, *Failure table*).
//! In every other build `dies_at!` is nothing: without the feature `fail-points` there is not even a crate to ask.

/// Dies here, if this build may and was told to.
macro_rules! dies_at {
    ($point:literal) => {
        #[cfg(feature = "fail-points")]
        ::fail::fail_point!($point);
    };
}

/// Arms the points that `FAILPOINTS` names, each as `point=panic`, until the program ends. A panic then ends it where it
/// is, as a crash would: nothing is unwound, flushed, closed or given back.
///
/// # Panics
/// When `FAILPOINTS` cannot be read.
#[cfg(feature = "fail-points")]
pub fn arm() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    std::mem::forget(fail::FailScenario::setup());
}
