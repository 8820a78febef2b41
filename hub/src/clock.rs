//! The only place that reads the wall clock.
