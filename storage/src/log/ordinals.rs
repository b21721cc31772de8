//! Which ordinals a segment has, relative to its first: all of them, or those that compaction left.

/// The ordinals of a segment's records, by position.
#[derive(Debug)]
pub(crate) enum Ordinals {
    /// 0, 1, 2, …
    Dense(usize),
    /// As bits, with the count of bits before every eighth word: cheap while most are there.
    Bits { words: Vec<u64>, ranks: Vec<u32> },
    /// As a sorted list: cheap when few are left.
    List(Vec<u32>),
}

const WORDS_PER_RANK: usize = 8;

impl Ordinals {
    pub(crate) fn dense(count: usize) -> Ordinals {
        Ordinals::Dense(count)
    }

    /// A sorted list, in whichever form takes less memory.
    pub(crate) fn sparse(list: Vec<u32>) -> Ordinals {
        let range = list.last().map_or(0, |&last| last as usize + 1);
        if range / 28 > list.len() {
            return Ordinals::List(list);
        }
        let mut words = vec![0_u64; range.div_ceil(64)];
        for &ordinal in &list {
            if let Some(word) = words.get_mut(ordinal as usize / 64) {
                *word |= 1 << (ordinal % 64);
            }
        }
        let mut total = 0;
        let ranks = words
            .chunks(WORDS_PER_RANK)
            .map(|chunk| {
                let before = total;
                total += chunk.iter().map(|w| w.count_ones()).sum::<u32>();
                before
            })
            .collect();
        Ordinals::Bits { words, ranks }
    }

    /// How many are below this one.
    pub(crate) fn position_from(&self, relative: u64) -> usize {
        match self {
            Ordinals::Dense(count) => (relative as usize).min(*count),
            Ordinals::List(list) => list.partition_point(|&o| u64::from(o) < relative),
            Ordinals::Bits { words, ranks } => {
                let at = (relative as usize).min(words.len() * 64);
                let chunk = at / 64 / WORDS_PER_RANK;
                let whole = words.iter().take(at / 64).skip(chunk * WORDS_PER_RANK).map(|w| w.count_ones());
                let part = words.get(at / 64).map_or(0, |w| (w & ((1 << (at % 64)) - 1)).count_ones());
                let before = ranks.get(chunk).copied().unwrap_or_else(|| {
                    // Right at the end: the last chunk's rank and its bits.
                    let last = words.chunks(WORDS_PER_RANK).next_back().unwrap_or_default();
                    ranks.last().copied().unwrap_or(0) + last.iter().map(|w| w.count_ones()).sum::<u32>()
                });
                (before + whole.sum::<u32>() + part) as usize
            }
        }
    }

    /// Where this one is, if it is there.
    pub(crate) fn position(&self, relative: u64) -> Option<usize> {
        let there = match self {
            Ordinals::Dense(count) => relative < *count as u64,
            Ordinals::List(list) => return list.binary_search(&u32::try_from(relative).ok()?).ok(),
            Ordinals::Bits { words, .. } => {
                words.get((relative / 64) as usize).is_some_and(|w| w >> (relative % 64) & 1 == 1)
            }
        };
        there.then(|| self.position_from(relative))
    }

    /// The one at this position; past the end, a number above all.
    pub(crate) fn at(&self, position: usize) -> u64 {
        match self {
            Ordinals::Dense(_) => position as u64,
            Ordinals::List(list) => list.get(position).map_or(u64::from(u32::MAX), |&o| o.into()),
            Ordinals::Bits { words, ranks } => {
                let chunk = ranks.partition_point(|&r| r as usize <= position).saturating_sub(1);
                let mut left = position - ranks.get(chunk).copied().unwrap_or(0) as usize;
                for (i, &word) in words.iter().enumerate().skip(chunk * WORDS_PER_RANK) {
                    let ones = word.count_ones() as usize;
                    if left < ones {
                        let mut rest = word;
                        for _ in 0..left {
                            rest &= rest - 1;
                        }
                        return i as u64 * 64 + u64::from(rest.trailing_zeros());
                    }
                    left -= ones;
                }
                words.len() as u64 * 64
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Ordinals::Dense(_) => 0,
            Ordinals::List(list) => list.capacity() * 4,
            Ordinals::Bits { words, ranks } => words.capacity() * 8 + ranks.capacity() * 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_agrees_with_a_plain_list() {
        for step in [1, 2, 3, 17, 64, 100, 511, 3000] {
            let list: Vec<u32> = (0..700).map(|i| i * step + i % step.min(3)).collect();
            let form = Ordinals::sparse(list.clone());
            assert_eq!(matches!(form, Ordinals::List(_)), step > 28, "step {step}");
            let last = u64::from(*list.last().unwrap());
            for relative in (0..last + 70).step_by(1 + last as usize / 5000) {
                let from = list.partition_point(|&o| u64::from(o) < relative);
                assert_eq!(form.position_from(relative), from, "step {step} at {relative}");
                assert_eq!(form.position(relative), list.iter().position(|&o| u64::from(o) == relative));
            }
            for (i, &o) in list.iter().enumerate() {
                assert_eq!(form.at(i), u64::from(o));
            }
            assert!(form.at(700) > last);
        }
    }
}
