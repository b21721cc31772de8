//! Bodies that later records of an import may refer to: a revisit has only an HTTP head, its body is in an earlier capture.
//!
//! Bounded in bytes; what was not used for longest goes first. All imports of a gateway share one, so that a file may refer to
//! another. Where a capture is a gzip member of its own, that member is held: it has a fifth of the bytes, and is unpacked when
//! a revisit asks for it, which few captures are.
//!
//! Found by the SHA-1 of their payload, which is what a repository keeps, or by what else a revisit may tell of them
//! ([`Clue`]): the SHA-256 that their own record declares, or their URL and date.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::digest::{http_parts, sha256};
use super::head::Kind;
use super::packed::{Packed, Place};
use super::reader::{Block, Item, Reader};

/// A capture that others may refer to.
#[derive(Clone, Debug)]
pub struct Original {
    /// Its HTTP head.
    pub head: Bytes,
    /// Its body.
    pub body: Bytes,
    /// Its MIME type.
    pub mime: String,
    /// The SHA-1 of its payload.
    pub payload_digest: [u8; 20],
    /// When it was fetched.
    pub fetched_at_ms: u64,
}

/// What a capture may be found by, beside the SHA-1 of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Clue([u8; 32]);

impl Clue {
    /// The SHA-256 of a payload.
    pub(super) fn sha256(digest: [u8; 32]) -> Clue {
        Clue(digest)
    }

    /// A URL and a date. To the second: `WARC-Refers-To-Date` is often cut where `WARC-Date` is not.
    pub(super) fn place(url: &str, fetched_at_ms: u64) -> Clue {
        Clue(sha256([url.as_bytes(), b"\0", &(fetched_at_ms / 1000).to_le_bytes()]))
    }
}

/// Bodies below this are copied, so that they do not hold the larger piece of memory they lie in.
const COPIED_BYTES: usize = 64 << 10;
/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 200;
/// What a clue costs.
const CLUE_BYTES: usize = 130;
/// Captures of one payload that are told apart by where they are from; popular payloads, such as empty scripts, have many.
const CLUES_MAX: usize = 16;

struct Entry {
    used: u64,
    /// Without head and body if it has a member.
    original: Original,
    /// The gzip member whose record it is.
    member: Option<Place>,
    clues: Vec<Clue>,
}

impl Entry {
    /// Beside its member, if it has one.
    fn cost(&self) -> usize {
        cost(&self.original, None)
    }
}

#[derive(Default)]
struct Held {
    members: Packed,
    by_digest: HashMap<[u8; 20], Entry>,
    by_clue: HashMap<Clue, [u8; 20]>,
    /// When each was used last.
    by_use: BTreeMap<u64, [u8; 20]>,
    uses: u64,
    /// Without those of members.
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

    /// Holds a capture, to be found by its digest and by these; `member` is what it came in, if it is alone in it.
    pub(super) fn insert(
        &self,
        original: &Original,
        member: Option<Bytes>,
        clues: impl IntoIterator<Item = Clue>,
    ) {
        if original.body.is_empty() || cost(original, member.as_ref()) > self.bytes_max / 4 {
            return;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(original, member, clues);
        while held.bytes + held.members.bytes() > self.bytes_max && held.forget_oldest() {}
    }

    pub(super) fn get(&self, digest: &[u8; 20]) -> Option<Original> {
        self.unpacked(|_| Some(*digest))
    }

    pub(super) fn find(&self, clue: &Clue) -> Option<Original> {
        self.unpacked(|held| held.by_clue.get(clue).copied())
    }

    fn unpacked(&self, digest: impl FnOnce(&Held) -> Option<[u8; 20]>) -> Option<Original> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = held.by_digest.get(&digest(&held)?)?;
        let original = entry.original.clone();
        let Some(member) = &entry.member else { return Some(original) };
        let member = held.members.get(member)?;
        drop(held);
        let (head, body) = parts(&member)?;
        Some(Original { head, body, ..original })
    }
}

impl Held {
    fn insert(&mut self, original: &Original, member: Option<Bytes>, clues: impl IntoIterator<Item = Clue>) {
        let digest = original.payload_digest;
        self.uses += 1;
        let used = self.uses;
        self.by_use.insert(used, digest);
        let entry = match self.by_digest.entry(digest) {
            hash_map::Entry::Occupied(entry) => {
                let entry = entry.into_mut();
                self.by_use.remove(&entry.used);
                entry.used = used;
                entry.member.iter_mut().for_each(|member| self.members.renew(member));
                entry
            }
            hash_map::Entry::Vacant(place) => {
                let mut original = original.clone();
                // It lies in a larger piece of memory, too.
                let member = member.map(|member| self.members.hold(&member));
                if member.is_some() {
                    (original.head, original.body) = (Bytes::new(), Bytes::new());
                } else if original.body.len() < COPIED_BYTES {
                    original.body = Bytes::copy_from_slice(&original.body);
                    original.head = Bytes::copy_from_slice(&original.head);
                }
                let entry = Entry { used, original, member, clues: Vec::new() };
                self.bytes += entry.cost();
                place.insert(entry)
            }
        };
        for clue in clues {
            // The last that said so counts; a payload that it was of before goes without it.
            if entry.clues.len() < CLUES_MAX && !entry.clues.contains(&clue) {
                entry.clues.push(clue);
                self.by_clue.insert(clue, digest);
                self.bytes += CLUE_BYTES;
            }
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((_, oldest)) = self.by_use.pop_first() else { return false };
        let Some(gone) = self.by_digest.remove(&oldest) else { return false };
        self.bytes -= gone.cost() + gone.clues.len() * CLUE_BYTES;
        gone.member.into_iter().for_each(|member| self.members.let_go(member));
        for clue in gone.clues {
            if self.by_clue.get(&clue) == Some(&oldest) {
                self.by_clue.remove(&clue);
            }
        }
        true
    }
}

impl std::fmt::Debug for Originals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Originals(at most {} bytes)", self.bytes_max)
    }
}

fn cost(original: &Original, member: Option<&Bytes>) -> usize {
    let content = member.map_or(original.head.len() + original.body.len(), Bytes::len);
    content + original.mime.len() + ENTRY_BYTES
}

/// HTTP head and body of the record that a member is.
fn parts(member: &[u8]) -> Option<(Bytes, Bytes)> {
    let Item::Record(record) = Reader::new(member).ok()?.next().ok()?? else { return None };
    let (kind, Block::Whole(block)) = (record.kind(), record.block) else { return None };
    Some(if kind == Kind::Response { http_parts(block) } else { (Bytes::new(), block) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(n: u8, len: usize) -> Original {
        let (head, mime) = (Bytes::new(), String::new());
        Original { head, body: vec![1; len].into(), mime, payload_digest: [n; 20], fetched_at_ms: 0 }
    }

    #[test]
    fn what_was_not_used_goes_first() {
        let originals = Originals::new(10_000);
        for n in [0, 1, 2, 3, 0, 4] {
            originals.insert(&original(n, 2000), None, []);
        }
        originals.insert(&original(9, 9000), None, []);
        let held: Vec<bool> = (0..10).map(|n| originals.get(&[n; 20]).is_some()).collect();
        assert_eq!(held, [true, false, true, true, true, false, false, false, false, false]);
    }

    #[test]
    fn clues_find_a_capture_while_it_is_held() {
        let originals = Originals::new(10_000);
        let at = |n: u64| Clue::place("http://h/", n * 1000);
        originals.insert(&original(0, 2000), None, [at(0), Clue::sha256([7; 32])]);
        originals.insert(&original(1, 2000), None, [at(1)]);
        let digest = |clue: &Clue| originals.find(clue).map(|found| found.payload_digest[0]);
        assert_eq!(
            [at(0), at(1), at(2), Clue::sha256([7; 32])].map(|c| digest(&c)),
            [Some(0), Some(1), None, Some(0)]
        );
        assert_eq!(digest(&Clue::place("http://h/", 999)), Some(0), "of the same second");
        (2..6).for_each(|n| originals.insert(&original(n, 2000), None, (0..100).map(at)));
        assert_eq!(digest(&Clue::sha256([7; 32])), None);
        let held = originals.held.lock().unwrap();
        let clues: usize = held.by_digest.values().map(|entry| entry.clues.len()).sum();
        let bytes: usize = held.by_digest.values().map(Entry::cost).sum();
        assert_eq!(held.bytes, bytes + clues * CLUE_BYTES);
        assert!(held.bytes <= 10_000 && held.by_clue.len() <= clues, "{} bytes, {clues} clues", held.bytes);
    }

    #[test]
    fn what_is_held_as_a_member_is_unpacked_for_who_asks() {
        use crate::warc::{Form, Importer, Writer, read_ahead};
        let (mut writer, mut file) = (Writer::new(Form::Gzip), Vec::new());
        let body = b"the same again ".repeat(1000);
        writer.resource("http://h/", 5000, "text/plain", &body, &mut file);
        let originals = Originals::new(100_000);
        let mut digest = None;
        let (_, taken) = read_ahead(&file[..], &mut Importer::new(originals.clone()), |capture| {
            digest = Some(capture.payload_digest);
            Ok::<_, ()>(())
        });
        taken.unwrap();
        let held = originals.held.lock().unwrap();
        let bytes = held.bytes + held.members.bytes();
        assert!(bytes < body.len() / 4 && held.members.bytes() > 0, "{bytes} bytes are held");
        drop(held);
        let by_digest = originals.get(&digest.unwrap()).unwrap();
        let by_place = originals.find(&Clue::place("http://h/", 5000)).unwrap();
        for found in [by_digest, by_place] {
            assert!(found.body == body && found.head.is_empty());
            assert_eq!((&found.mime[..], found.fetched_at_ms), ("text/plain", 5000));
        }
    }
}
