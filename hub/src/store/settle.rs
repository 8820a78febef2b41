//! What became of a command.
