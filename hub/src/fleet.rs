//! The API for people and tools.
