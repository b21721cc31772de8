//! A frame: the unit of everything on a connection. Little-endian.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     1  kind
//!        1     1  flags: 1 end, 2 records, 4 part, 8 batch, 16 dictionary, 32 placed
//!        2     2  zero
//!        4     4  call, 0 for the connection itself
//!        8     4  payload length (p), without the check behind it
//!       12     4  check: low half of the CRC-64 of bytes 0..12
//!       16     p  payload
//!        …     4  check: low half of the CRC-64 of the payload; absent with the flag `records`
//! ```
//!
//! 1. The header's check guards the length: no byte of a payload is waited for before it holds.
//! 2. Each kind has its own bound on the length; nothing is allocated for a frame beyond it.
//! 3. With the flag `records` the payload is whole records end to end, which carry their own CRC-64, or with `part` a
//!    piece of one record larger than a frame. The sender adds no second checksum, the receiver checks the records'.
//! 4. With the flag `placed` the payload tells where such records, or such a piece, lie in memory that both sides have (shelf.rs).

/// Bytes of a frame before its payload.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the check behind a payload.
pub const CHECK_BYTES: usize = 4;
/// Payload that a sender puts into one data frame; larger items go in parts.
pub const DATA_BYTES: usize = 256 << 10;
/// Largest payload of a data frame that is accepted.
pub const DATA_BYTES_MAX: u32 = 1 << 20;
/// Largest payload of a request.
pub const OPEN_BYTES_MAX: u32 = 128 << 10;
/// Largest dictionary.
pub const DICTIONARY_BYTES_MAX: u32 = 1 << 20;
const SMALL_BYTES_MAX: u32 = 4 << 10;

/// The last data of its direction.
pub const END: u8 = 1;
/// Whole records, without a check of their own.
pub const RECORDS: u8 = 2;
/// More of the same item follows.
pub const PART: u8 = 4;
/// The last data of a batch.
pub const BATCH: u8 = 8;
/// A dictionary for the records that follow.
pub const DICTIONARY: u8 = 16;
/// The places of records on the server's shelf, instead of the records.
pub const PLACED: u8 = 32;
const FLAGS: u8 = END | RECORDS | PART | BATCH | DICTIONARY | PLACED;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The dialing side's first frame.
    Hello = 1,
    /// The answer to it.
    Welcome = 2,
    /// Opens a call with a request.
    Open = 3,
    /// Data of a call, either way.
    Data = 4,
    /// Allows the other side so many more bytes of data.
    Credit = 5,
    /// Ends a call, or with call 0 the connection, and says why.
    Error = 6,
    /// Ends a call from the side that opened it.
    Cancel = 7,
    /// Asks for a sign of life.
    Ping = 8,
    /// The sign of life.
    Pong = 9,
    /// No more calls are taken; those under way go on.
    Goodbye = 10,
    /// A dictionary that later records on this connection use.
    Dictionary = 11,
    /// So many frames with places were taken off the shelf.
    Taken = 12,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Open,
            4 => Kind::Data,
            5 => Kind::Credit,
            6 => Kind::Error,
            7 => Kind::Cancel,
            8 => Kind::Ping,
            9 => Kind::Pong,
            10 => Kind::Goodbye,
            11 => Kind::Dictionary,
            12 => Kind::Taken,
            _ => return None,
        })
    }

    /// The largest payload of this kind.
    pub fn bytes_max(self) -> u32 {
        match self {
            Kind::Data => DATA_BYTES_MAX,
            Kind::Open => OPEN_BYTES_MAX,
            Kind::Dictionary => DICTIONARY_BYTES_MAX,
            Kind::Credit | Kind::Taken => 4,
            Kind::Ping | Kind::Pong | Kind::Goodbye | Kind::Cancel => 0,
            Kind::Hello | Kind::Welcome | Kind::Error => SMALL_BYTES_MAX,
        }
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// [`END`] and the like.
    pub flags: u8,
    /// The call it belongs to.
    pub call: u32,
    /// Bytes of its payload.
    pub length: u32,
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header's check does not hold: another protocol, or damage.
    #[error("no frame here: expected header check {expected:08x}, found {found:08x}")]
    Header {
        /// Computed.
        expected: u32,
        /// Received.
        found: u32,
    },
    /// A kind or flags this version does not know.
    #[error("unknown frame: kind {kind}, flags {flags:#04x}")]
    Unknown {
        /// The kind's byte.
        kind: u8,
        /// The flags' byte.
        flags: u8,
    },
    /// A payload larger than its kind may have.
    #[error("a frame of kind {kind:?} has {length} bytes, at most {max} are taken")]
    TooLong {
        /// Its kind.
        kind: Kind,
        /// The length it claims.
        length: u32,
        /// The bound.
        max: u32,
    },
    /// The payload's check does not hold.
    #[error("frame payload damaged: expected check {expected:08x}, found {found:08x}")]
    Payload {
        /// Computed.
        expected: u32,
        /// Received.
        found: u32,
    },
}

/// The check of a payload or a header.
pub fn check(bytes: &[u8]) -> u32 {
    super::check::check(bytes)
}

impl Header {
    /// A header without flags.
    pub fn new(kind: Kind, call: u32, length: usize) -> Header {
        Header { kind, flags: 0, call, length: length as u32 }
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let [c0, c1, c2, c3] = self.call.to_le_bytes();
        let [l0, l1, l2, l3] = self.length.to_le_bytes();
        let fields = [self.kind as u8, self.flags, 0, 0, c0, c1, c2, c3, l0, l1, l2, l3];
        let mut out = [0; HEADER_BYTES];
        if let Some((start, end)) = out.split_first_chunk_mut::<12>() {
            *start = fields;
            end.copy_from_slice(&check(&fields).to_le_bytes());
        }
        out
    }

    /// Reads a header, checking and bounding everything.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let [kind, flags, z0, z1, c0, c1, c2, c3, l0, l1, l2, l3, k0, k1, k2, k3] = *bytes;
        let expected = check(bytes.get(..12).unwrap_or_default());
        let found = u32::from_le_bytes([k0, k1, k2, k3]);
        if expected != found {
            return Err(FrameError::Header { expected, found });
        }
        let known = Kind::from_byte(kind).filter(|kind| {
            let data_only = flags & !END != 0;
            flags & !FLAGS == 0 && [z0, z1] == [0, 0] && (!data_only || *kind == Kind::Data)
        });
        let kind = known.ok_or(FrameError::Unknown { kind, flags })?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length > kind.bytes_max() {
            return Err(FrameError::TooLong { kind, length, max: kind.bytes_max() });
        }
        Ok(Header { kind, flags, call: u32::from_le_bytes([c0, c1, c2, c3]), length })
    }

    /// Whether a check follows the payload.
    pub fn is_checked(&self) -> bool {
        self.flags & RECORDS == 0 && self.length > 0
    }

    /// Bytes of the frame behind its header.
    pub fn rest_bytes(&self) -> usize {
        self.length as usize + if self.is_checked() { CHECK_BYTES } else { 0 }
    }

    /// Appends a whole frame to `out`.
    pub fn write(&self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encode());
        out.extend_from_slice(payload);
        if self.is_checked() {
            out.extend_from_slice(&check(payload).to_le_bytes());
        }
    }

    /// The payload of a frame whose bytes behind the header are `rest`.
    ///
    /// # Errors
    /// When its check does not hold.
    pub fn payload<'a>(&self, rest: &'a [u8]) -> Result<&'a [u8], FrameError> {
        let (payload, trailer) = rest.split_at_checked(self.length as usize).unwrap_or_default();
        if self.is_checked() {
            let expected = check(payload);
            let found = trailer.first_chunk().map_or(!expected, |b| u32::from_le_bytes(*b));
            if expected != found {
                return Err(FrameError::Payload { expected, found });
            }
        }
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        (1..=12_u8).prop_map(|byte| Kind::from_byte(byte).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_come_back(kind in kinds(), flags in 0..64_u8, call in any::<u32>(), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let flags = if kind == Kind::Data { flags } else { flags & END };
            let payload = &payload[..payload.len().min(kind.bytes_max() as usize)];
            let header = Header { flags, ..Header::new(kind, call, payload.len()) };
            let mut out = Vec::new();
            header.write(payload, &mut out);
            let (start, rest) = out.split_first_chunk().unwrap();
            prop_assert_eq!(Header::decode(start), Ok(header));
            prop_assert_eq!(header.rest_bytes(), rest.len());
            prop_assert_eq!(header.payload(rest), Ok(payload));
        }

        #[test]
        fn one_wrong_bit_is_noticed(call in any::<u32>(), bit in 0..(16 + 10 + 4) * 8_usize) {
            let mut out = Vec::new();
            let header = Header::new(Kind::Data, call, 10);
            header.write(b"0123456789", &mut out);
            out[bit / 8] ^= 1 << (bit % 8);
            let (start, rest) = out.split_first_chunk().unwrap();
            let fine = Header::decode(start).and_then(|h| h.payload(rest).map(<[u8]>::to_vec));
            prop_assert!(fine.is_err());
        }

        #[test]
        fn arbitrary_bytes_are_bounded(bytes in any::<[u8; 16]>()) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.length <= header.kind.bytes_max());
            }
        }
    }
}
