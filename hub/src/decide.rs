//! Stage 5: judges nodes that are due and commits what follows.
