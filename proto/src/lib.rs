//! The words that hub and spoke share: ids, time, faults, commands, envelopes, names, limits, an error's causes; and the protocol's
//! generated messages. No IO, no clock, no randomness. Generated types stop at the edge (`TryFrom`), logic sees ours.

pub mod bytes_text;
pub mod chain;
#[cfg(feature = "grpc")]
pub mod codec;
pub mod command;
pub mod envelope;
pub mod fault;
pub mod frame;
pub mod ids;
pub mod kubernetes;
pub mod limits;
pub mod state_digest;
pub mod time;
pub mod words;
pub mod workload;

/// Generated from `gpuheal/link/v1/*.proto`: the stream between hub and spoke.
pub mod link {
    /// Version 1 of the link.
    #[cfg_attr(feature = "grpc", expect(clippy::allow_attributes, reason = "tonic writes them into its stubs"))]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/gpuheal.link.v1.rs"));
    }
}

/// Generated from `gpuheal/fleet/v1/*.proto`: the API for people and tools.
pub mod fleet {
    /// Version 1 of the fleet API.
    #[cfg_attr(feature = "grpc", expect(clippy::allow_attributes, reason = "tonic writes them into its stubs"))]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/gpuheal.fleet.v1.rs"));
    }
}

/// The encoded `FileDescriptorSet` of every .proto file here, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
