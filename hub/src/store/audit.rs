//! The audit chain of each cluster: one locked head row, entries only ever added.
