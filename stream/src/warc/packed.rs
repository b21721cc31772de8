//! Packed bytes of many captures, end to end in chunks of memory: an import holds most of what it has read for a while, and a piece
//! of memory for each capture would cost more than its copy.
//!
//! ```text
//!   chunk 7  [ member member member …        ]   filled; goes when the last of its members is let go
//!   chunk 8  [ member member │ room          ]   being filled
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;

/// Bytes of a chunk. What has more than a quarter of it has memory of its own.
const CHUNK_BYTES: usize = 1 << 20;
const OWN_BYTES: usize = CHUNK_BYTES / 4;

/// Where something is held.
pub(super) enum Place {
    Chunk { number: u64, at: usize, len: usize },
    Own(Bytes),
}

#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// How many of its members are held.
    held: usize,
}

/// What is held.
#[derive(Default)]
pub(super) struct Packed {
    /// By their numbers; the last one is being filled.
    chunks: BTreeMap<u64, Chunk>,
    /// Memory of a chunk that has gone, for the next one.
    spare: Vec<u8>,
    bytes: usize,
}

impl Packed {
    /// Bytes that are held: of chunks all that was put in, as long as they stay.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds a copy of these bytes.
    pub(super) fn hold(&mut self, bytes: &[u8]) -> Place {
        self.bytes += bytes.len();
        if bytes.len() > OWN_BYTES {
            return Place::Own(Bytes::copy_from_slice(bytes));
        }
        let last = self.chunks.last_key_value().map(|(number, chunk)| (*number, chunk.bytes.len()));
        let number = match last {
            Some((number, len)) if len + bytes.len() <= CHUNK_BYTES => number,
            last => last.map_or(0, |(number, _)| number + 1),
        };
        let spare = &mut self.spare;
        let chunk = self.chunks.entry(number).or_insert_with(|| {
            let mut memory = std::mem::take(spare);
            memory.reserve_exact(CHUNK_BYTES);
            Chunk { bytes: memory, held: 0 }
        });
        let at = chunk.bytes.len();
        chunk.bytes.extend_from_slice(bytes);
        chunk.held += 1;
        Place::Chunk { number, at, len: bytes.len() }
    }

    /// What is held there.
    pub(super) fn get(&self, place: &Place) -> Option<Bytes> {
        match place {
            Place::Own(bytes) => Some(bytes.clone()),
            Place::Chunk { number, at, len } => {
                self.chunks.get(number)?.bytes.get(*at..*at + *len).map(Bytes::copy_from_slice)
            }
        }
    }

    /// Holds it among the newest: a chunk then goes when all that is in it has not been asked for in a long time.
    pub(super) fn renew(&mut self, place: &mut Place) {
        let newest = self.chunks.last_key_value().map(|(number, _)| *number);
        if matches!(place, Place::Chunk { number, .. } if Some(*number) != newest)
            && let Some(bytes) = self.get(place)
        {
            let old = std::mem::replace(place, self.hold(&bytes));
            self.let_go(old);
        }
    }

    /// Holds it no more.
    pub(super) fn let_go(&mut self, place: Place) {
        let number = match place {
            Place::Own(bytes) => {
                self.bytes -= bytes.len();
                return;
            }
            Place::Chunk { number, .. } => number,
        };
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        chunk.held -= 1;
        if chunk.held > 0 {
            return;
        }
        if let Some(chunk) = self.chunks.remove(&number) {
            self.bytes -= chunk.bytes.len();
            self.spare = chunk.bytes;
            self.spare.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_there_and_chunks_go_with_their_last_member() {
        let mut packed = Packed::default();
        let bytes = |n: usize| vec![n as u8; 1000 * (n % 400 + 1)];
        let places: Vec<(usize, Place)> = (0..1200).map(|n| (n, packed.hold(&bytes(n)))).collect();
        let held = |packed: &Packed| packed.chunks.values().map(|c| c.bytes.len()).sum::<usize>();
        assert!(packed.chunks.len() > 50 && packed.chunks.values().all(|c| c.bytes.len() <= CHUNK_BYTES));
        let own = |n: &usize| bytes(*n).len() > OWN_BYTES;
        let (mut left, mut own_bytes) = (Vec::new(), 0);
        for (n, place) in places {
            assert_eq!(packed.get(&place).unwrap(), bytes(n));
            match n % 7 {
                0 => left.push((n, place)),
                _ => packed.let_go(place),
            }
        }
        for (n, place) in &left {
            assert_eq!(packed.get(place).unwrap(), bytes(*n));
            own_bytes += if own(n) { bytes(*n).len() } else { 0 };
        }
        assert_eq!(packed.bytes(), held(&packed) + own_bytes);
        left.into_iter().for_each(|(_, place)| packed.let_go(place));
        assert_eq!((packed.bytes(), packed.chunks.len()), (0, 0));
        assert_eq!(packed.spare.capacity(), CHUNK_BYTES);
        let mut place = packed.hold(b"again");
        assert_eq!(packed.get(&place).unwrap(), "again");
        // What is used again moves on, and takes nothing along.
        for n in 0..30 {
            let others: Vec<Place> = (0..20).map(|_| packed.hold(&[n; 100_000])).collect();
            packed.renew(&mut place);
            assert_eq!(packed.get(&place).unwrap(), "again");
            others.into_iter().for_each(|other| packed.let_go(other));
            assert!(packed.chunks.len() <= 1, "{} chunks", packed.chunks.len());
        }
    }
}
