-- What was made of a fault is written anew when the decision about it changes: room for that in its own page.
ALTER TABLE incident_faults SET (fillfactor = 80);
