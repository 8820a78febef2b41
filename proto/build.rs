//! Compiles the .proto files with protox, so that no protoc is needed, and embeds their descriptors for reflection.
//! Service stubs are put behind the feature `grpc`: the pure cores see messages alone.

use std::{env, path::PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

const LINK: [&str; 4] =
    ["gpuheal/link/v1/fault.proto", "gpuheal/link/v1/state.proto", "gpuheal/link/v1/command.proto", "gpuheal/link/v1/link.proto"];
const FLEET: [&str; 1] = ["gpuheal/fleet/v1/fleet.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by its environment where to write")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=gpuheal");
    let (link, fleet) = (protox::compile(LINK, ["."])?, protox::compile(FLEET, ["."])?);
    let all = FileDescriptorSet { file: link.file.iter().chain(&fleet.file).cloned().collect() };
    let out = PathBuf::from(env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), all.encode_to_vec())?;
    let stubs = || {
        tonic_prost_build::configure()
            .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
            .btree_map(".")
    };
    // Whoever speaks the link is a machine, and many: its messages are looked at before they are decoded.
    stubs().bytes(".gpuheal.link.v1").codec_path("crate::codec::Codec").compile_fds(link)?;
    stubs().type_attribute(".gpuheal.fleet.v1", "#[derive(serde::Serialize)]").compile_fds(fleet)?;
    Ok(())
}
