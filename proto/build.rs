//! Compiles the .proto files with protox, so that no protoc is needed, and embeds their descriptors for reflection.
//! Service stubs are put behind the feature `grpc`: the pure cores see messages alone.

use std::{env, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 5] = [
    "gpuheal/link/v1/fault.proto",
    "gpuheal/link/v1/state.proto",
    "gpuheal/link/v1/command.proto",
    "gpuheal/link/v1/link.proto",
    "gpuheal/fleet/v1/fleet.proto",
];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by its environment where to write")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=gpuheal");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .btree_map(".")
        .bytes(".gpuheal.link.v1")
        .type_attribute(".gpuheal.fleet.v1", "#[derive(serde::Serialize)]")
        .compile_fds(descriptors)?;
    Ok(())
}
