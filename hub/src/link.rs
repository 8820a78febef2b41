//! The stream between hub and spokes.
