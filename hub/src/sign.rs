//! Stage 6: commands to signed envelopes. The only holder of private keys.
