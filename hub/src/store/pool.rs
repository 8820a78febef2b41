//! The pool, its session settings, and whether the schema is one we know.
