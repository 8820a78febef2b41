//! Decisions and the commands that follow from them.
