//! A durable mark: up to which offset a growing file is known to be on disk. Two copies are written in turn, in different
//! sectors, so that one is always whole: sequence 8, offset 8, CRC-64 of both and of the file's number 8.

use crate::disk::DiskFile;
use crate::record::crc64;

/// Where the two copies lie.
const OFFSETS: [u64; 2] = [32, 544];
/// Bytes of a file's head that hold both.
pub(crate) const HEAD_BYTES: usize = 4096;

/// A mark as bytes.
pub(crate) fn encode(number: u64, sequence: u64, offset: u64) -> [u8; 24] {
    let mut out = [0; 24];
    let crc = crc(sequence, offset, number);
    for (target, word) in out.as_chunks_mut::<8>().0.iter_mut().zip([sequence, offset, crc]) {
        *target = word.to_le_bytes();
    }
    out
}

fn crc(sequence: u64, offset: u64, number: u64) -> u64 {
    let mut words = [0; 24];
    for (target, word) in words.as_chunks_mut::<8>().0.iter_mut().zip([sequence, offset, number]) {
        *target = word.to_le_bytes();
    }
    crc64(&words)
}

/// Writes the mark with this sequence over the older of the two; the next sync makes it durable.
pub(crate) fn write(file: &dyn DiskFile, number: u64, sequence: u64, offset: u64) -> std::io::Result<()> {
    let [even, odd] = OFFSETS;
    let at = if sequence.is_multiple_of(2) { even } else { odd };
    file.write_all_at(&encode(number, sequence, offset), at)
}

/// The newest whole mark in a file's head: sequence and offset.
pub(crate) fn newest(head: &[u8], number: u64) -> Option<(u64, u64)> {
    let word = |at: usize| head.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let marks = OFFSETS.iter().filter_map(|&at| {
        let at = at as usize;
        let (sequence, offset) = (word(at)?, word(at + 8)?);
        (word(at + 16)? == crc(sequence, offset, number)).then_some((sequence, offset))
    });
    marks.max()
}
