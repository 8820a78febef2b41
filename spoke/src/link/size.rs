//! Whether a message can be sent at all. Asked where it is made, by whoever can make it smaller or say no to the one who wants it;
//! the link asks once more before it writes. Pure.

use gpuheal_proto::limits::MESSAGE_BYTES_MAX;
use prost::Message;

/// What the stream adds to a message: a tag of one byte and a length of three.
const ADDED_BYTES_MAX: usize = 4;

/// It can never be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {bytes} bytes is over the limit of {MESSAGE_BYTES_MAX}")]
pub struct TooLarge {
    /// Its size on the stream.
    pub bytes: usize,
}

/// Whether a message, with what the stream adds to it, is within the limit.
///
/// # Errors
/// How large it is when it is not.
pub fn fits(message: &impl Message) -> Result<(), TooLarge> {
    let bytes = message.encoded_len() + ADDED_BYTES_MAX;
    if bytes > MESSAGE_BYTES_MAX { Err(TooLarge { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::link::v1::{self, attach_request::Message as Up};

    use super::*;

    #[test]
    fn what_fits_where_it_is_made_is_within_the_limit_on_the_stream_and_no_byte_is_given_away() {
        let of = |bytes: usize| v1::CommandStatus { envelope: vec![0; bytes].into(), ..v1::CommandStatus::default() };
        let largest = (0..MESSAGE_BYTES_MAX).rev().find(|bytes| fits(&of(*bytes)).is_ok()).unwrap();
        let sent = v1::AttachRequest { message: Some(Up::CommandStatus(of(largest))) };
        assert_eq!(sent.encoded_len(), MESSAGE_BYTES_MAX);
        assert!(fits(&of(largest + 1)).is_err());
    }
}
