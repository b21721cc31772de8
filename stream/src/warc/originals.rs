//! Bodies that later records of an import may refer to: a revisit has only an HTTP head, its body is in an earlier capture.
//!
//! Bounded in bytes; what was not used for longest goes first. All imports of a gateway share one, so that a file may refer to
//! another.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// A capture that others may refer to.
#[derive(Clone, Debug)]
pub(super) struct Original {
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    pub(super) mime: String,
}

/// Bodies below this are copied, so that they do not hold the larger piece of memory they lie in.
const COPIED_BYTES: usize = 64 << 10;
/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 200;

#[derive(Default)]
struct Held {
    by_digest: HashMap<[u8; 20], (u64, Original)>,
    /// When each was used last.
    by_use: BTreeMap<u64, [u8; 20]>,
    uses: u64,
    bytes: usize,
}

/// Captures by the digest of their payload.
#[derive(Clone)]
pub struct Originals {
    held: Arc<Mutex<Held>>,
    bytes_max: usize,
}

impl Originals {
    /// Holds at most so many bytes.
    pub fn new(bytes_max: usize) -> Originals {
        Originals { held: Arc::default(), bytes_max }
    }

    pub(super) fn insert(&self, digest: [u8; 20], original: &Original) {
        let bytes = cost(original);
        if original.body.is_empty() || bytes > self.bytes_max / 4 {
            return;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = &mut *held;
        held.uses += 1;
        if let Some((last, _)) = held.by_digest.get_mut(&digest) {
            held.by_use.remove(last);
            *last = held.uses;
            held.by_use.insert(held.uses, digest);
            return;
        }
        let mut original = original.clone();
        if original.body.len() < COPIED_BYTES {
            original.body = Bytes::copy_from_slice(&original.body);
            original.head = Bytes::copy_from_slice(&original.head);
        }
        held.bytes += bytes;
        held.by_use.insert(held.uses, digest);
        held.by_digest.insert(digest, (held.uses, original));
        while held.bytes > self.bytes_max
            && let Some((_, oldest)) = held.by_use.pop_first()
            && let Some((_, gone)) = held.by_digest.remove(&oldest)
        {
            held.bytes -= cost(&gone);
        }
    }

    pub(super) fn get(&self, digest: &[u8; 20]) -> Option<Original> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.by_digest.get(digest).map(|(_, original)| original.clone())
    }
}

impl std::fmt::Debug for Originals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Originals(at most {} bytes)", self.bytes_max)
    }
}

fn cost(original: &Original) -> usize {
    original.head.len() + original.body.len() + original.mime.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_goes_first() {
        let originals = Originals::new(10_000);
        let original =
            |len: usize| Original { head: Bytes::new(), body: vec![1; len].into(), mime: String::new() };
        for n in 0..4 {
            originals.insert([n; 20], &original(2000));
        }
        originals.insert([0; 20], &original(2000));
        originals.insert([4; 20], &original(2000));
        originals.insert([9; 20], &original(9000));
        let held: Vec<bool> = (0..10).map(|n| originals.get(&[n; 20]).is_some()).collect();
        assert_eq!(held, [true, false, true, true, true, false, false, false, false, false]);
    }
}
