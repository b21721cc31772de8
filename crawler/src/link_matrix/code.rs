//! Gaps as bits: exponential Golomb codes, with a parameter k for each cell.
//!
//! ```text
//!   v + 2^k has n + 1 bits:  n − k zeros, a one, the n low bits of v + 2^k         lowest bits first
//! ```
//!
//! With k near the logarithm of the mean gap a random cell costs about a bit a link more than it must, and a cell with
//! neighbours and far links, as the web has them, pays for each gap by its size.

/// Appends bits, lowest first.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    buffer: u64,
    held: u32,
}

impl BitWriter {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        (self.buffer, self.held) = (0, 0);
    }

    /// The low `count` bits (at most 32) of `bits`; the others are 0.
    fn put(&mut self, bits: u64, count: u32) {
        self.buffer |= bits << self.held;
        self.held += count;
        while self.held >= 8 {
            self.bytes.push(self.buffer as u8);
            self.buffer >>= 8;
            self.held -= 8;
        }
    }

    pub(crate) fn write(&mut self, value: u32, k: u32) {
        let raised = u64::from(value) + (1 << k);
        let n = raised.ilog2();
        self.put(0, n - k);
        self.put(1, 1);
        self.put(raised & ((1 << n) - 1), n);
    }

    /// The bytes so far, the last one filled up.
    pub(crate) fn finish(&mut self) -> &[u8] {
        if self.held > 0 {
            self.bytes.push(self.buffer as u8);
            (self.buffer, self.held) = (0, 0);
        }
        &self.bytes
    }
}

/// The k that codes these values shortest, to within a bit here and there.
pub(crate) fn best_k(values: impl Iterator<Item = u32>) -> u32 {
    let mut lengths = [0u64; 33];
    for value in values {
        if let Some(length) = lengths.get_mut((32 - value.leading_zeros()) as usize) {
            *length += 1;
        }
    }
    let cost = |k: u64| -> u64 {
        let of = |length: u64| if length <= k { k + 1 } else { 2 * (length - k) + k };
        lengths.iter().zip(0u64..).map(|(count, length)| count * of(length)).sum()
    };
    (0..32u64).min_by_key(|k| cost(*k)).unwrap_or(0) as u32
}

/// Reads the codes back. Beyond the end it reads zeros.
struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
    buffer: u64,
    held: u32,
}

impl BitReader<'_> {
    /// Makes at least 56 bits ready.
    #[inline]
    fn refill(&mut self) {
        let word = match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                let rest = self.bytes.get(self.at..).unwrap_or_default();
                word.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                u64::from_le_bytes(word)
            }
        };
        self.buffer |= word << self.held;
        self.at += ((63 - self.held) >> 3) as usize;
        self.held |= 56;
    }

    #[inline]
    fn skip(&mut self, count: u32) {
        self.buffer >>= count;
        self.held -= count;
    }
}

/// Reads `count` positions after `first`; false if the bits are none that [`BitWriter`] writes.
pub(crate) fn read_positions(bytes: &[u8], k: u32, first: u32, count: usize, into: &mut Vec<u32>) -> bool {
    let mut bits = BitReader { bytes, at: 0, buffer: 0, held: 0 };
    let mut position = u64::from(first);
    into.reserve(count);
    for _ in 0..count {
        bits.refill();
        let zeros = bits.buffer.trailing_zeros();
        let n = zeros + k;
        if n > 32 {
            return false;
        }
        bits.skip(zeros + 1);
        if n > bits.held {
            bits.refill();
        }
        let low = bits.buffer & ((1 << n) - 1);
        bits.skip(n);
        position += (1 << n) + low - (1 << k) + 1;
        into.push(position as u32);
    }
    position <= u64::from(u32::MAX) && bits.at.saturating_sub(bits.held as usize / 8) <= bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_come_back(mut positions in proptest::collection::btree_set(any::<u32>(), 1..300), near in 0u32..9, k in 0u32..32) {
            // Some neighbours, and the ends of the range.
            let one = *positions.first().unwrap();
            positions.extend([0, u32::MAX]);
            positions.extend((0..near).map(|n| one.saturating_add(n)));
            let positions: Vec<u32> = positions.into_iter().collect();
            let mut writer = BitWriter::default();
            positions.windows(2).for_each(|pair| writer.write(pair[1] - pair[0] - 1, k));
            let bytes = writer.finish().to_vec();
            let mut found = vec![positions[0]];
            prop_assert!(read_positions(&bytes, k, positions[0], positions.len() - 1, &mut found));
            prop_assert_eq!(found, positions);
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..60), k in 0u32..40, first in any::<u32>()) {
            let mut found = Vec::new();
            let whole = read_positions(&bytes, k.min(31), first, 50, &mut found);
            if whole {
                prop_assert!(found.is_sorted());
            }
        }
    }
}
