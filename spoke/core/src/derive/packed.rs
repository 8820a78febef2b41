//! How a node's part is written: JSON, deflated. Eight GPUs say nearly the same eight times: of 5 KiB one is left, of which the
//! journal keeps a copy in memory for each node, and writes all at the start of each segment.

use std::io::{self, Read as _, Write as _};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

/// Longest JSON that is read back: 512 faults of 2 KiB and 256 GPUs of as much take half of it.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// What comes first of what is deflated. JSON, as earlier versions wrote it bare, begins with a brace.
const DEFLATED: u8 = 1;

/// Packs JSON.
pub(super) fn pack(json: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(vec![DEFLATED], Compression::default());
    encoder.write_all(json).expect("memory takes all");
    let mut packed = encoder.finish().expect("memory takes all");
    packed.shrink_to_fit();
    packed
}

/// The JSON again.
///
/// # Errors
/// When it was not packed here, or is longer than any part.
pub(super) fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let Some(deflated) = bytes.strip_prefix(&[DEFLATED]) else { return Ok(bytes.to_vec()) };
    let mut json = Vec::new();
    DeflateDecoder::new(deflated).take(JSON_BYTES_MAX + 1).read_to_end(&mut json)?;
    if json.len() as u64 > JSON_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than any part"));
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_bare_json_is_read_as_it_is() {
        let json = br#"{"gpus":[{"uuid":"GPU-1"},{"uuid":"GPU-2"}]}"#;
        assert_eq!(unpack(&pack(json)).unwrap(), json);
        assert_eq!(unpack(json).unwrap(), json);
        assert!(unpack(&[DEFLATED, 0xff, 0xff]).is_err());
    }

    #[test]
    fn what_unfolds_into_more_than_any_part_is_refused() {
        let bomb = pack(&vec![b' '; JSON_BYTES_MAX as usize + 1]);
        assert!(bomb.len() < 64 << 10);
        assert!(unpack(&bomb).is_err());
    }
}
