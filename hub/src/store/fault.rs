//! Faults, their episodes and witnesses, and the streams they came by.
