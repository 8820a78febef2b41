//! The people's and scripts' client of a hub, and the development PKI. Tests and the demo use the PKI as a library.

pub mod args;
mod call;
mod connect;
pub mod output;
pub mod pki;
pub mod run;
mod visible;
