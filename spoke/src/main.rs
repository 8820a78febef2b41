//! The spoke's program: reads its arguments, runs, and tells by its exit code how it went.

fn main() {}
