//! Numbers that look random and are always the same (SplitMix64): the world's own, so that no new version of a crate makes
//! another world.

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`; 0 when there is none.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A number from 0 up to, not including, 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How long until the next event of a Poisson process; without end for a rate of 0.
    pub(crate) fn wait(&mut self, rate: f64) -> f64 {
        -(1.0 - self.fraction()).ln() / rate
    }

    /// One of some words.
    pub(crate) fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words.get(self.below(words.len() as u64) as usize).copied().unwrap_or_default()
    }
}
