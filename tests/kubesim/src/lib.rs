//! A Kubernetes API server in memory, over real HTTPS, with small controllers and a kubelet stand-in beside it.
//! For the demo's clusters, for tests and for scale runs. A copy of what this project's clients use and the contract
//! suite proves on a real server; not of Kubernetes. Nothing is ever written to disk but the kubeconfig one asks for.

pub mod build;
mod clock;
mod config;
mod controllers;
mod faults;
mod http;
mod kubeconfig;
mod managed;
mod obj;
mod patch;
mod recorder;
mod registry;
mod rest;
mod selector;
mod sim;
mod status;
mod store;
mod tls;

pub use clock::Clock;
pub use config::{Config, Controllers, User, WATCH_WINDOW};
pub use faults::{Fault, FaultId, Faults, Then, When};
pub use recorder::{RECORDS_MAX, Record, Recorder};
pub use registry::ResourceKind;
pub use sim::{ADMIN, KubeSim, StartError};
pub use status::ApiError;
pub use store::Store;
pub use tls::{TlsError, TlsIdentity};
