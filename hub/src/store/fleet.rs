//! What people and tools ask for.
