//! Small files that are written whole: the bytes, and a CRC-64 of them behind.
//!
//! They hold estimates that mend themselves, so what is damaged is as if it were not there. Whoever owns a format draws it.

use std::fs::File;
use std::io;
use std::path::Path;

use webbase_storage::crc64;

/// The bytes with their sum.
pub(super) fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
    bytes
}

/// The bytes without their sum; `None` when it is not theirs.
pub(super) fn unsummed(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    (crc64(body) == u64::from_le_bytes(*sum)).then_some(body)
}

/// Reads a file; `None` when there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Writes a file beside the one of that name, and then in its place.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes)?;
    File::open(&beside)?.sync_data()?;
    std::fs::rename(beside, path)
}
