//! A growing set of small numbers, one bit each.

/// A bitmap; bits beyond its end read as 0.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    pub(crate) fn from_words(words: Vec<u64>) -> Self {
        Bitmap { words }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn get(&self, at: usize) -> bool {
        self.words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Sets a bit and returns whether it was clear.
    pub(crate) fn set(&mut self, at: usize) -> bool {
        if self.words.len() <= at / 64 {
            self.words.resize(at / 64 + 1, 0);
        }
        match self.words.get_mut(at / 64) {
            Some(word) => {
                let fresh = *word >> (at % 64) & 1 == 0;
                *word |= 1 << (at % 64);
                fresh
            }
            None => false,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_kept() {
        let mut bits = Bitmap::default();
        assert!(bits.set(130) && !bits.set(130) && bits.set(0));
        let set: Vec<usize> = (0..500).filter(|&i| bits.get(i)).collect();
        assert_eq!(set, [0, 130]);
    }
}
