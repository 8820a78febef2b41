//! Stage 10: what spokes report becomes the state of commands and incidents.
