//! All SQL of the hub. Functions are named noun first and take a connection; affected rows are checked, and violated
//! constraints become errors by their names.

pub mod audit;
pub mod budget;
pub mod decision;
pub mod fault;
pub mod fleet;
pub mod incident;
pub mod node;
pub mod outbox;
pub mod policy;
pub mod pool;
pub mod session;
pub mod settle;
pub mod snapshot;
