//! `gpuheal-hub`: everything is in the library.

fn main() {}
