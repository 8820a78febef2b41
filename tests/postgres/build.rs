//! Migrations are embedded: a change of theirs must rebuild the crate.

fn main() {
    println!("cargo::rerun-if-changed=../../hub/migrations");
}
