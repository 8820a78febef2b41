-- What cannot be signed now stands in nobody's way; a cancellation is signed under the epoch at hand, and again when that rises.

ALTER TABLE commands ADD COLUMN sign_again_at timestamptz, ADD COLUMN cancel_hub_term bigint;
COMMENT ON COLUMN commands.sign_again_at IS 'Its command or its cancellation could not be signed, and is not tried again before this';
COMMENT ON COLUMN commands.cancel_hub_term IS 'Epoch of the database that its cancellation was signed under; none in rows of before, which have that of the command';
