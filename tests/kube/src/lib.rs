//! A real Kubernetes control plane for tests, a stand-in for the kubelet it lacks, and one handle over
//! it and kubesim, so that a claim about Kubernetes is made once and proved on both.
//! Never used by what we ship. Times are wall clock; everything listens on loopback only.

pub mod assets;
pub mod audit;
pub mod claims;
pub mod cluster;
pub mod connect;
pub mod control_plane;
pub mod kubelet;
pub mod raw;
pub mod seed;
pub mod settled;

pub use audit::AuditEntry;
pub use cluster::TestCluster;
pub use control_plane::ControlPlane;
pub use kubelet::{Kubelet, NodeSpec};
