//! How many links each page has, two bytes a page; 65 535 is a page that was never read.
//!
//! ```text
//!   a block of 65 536 pages:   stored bytes 4, zstd of the 131 072 bytes, CRC-64 of all the above 8
//! ```

use webbase_storage::crc64;

use crate::importance::kernel::BLOCK;

/// A page that was never read.
pub(crate) const UNREAD: u16 = u16::MAX;

/// No block is larger than this when stored.
const STORED_MAX: usize = 2 * BLOCK + 1024;

pub(crate) fn write(degrees: &[u16], out: &mut Vec<u8>) -> std::io::Result<()> {
    let bytes: Vec<u8> = degrees.iter().flat_map(|degree| degree.to_le_bytes()).collect();
    let stored = zstd::bulk::compress(&bytes, 1)?;
    let begin = out.len();
    out.extend((stored.len() as u32).to_le_bytes());
    out.extend(stored);
    let crc = crc64(out.get(begin..).unwrap_or_default());
    out.extend(crc.to_le_bytes());
    Ok(())
}

pub(crate) fn read(bytes: &[u8]) -> Result<Vec<u16>, String> {
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or("cut short")?;
    let (expected, found) = (crc64(body), u64::from_le_bytes(*crc));
    if expected != found {
        return Err(format!("expected CRC-64 {expected:016x}, found {found:016x}"));
    }
    let (len, stored) = body.split_first_chunk::<4>().ok_or("cut short")?;
    if stored.len() != u32::from_le_bytes(*len) as usize || stored.len() > STORED_MAX {
        return Err(format!("{} stored bytes", stored.len()));
    }
    let bytes = zstd::bulk::decompress(stored, 2 * BLOCK).map_err(|e| e.to_string())?;
    if bytes.len() != 2 * BLOCK {
        return Err(format!("{} bytes of numbers of links", bytes.len()));
    }
    Ok(bytes.as_chunks::<2>().0.iter().map(|degree| u16::from_le_bytes(*degree)).collect())
}
