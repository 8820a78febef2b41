//! Guarded counters: how many nodes are out, per scope, and who holds them.
