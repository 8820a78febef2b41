//! One record of /dev/kmsg: `priority,sequence,microseconds,flags[,…];message`, then lines of its dictionary.

/// Longest record that is read. The kernel's own buffer for one is 2 KiB of text, four times that when every byte is
/// escaped, plus its dictionary.
pub const RECORD_BYTES_MAX: usize = 16 * 1024;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsgRecord {
    /// Who wrote it: 0 is the kernel, and user space cannot claim that.
    pub facility: u32,
    /// 0 emergency to 7 debug.
    pub level: u8,
    /// Grows by one per record; a gap is a loss.
    pub sequence: u64,
    /// Since boot.
    pub monotonic_us: u64,
    /// The message, escapes undone: several lines stay one record.
    pub text: String,
}

/// The bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KmsgError {
    /// More bytes than a record can have.
    #[error("record of {bytes} bytes is larger than {bytes_max}")]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// No `priority,sequence,microseconds,flags;` in front.
    #[error("record has no readable prefix")]
    NoPrefix,
}

impl KmsgRecord {
    /// Reads what one read(2) of /dev/kmsg gives.
    pub fn parse(bytes: &[u8]) -> Result<Self, KmsgError> {
        let bytes_max = RECORD_BYTES_MAX;
        if bytes.len() > bytes_max {
            return Err(KmsgError::TooLarge { bytes: bytes.len(), bytes_max });
        }
        let split = memchr::memchr(b';', bytes).ok_or(KmsgError::NoPrefix)?;
        let prefix = std::str::from_utf8(&bytes[..split]).map_err(|_| KmsgError::NoPrefix)?;
        let mut numbers = prefix.split(',').map(|number| number.parse::<u64>().map_err(|_| KmsgError::NoPrefix));
        let mut next = || numbers.next().unwrap_or(Err(KmsgError::NoPrefix));
        let (priority, sequence, monotonic_us) = (next()?, next()?, next()?);
        let message = &bytes[split + 1..];
        // The dictionary (` SUBSYSTEM=pci`) follows on lines of its own.
        let message = &message[..memchr::memchr(b'\n', message).unwrap_or(message.len())];
        Ok(Self {
            facility: u32::try_from(priority >> 3).map_err(|_| KmsgError::NoPrefix)?,
            level: (priority & 7) as u8,
            sequence,
            monotonic_us,
            text: String::from_utf8_lossy(&unescaped(message)).into_owned(),
        })
    }

    /// Written by the kernel itself.
    pub fn is_kernel(&self) -> bool {
        self.facility == 0
    }
}

/// The kernel writes what does not print as `\x0a`, and a backslash as `\x5c`.
fn unescaped(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    let mut rest = message;
    while let [first, tail @ ..] = rest {
        if let [b'\\', b'x', high, low, tail @ ..] = rest
            && let (Some(high), Some(low)) = ((*high as char).to_digit(16), (*low as char).to_digit(16))
        {
            out.push((high * 16 + low) as u8);
            rest = tail;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}
