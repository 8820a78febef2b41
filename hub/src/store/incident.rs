//! Incidents and the faults they hold.
