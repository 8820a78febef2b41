//! Commands to sign, to send and to send again.
