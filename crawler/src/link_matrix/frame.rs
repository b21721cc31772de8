//! A frame: links of one cell, checked. Little-endian.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  payload bytes n
//!        4     4  links: 1 to 65 536
//!        8     2  block of the sources
//!       10     2  block of the targets
//!       12     4  first position
//!       16     1  k of the codes
//!       17     3  zero
//!       20     n  the gaps to the next positions, less 1 (code.rs)
//!     20+n     8  CRC-64 of all the above
//! ```
//!
//! A position is the source's place in its block times 65 536 plus the target's in its own. A cell with more links has
//! several frames one after the other.

use webbase_storage::crc64;

use super::code::{BitWriter, Positions, best_k, read_both};

pub(crate) const HEAD_BYTES: usize = 20;
const CRC_BYTES: usize = 8;
/// Links of a frame.
pub(crate) const FRAME_LINKS_MAX: usize = 1 << 16;
/// A frame's bytes: a code has at most 65 bits.
pub(crate) const FRAME_BYTES_MAX: usize = HEAD_BYTES + FRAME_LINKS_MAX * 65 / 8 + 8 + CRC_BYTES;

/// A frame, read and checked.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// The block of the sources.
    pub(crate) from: u16,
    /// The block of the targets.
    pub(crate) to: u16,
    /// The links.
    pub(crate) positions: Vec<u32>,
}

/// Appends the frame of these positions of a cell.
pub(crate) fn write(from: u16, to: u16, positions: &[u32], bits: &mut BitWriter, out: &mut Vec<u8>) {
    let Some(first) = positions.first() else { return };
    let gaps = || positions.iter().zip(positions.iter().skip(1)).map(|(one, next)| next - one - 1);
    let k = best_k(gaps());
    bits.clear();
    gaps().for_each(|gap| bits.write(gap, k));
    let payload = bits.finish();
    let begin = out.len();
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend((positions.len() as u32).to_le_bytes());
    out.extend(from.to_le_bytes());
    out.extend(to.to_le_bytes());
    out.extend(first.to_le_bytes());
    out.extend([k as u8, 0, 0, 0]);
    out.extend(payload);
    let crc = crc64(out.get(begin..).unwrap_or_default());
    out.extend(crc.to_le_bytes());
}

/// How many bytes the frame at the beginning of `bytes` has, if its head is there.
pub(crate) fn frame_bytes(bytes: &[u8]) -> Option<Result<usize, String>> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let payload = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let total = HEAD_BYTES + payload + CRC_BYTES;
    Some(if total <= FRAME_BYTES_MAX { Ok(total) } else { Err(format!("a frame of {total} bytes")) })
}

/// The blocks of the sources and the targets of the frame that `bytes` are, unchecked.
pub(crate) fn cell_of(bytes: &[u8]) -> Option<(u16, u16)> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    Some((u16::from_le_bytes([head[8], head[9]]), u16::from_le_bytes([head[10], head[11]])))
}

/// How many links the frame says it has, unchecked.
pub(crate) fn links_of(bytes: &[u8]) -> usize {
    bytes
        .get(4..8)
        .and_then(|links| links.first_chunk())
        .map_or(0, |links| u32::from_le_bytes(*links) as usize)
}

impl Frame {
    /// Reads the frame that `bytes` are.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut checked = Checked::of(bytes)?;
        let into = self.begin(&checked);
        checked.codes.read(into);
        checked.end()
    }

    /// Reads a frame into each of two, as they are checked, in little more time than one takes.
    pub(crate) fn read_both(
        (one, checked): (&mut Self, &mut Checked<'_>),
        (other, checked_other): (&mut Self, &mut Checked<'_>),
    ) {
        let (into, into_other) = (one.begin(checked), other.begin(checked_other));
        read_both((&mut checked.codes, into), (&mut checked_other.codes, into_other));
    }

    /// Takes over what the head says. What is given is for the positions after the first.
    fn begin(&mut self, checked: &Checked<'_>) -> &mut [u32] {
        (self.from, self.to) = checked.cell;
        self.positions.resize(checked.links, 0);
        match self.positions.split_first_mut() {
            Some((first, others)) => {
                *first = checked.first;
                others
            }
            None => &mut [],
        }
    }
}

/// A frame that is what was written; its codes have not been read.
pub(crate) struct Checked<'a> {
    cell: (u16, u16),
    links: usize,
    first: u32,
    codes: Positions<'a>,
}

impl<'a> Checked<'a> {
    /// Checks the frame that `bytes` are.
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, String> {
        let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or("cut short")?;
        let (expected, found) = (crc64(body), u64::from_le_bytes(*crc));
        if expected != found {
            return Err(format!("expected CRC-64 {expected:016x}, found {found:016x}"));
        }
        let (head, payload) = body.split_first_chunk::<HEAD_BYTES>().ok_or("cut short")?;
        let links = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let first = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        let k = u32::from(head[16]);
        if links == 0 || links > FRAME_LINKS_MAX || k > 31 {
            return Err(format!("{links} links with k = {k}"));
        }
        let cell = cell_of(head).ok_or("cut short")?;
        Ok(Self { cell, links, first, codes: Positions::new(payload, k, first) })
    }

    /// Says whether the codes were sound, when they have been read.
    pub(crate) fn end(self) -> Result<(), String> {
        if self.codes.is_sound() { Ok(()) } else { Err("codes that nobody wrote".into()) }
    }
}
