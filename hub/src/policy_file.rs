//! The fleet's policy as a file: loaded, validated, stored as a revision, read again when it changes.
