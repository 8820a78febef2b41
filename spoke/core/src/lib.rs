//! The pure half of the spoke: what it sees, what that means, what may be done. No IO, no clock, no async runtime:
//! time is an argument, bytes come in as slices, and every answer is a value that the caller may log, journal or send.

pub mod ceiling;
pub mod derive;
pub mod drain;
pub mod gpu_resources;
pub mod mark;
pub mod release;
pub mod scrape;
pub mod verify;
