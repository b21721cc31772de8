//! The check of headers and small payloads: the same CRC-64 as everywhere, made for a few bytes.
//!
//! A lookup is three of these, of 12 to 20 bytes, and what makes long checksums fast does not begin before 128: up to there it
//! goes byte by byte, each waiting for the one before. Here eight bytes are looked up at once, each in a table of its own.

use webbase_storage::crc64;

/// The polynomial of CRC-64/XZ, its bits in reverse.
const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;
/// From this length on the long way is the faster one.
const LONG_BYTES: usize = 128;

/// `TABLES[n]` has what a byte does to the check when n more bytes follow.
static TABLES: [[u64; 256]; 8] = tables();

#[expect(clippy::indexing_slicing, reason = "made by the compiler, which would refuse a wrong index")]
const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            state = (state >> 1) ^ if state & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut following = 1;
    while following < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[following - 1][byte];
            tables[following][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        following += 1;
    }
    tables
}

/// The low half of the CRC-64 of some bytes.
pub(super) fn check(bytes: &[u8]) -> u32 {
    // A fuzzer cannot guess checksums; see `crc64`.
    if cfg!(fuzzing) || bytes.len() >= LONG_BYTES {
        return crc64(bytes) as u32;
    }
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    let look = |table: &[u64; 256], byte: u8| table.get(usize::from(byte)).copied().unwrap_or_default();
    let mut state = !0_u64;
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(*eight) ^ state).to_le_bytes();
        state = look(t7, a) ^ look(t6, b) ^ look(t5, c) ^ look(t4, d);
        state ^= look(t3, e) ^ look(t2, f) ^ look(t1, g) ^ look(t0, h);
    }
    let (fours, rest) = rest.as_chunks::<4>();
    for four in fours {
        let [a, b, c, d] = (u32::from_le_bytes(*four) ^ state as u32).to_le_bytes();
        state = (state >> 32) ^ look(t3, a) ^ look(t2, b) ^ look(t1, c) ^ look(t0, d);
    }
    for byte in rest {
        state = (state >> 8) ^ look(t0, byte ^ state as u8);
    }
    !state as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_crc_of_everything_else() {
        let bytes: Vec<u8> =
            (0..200_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        for len in 0..bytes.len() {
            for from in 0..9.min(bytes.len() - len) {
                let some = &bytes[from..from + len];
                assert_eq!(check(some), crc64(some) as u32, "{len} bytes from {from}");
            }
        }
    }
}
