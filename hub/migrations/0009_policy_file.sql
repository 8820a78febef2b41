-- What the policy file said when it was last put in force.

ALTER TABLE hub_state ADD COLUMN policy_file_digest text;
COMMENT ON COLUMN hub_state.policy_file_digest IS 'Digest of what the policy file said when a hub last took it over; a file that still says so changes nothing, whatever people applied since';
UPDATE hub_state SET policy_file_digest = (SELECT digest FROM policies WHERE applied_by = 'policy file' ORDER BY revision DESC LIMIT 1);
