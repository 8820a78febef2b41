//! The hub: takes faults from spokes, keeps them in Postgres, decides, signs commands and hands them out.
//! Stages never call each other: they meet in Postgres, and one may wake the next. All SQL is in `store`, the wall clock
//! in `clock`, private keys in `sign`, flags in `args`.

#[macro_use]
extern crate gpuheal_crash;

pub mod app;
pub mod args;
pub mod audit;
pub mod clock;
pub mod database;
pub mod decide;
pub mod deliver;
mod fit;
pub mod fleet;
pub mod http;
pub mod identity;
pub mod ingest;
pub mod link;
pub mod metrics;
pub mod policy_file;
pub mod settle;
pub mod sign;
pub mod store;
pub mod tls;
pub mod wake;

use gpuheal_proto::chain;
