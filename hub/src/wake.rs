//! Wakes the next stage early. The 1 s poll is the truth, this is only haste.
