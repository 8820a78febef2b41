//! The command line and its environment.
