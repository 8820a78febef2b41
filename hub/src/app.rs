//! Puts the hub together: pool, wake-ups, workers, listeners, and their orderly end.
