//! What the demo, the end-to-end tests and the benchmarks share: a fleet on one machine, made of the shipping programs.

pub mod alert;
pub mod chaos;
pub mod cluster;
pub mod crash;
pub mod exporter;
pub mod facts;
pub mod fleet;
pub mod invariants;
pub mod measure;
pub mod observe;
pub mod output;
pub mod process;
pub mod program;
pub mod record;
pub mod reign;
pub mod script;
pub mod seed;
pub mod show;
pub mod timeline;
pub mod wait;
pub mod workload;
