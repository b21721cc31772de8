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
///
/// Where one code ends the next begins, so each waits for the one before, some twelve cycles long; two readers that take turns wait at the
/// same time ([`read_both`]).
#[derive(Clone, Copy)]
pub(crate) struct Positions<'a> {
    bytes: &'a [u8],
    bit: usize,
    k: u32,
    /// Zeros of a code that is wholly in a word, and is one that there is.
    zeros_max: u32,
    /// 2 − 2^k, as numbers wrap.
    beside: u64,
    position: u64,
    is_sound: bool,
}

/// 2^n − 1, sooner than a shift makes it.
#[expect(clippy::indexing_slicing, reason = "when it is compiled")]
const LOW_BITS: [u64; 64] = {
    let (mut all, mut n) = ([0; 64], 0);
    while n < 64 {
        all[n] = (1 << n) - 1;
        n += 1;
    }
    all
};

/// Bits that a word has at the least, wherever it begins.
const WORD_BITS: u32 = 57;

impl<'a> Positions<'a> {
    /// The positions after `first`, by codes of this k.
    pub(crate) fn new(bytes: &'a [u8], k: u32, first: u32) -> Self {
        let (k, is_sound) = (k.min(31), k < 32);
        let zeros_max = (32 - k).min((WORD_BITS - 1 - k) / 2);
        let beside = 2u64.wrapping_sub(1 << k);
        Self { bytes, bit: 0, k, zeros_max, beside, position: u64::from(first), is_sound }
    }

    /// The bits from here on.
    #[inline(always)]
    fn word(&self, bit: usize) -> u64 {
        let at = bit / 8;
        let word = match self.bytes.get(at..at + 8).and_then(|word| word.first_chunk()) {
            Some(word) => u64::from_le_bytes(*word),
            None => last_word(self.bytes, at),
        };
        word >> (bit % 8)
    }

    #[inline(always)]
    fn next(&mut self) -> u32 {
        let word = self.word(self.bit);
        let zeros = word.trailing_zeros();
        if zeros > self.zeros_max {
            *self = self.after_long(zeros);
            return self.position as u32;
        }
        self.step(zeros, word >> (zeros + 1));
        self.position as u32
    }

    /// Takes the code with so many zeros, and these bits behind its one.
    #[inline(always)]
    fn step(&mut self, zeros: u32, behind: u64) {
        let n = zeros + self.k;
        let below = LOW_BITS.get(n as usize % LOW_BITS.len()).copied().unwrap_or_default();
        self.bit += (zeros + 1 + n) as usize;
        // The code is of the gap less 1, and 2^k more.
        self.position = (self.position + (behind & below) + below).wrapping_add(self.beside);
    }

    /// After a code that is in two words, or in none.
    #[cold]
    fn after_long(mut self, zeros: u32) -> Self {
        if zeros + self.k > 32 {
            self.is_sound = false;
            self.bit += 1;
        } else {
            self.step(zeros, self.word(self.bit + zeros as usize + 1));
        }
        self
    }

    /// Reads on.
    pub(crate) fn read(&mut self, into: &mut [u32]) {
        let mut codes = *self;
        into.iter_mut().for_each(|position| *position = codes.next());
        *self = codes;
    }

    /// Whether all that was read is what [`BitWriter`] writes.
    pub(crate) fn is_sound(&self) -> bool {
        self.is_sound && self.position <= u64::from(u32::MAX) && self.bit <= 8 * self.bytes.len()
    }
}

/// The last few bytes from here on, and zeros.
#[cold]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let (mut word, rest) = ([0; 8], bytes.get(at..).unwrap_or_default());
    word.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// Reads on in both, as one does.
pub(crate) fn read_both(
    (one, into_one): (&mut Positions<'_>, &mut [u32]),
    (other, into_other): (&mut Positions<'_>, &mut [u32]),
) {
    let (now, later) = into_one.split_at_mut(into_one.len().min(into_other.len()));
    let (other_now, other_later) = into_other.split_at_mut(now.len());
    // Copies, so that what changes with every code is in registers.
    let (mut codes, mut other_codes) = (*one, *other);
    for (position, other_position) in now.iter_mut().zip(other_now) {
        *position = codes.next();
        *other_position = other_codes.next();
    }
    (*one, *other) = (codes, other_codes);
    one.read(later);
    other.read(other_later);
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
            let codes = || Positions::new(&bytes, k, positions[0]);
            let (mut one, mut found) = (codes(), vec![0; positions.len() - 1]);
            one.read(&mut found);
            prop_assert!(one.is_sound());
            prop_assert_eq!(&found, &positions[1..]);

            // Of two at once each has its own, however many the other has.
            let fewer = found.len() / 2;
            let (mut one, mut other, mut both) = (codes(), codes(), (vec![0; found.len()], vec![0; fewer]));
            read_both((&mut one, &mut both.0), (&mut other, &mut both.1));
            prop_assert!(one.is_sound() && other.is_sound());
            prop_assert_eq!((&both.0[..], &both.1[..]), (&found[..], &found[..fewer]));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..60), k in 0u32..40, first in any::<u32>()) {
            let (mut codes, mut found) = (Positions::new(&bytes, k.min(32), first), [0; 50]);
            codes.read(&mut found);
            if codes.is_sound() {
                prop_assert!(found.is_sorted() && found.first() > Some(&first));
            }
        }
    }
}
