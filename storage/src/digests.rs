//! SHA-1 of several payloads at a time.
//!
//! The processor's instructions for SHA-1 wait for each other within one payload; what they wait for, those of other payloads fill. So
//! payloads lie side by side in *lanes*, and each step is taken for all lanes before the next one:
//!
//! ```text
//!   lane 0  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒▒▒▒▒▒▒▒▒▒
//!   lane 1  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒     the longest first; who ends makes room for the next
//! ```
//!
//! Four lanes take half the time of one after the other on Zen 3 (benches/RESULTS.md), and as long where the instructions are bound by
//! throughput. Without these instructions it is the `sha1` crate for each.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the processor may not have the instructions")
)]

use sha1::{Digest, Sha1};

/// A SHA-1.
pub type Sha1Digest = [u8; 20];

/// The SHA-1 of each of these, in their order.
#[must_use]
pub fn sha1_of_each(payloads: &[&[u8]]) -> Vec<Sha1Digest> {
    #[cfg(target_arch = "x86_64")]
    if payloads.len() > 1
        && let Some(instructions) = lanes::Instructions::found()
    {
        return instructions.of_each(payloads);
    }
    payloads.iter().map(|payload| Sha1::digest(payload).into()).collect()
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_extract_epi32, _mm_loadu_si128, _mm_set_epi32, _mm_set_epi64x,
        _mm_setzero_si128, _mm_sha1msg1_epu32, _mm_sha1msg2_epu32, _mm_sha1nexte_epu32, _mm_sha1rnds4_epu32,
        _mm_shuffle_epi8, _mm_xor_si128,
    };

    use super::Sha1Digest;

    /// Two take nearly as short; more than four were not tried.
    const LANES: usize = 4;
    const BLOCK: usize = 64;
    /// Where every SHA-1 begins (FIPS 180-4, 5.3.1).
    const START: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

    type Block = [u8; BLOCK];

    /// A payload on its way.
    struct Lane<'a> {
        /// Which one it is.
        number: usize,
        state: [u32; 5],
        blocks: &'a [Block],
    }

    /// Whoever has this has found that the processor has the instructions.
    #[derive(Clone, Copy)]
    pub(super) struct Instructions(());

    impl Instructions {
        pub(super) fn found() -> Option<Instructions> {
            let has_them = is_x86_feature_detected!("sha")
                && is_x86_feature_detected!("ssse3")
                && is_x86_feature_detected!("sse4.1");
            has_them.then_some(Instructions(()))
        }

        pub(super) fn of_each(self, payloads: &[&[u8]]) -> Vec<Sha1Digest> {
            of_each(self, payloads)
        }

        fn compress<const N: usize>(self, states: &mut [[u32; 5]; N], lanes: [&[Block]; N], blocks: usize) {
            // SAFETY: there is such a value only where the processor was found to have the instructions.
            unsafe { compress(states, lanes, blocks) }
        }
    }

    fn of_each(instructions: Instructions, payloads: &[&[u8]]) -> Vec<Sha1Digest> {
        let mut waiting: Vec<usize> = (0..payloads.len()).collect();
        waiting.sort_unstable_by_key(|number| payloads.get(*number).map_or(0, |payload| payload.len()));
        let mut digests = vec![[0; 20]; payloads.len()];
        let mut lanes: Vec<Lane<'_>> = Vec::with_capacity(LANES);
        loop {
            while lanes.len() < LANES
                && let Some(number) = waiting.pop()
            {
                let blocks = payloads.get(number).map_or(&[][..], |payload| payload.as_chunks().0);
                lanes.push(Lane { number, state: START, blocks });
            }
            match lanes.as_mut_slice() {
                [] => return digests,
                [a, b, c, d] => step(instructions, [a, b, c, d]),
                [a, b, ..] => step(instructions, [a, b]),
                [a] => step(instructions, [a]),
            }
            lanes.retain_mut(|lane| {
                if !lane.blocks.is_empty() {
                    return true;
                }
                let payload = payloads.get(lane.number).copied().unwrap_or_default();
                let digest = end(instructions, lane.state, payload);
                digests.get_mut(lane.number).into_iter().for_each(|place| *place = digest);
                false
            });
        }
    }

    /// As many blocks of each lane as the shortest one has.
    fn step<const N: usize>(instructions: Instructions, lanes: [&mut Lane<'_>; N]) {
        let blocks = lanes.iter().map(|lane| lane.blocks.len()).min().unwrap_or(0);
        let mut states = [[0; 5]; N];
        let mut parts: [&[Block]; N] = [&[]; N];
        for ((lane, state), part) in lanes.iter().zip(&mut states).zip(&mut parts) {
            (*state, *part) = (lane.state, lane.blocks.get(..blocks).unwrap_or_default());
        }
        instructions.compress(&mut states, parts, blocks);
        for (lane, state) in lanes.into_iter().zip(states) {
            lane.state = state;
            lane.blocks = lane.blocks.get(blocks..).unwrap_or_default();
        }
    }

    /// The digest of a payload, when its whole blocks are done: the rest, a bit, zeroes, and its length in bits.
    fn end(instructions: Instructions, state: [u32; 5], payload: &[u8]) -> Sha1Digest {
        let rest = payload.as_chunks::<BLOCK>().1;
        let mut blocks = [0u8; 2 * BLOCK];
        let bytes = if rest.len() < BLOCK - 8 { BLOCK } else { 2 * BLOCK };
        let bits = (payload.len() as u64).wrapping_mul(8).to_be_bytes();
        let last = rest.iter().copied().chain([0x80]).zip(&mut blocks);
        last.for_each(|(byte, place)| *place = byte);
        blocks.iter_mut().skip(bytes - 8).zip(bits).for_each(|(place, byte)| *place = byte);
        let mut states = [state];
        instructions.compress(&mut states, [blocks.as_chunks().0], bytes / BLOCK);
        let mut digest = [0; 20];
        let words = states.as_flattened().iter().flat_map(|word| word.to_be_bytes());
        digest.iter_mut().zip(words).for_each(|(place, byte)| *place = byte);
        digest
    }

    /// Takes the first `blocks` of each lane into its state. FIPS 180-4, 6.1.2, four rounds an instruction.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[expect(clippy::indexing_slicing, reason = "arrays of N and 4; blocks of 64 bytes")]
    #[expect(clippy::needless_range_loop, reason = "the same place of several arrays")]
    fn compress<const N: usize>(states: &mut [[u32; 5]; N], lanes: [&[Block]; N], blocks: usize) {
        // Words are big-endian, and the first one is the highest.
        let turned = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        let zero = _mm_setzero_si128();
        let (mut abcd, mut e) = ([zero; N], [zero; N]);
        for lane in 0..N {
            let [a, b, c, d, last] = states[lane].map(u32::cast_signed);
            abcd[lane] = _mm_set_epi32(a, b, c, d);
            e[lane] = _mm_set_epi32(last, 0, 0, 0);
        }
        for block in 0..blocks {
            let (abcd_before, e_before) = (abcd, e);
            let mut before = [zero; N];
            let mut words = [[zero; 4]; N];
            for lane in 0..N {
                let quarters = lanes[lane][block].as_chunks::<16>().0;
                for quarter in 0..4 {
                    words[lane][quarter] = _mm_shuffle_epi8(load(&quarters[quarter]), turned);
                }
            }
            macro_rules! four_rounds {
                ($($step:literal),+; $function:literal) => {$(
                    for lane in 0..N {
                        let w = &mut words[lane];
                        if $step >= 4 {
                            let mixed = _mm_sha1msg1_epu32(w[$step % 4], w[($step + 1) % 4]);
                            let mixed = _mm_xor_si128(mixed, w[($step + 2) % 4]);
                            w[$step % 4] = _mm_sha1msg2_epu32(mixed, w[($step + 3) % 4]);
                        }
                        let taken = match $step {
                            0 => _mm_add_epi32(e[lane], w[0]),
                            _ => _mm_sha1nexte_epu32(before[lane], w[$step % 4]),
                        };
                        before[lane] = abcd[lane];
                        abcd[lane] = _mm_sha1rnds4_epu32::<$function>(abcd[lane], taken);
                    }
                )+};
            }
            four_rounds!(0, 1, 2, 3, 4; 0);
            four_rounds!(5, 6, 7, 8, 9; 1);
            four_rounds!(10, 11, 12, 13, 14; 2);
            four_rounds!(15, 16, 17, 18, 19; 3);
            for lane in 0..N {
                e[lane] = _mm_sha1nexte_epu32(before[lane], e_before[lane]);
                abcd[lane] = _mm_add_epi32(abcd[lane], abcd_before[lane]);
            }
        }
        for lane in 0..N {
            let words = [
                _mm_extract_epi32::<3>(abcd[lane]),
                _mm_extract_epi32::<2>(abcd[lane]),
                _mm_extract_epi32::<1>(abcd[lane]),
                _mm_extract_epi32::<0>(abcd[lane]),
                _mm_extract_epi32::<3>(e[lane]),
            ];
            states[lane] = words.map(i32::cast_unsigned);
        }
    }

    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: 16 bytes may be read there, and the instruction asks for no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Against the crate, for all lengths around blocks, and for every number of payloads, whichever lane each comes into.
    #[test]
    fn each_is_what_it_is_alone() {
        let lengths = (0..200).chain([1000, 4095, 4096, 100_000, 3]);
        let payloads: Vec<Vec<u8>> = lengths.enumerate().map(|(n, len)| noise(n as u64, len)).collect();
        let all: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
        let alone = |payload: &&[u8]| -> Sha1Digest { Sha1::digest(payload).into() };
        assert_eq!(sha1_of_each(&all), all.iter().map(alone).collect::<Vec<_>>());
        for count in 0..12 {
            for some in all.windows(count.max(1)).step_by(7) {
                let some = &some[..count];
                assert_eq!(sha1_of_each(some), some.iter().map(alone).collect::<Vec<_>>(), "{count}");
            }
        }
    }

    /// The example of FIPS 180-1.
    #[test]
    fn the_standards_example_comes_out() {
        let hex = |digest: &Sha1Digest| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let found: Vec<String> = sha1_of_each(&[&b"abc"[..]; 5]).iter().map(hex).collect();
        assert_eq!(found, ["a9993e364706816aba3e25717850c26c9cd0d89d"; 5]);
    }
}
