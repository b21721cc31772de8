//! Bodies packed and unpacked: plain, lz4, zstd with or without a dictionary, or deflate as they came.
//!
//! A dictionary is immutable and named by its digest, the first 8 bytes of its BLAKE3 hash. Records carry
//! the digest, so a dictionary must reach a store (and its disk) before the first record that uses it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use zstd::zstd_safe::{CCtx, CDict, DCtx, DDict, compress_bound};

use crate::error::{Result, StorageError};
use crate::inflate::Inflater;
use crate::page::Deflated;

/// How a body is packed, as it stands in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// As received.
    Plain = 0,
    /// One lz4 block.
    Lz4 = 1,
    /// One zstd frame.
    Zstd = 2,
    /// How many bytes come out before the body, 4, and behind it, 4; then a deflate stream.
    Deflate = 3,
}

/// Bytes before the deflate stream.
pub(crate) const AROUND_BYTES: usize = 8;
/// Bytes that come out before and behind a body, at most: they are unpacked with it every time.
const NEAR_BYTES_MAX: u64 = 256 << 10;
/// Memory to unpack in that a thread keeps.
const SCRATCH_BYTES_MAX: usize = 4 << 20;

impl Codec {
    /// The most that so many bytes can unpack to: lz4 writes a byte for at most 255, zstd four bytes for a block of 128 KiB, deflate two
    /// bits for at most 258.
    fn unpacked_max(self, stored: usize) -> u64 {
        let stored = stored as u64;
        match self {
            Codec::Plain => stored,
            Codec::Lz4 => stored * 255,
            Codec::Zstd => (stored / 4 + 1) * (128 << 10),
            Codec::Deflate => stored * 1032,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Codec> {
        match byte {
            0 => Some(Codec::Plain),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Deflate),
            _ => None,
        }
    }
}

/// How a store packs the bodies it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Store bodies as received.
    None,
    /// lz4: least CPU.
    Lz4,
    /// zstd at this level (1 to 19), with the store's dictionary once it has one.
    Zstd(i32),
}

impl Default for Compression {
    /// zstd, level 1: with a dictionary it is smaller than gzip and several times as fast (ARCHITECTURE.md
    /// has the measurement).
    fn default() -> Self {
        Compression::Zstd(1)
    }
}

/// A trained dictionary, ready to pack and unpack with.
pub struct Dictionary {
    digest: u64,
    content: Vec<u8>,
    unpack: DDict<'static>,
    pack: CDict<'static>,
    level: i32,
}

impl Dictionary {
    /// Prepares a dictionary for packing at `level` and for unpacking.
    pub fn new(content: Vec<u8>, level: i32) -> Dictionary {
        let (unpack, pack) = (DDict::create(&content), CDict::create(&content, level));
        Dictionary { digest: Self::digest_of(&content), content, unpack, pack, level }
    }

    /// Trains a dictionary of at most `bytes_max` bytes on sample bodies.
    ///
    /// # Errors
    /// When there are too few samples to learn from.
    pub fn train(samples: &[&[u8]], bytes_max: usize, level: i32) -> Result<Dictionary> {
        match zstd::dict::from_samples(samples, bytes_max) {
            Ok(content) => Ok(Dictionary::new(content, level)),
            Err(e) => Err(StorageError::Unpack { url: "dictionary samples".into(), what: e.to_string() }),
        }
    }

    /// The digest that names dictionary content.
    pub fn digest_of(content: &[u8]) -> u64 {
        let hash = blake3::hash(content);
        hash.as_bytes().first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    }

    /// The digest records name it by.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Its bytes.
    pub fn content(&self) -> &[u8] {
        &self.content
    }
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dictionary({:016x}, {} bytes, level {})", self.digest, self.content.len(), self.level)
    }
}

/// The dictionaries known to a store, shared by all its readers.
#[derive(Clone, Default)]
pub struct Dictionaries {
    known: Arc<ArcSwap<BTreeMap<u64, Arc<Dictionary>>>>,
}

impl Dictionaries {
    /// Makes a dictionary known.
    pub fn insert(&self, dictionary: Arc<Dictionary>) {
        self.known.rcu(|known| {
            let mut known = BTreeMap::clone(known);
            known.insert(dictionary.digest, dictionary.clone());
            known
        });
    }

    /// The dictionary with this digest.
    pub fn get(&self, digest: u64) -> Option<Arc<Dictionary>> {
        self.known.load().get(&digest).cloned()
    }

    /// Whether a record that names this digest, or none, can be unpacked.
    pub(crate) fn has(&self, digest: u64) -> bool {
        digest == 0 || self.known.load().contains_key(&digest)
    }

    /// All dictionaries, by digest.
    pub fn all(&self) -> Vec<Arc<Dictionary>> {
        self.known.load().values().cloned().collect()
    }

    /// Unpacks `stored` into `out`, which must come out as `len` bytes.
    pub(crate) fn unpack(
        &self,
        codec: Codec,
        dictionary: u64,
        stored: &[u8],
        len: usize,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), UnpackError> {
        out.clear();
        // A length that no packed body of this size can have is not worth the memory it asks for.
        if len as u64 > codec.unpacked_max(stored.len()) {
            return Err(UnpackError::Broken(format!("{} bytes cannot unpack to {len}", stored.len())));
        }
        match codec {
            Codec::Plain => out.extend_from_slice(stored),
            Codec::Lz4 => {
                out.resize(len, 0);
                let n = lz4_flex::block::decompress_into(stored, out)
                    .map_err(|e| UnpackError::Broken(e.to_string()))?;
                out.truncate(n);
            }
            Codec::Zstd => {
                out.reserve_exact(len);
                let known = self.known.load();
                let dictionary = match dictionary {
                    0 => None,
                    digest => Some(known.get(&digest).ok_or(UnpackError::Dictionary(digest))?),
                };
                UNPACKER
                    .with_borrow_mut(|context| match dictionary {
                        Some(d) => context.decompress_using_ddict(out, stored, &d.unpack),
                        None => context.decompress(out, stored),
                    })
                    .map_err(|code| UnpackError::Broken(zstd::zstd_safe::get_error_name(code).into()))?;
            }
            Codec::Deflate => inflate(stored, len, out)?,
        }
        if out.len() != len {
            return Err(UnpackError::Broken(format!("{} bytes came out, {len} were expected", out.len())));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Dictionaries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

/// Why a body does not unpack, before it is known whose body it is.
#[derive(Debug, PartialEq)]
pub(crate) enum UnpackError {
    Dictionary(u64),
    Broken(String),
}

impl UnpackError {
    pub(crate) fn of_page(self, url: &str) -> StorageError {
        match self {
            UnpackError::Dictionary(digest) => StorageError::UnknownDictionary { digest },
            UnpackError::Broken(what) => StorageError::Unpack { url: url.into(), what },
        }
    }
}

thread_local! {
    static PACKER: RefCell<(CCtx<'static>, Vec<u8>)> = RefCell::new((CCtx::create(), Vec::new()));
    static UNPACKER: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
    static INFLATER: RefCell<(Inflater, Vec<u8>)> = RefCell::new((Inflater::new(), Vec::new()));
}

/// Unpacks a body that was kept as it came.
fn inflate(stored: &[u8], len: usize, out: &mut Vec<u8>) -> std::result::Result<(), UnpackError> {
    let around = stored.split_first_chunk::<AROUND_BYTES>();
    let (around, stream) = around.ok_or_else(|| UnpackError::Broken("it is cut short".into()))?;
    let [b0, b1, b2, b3, e0, e1, e2, e3] = *around;
    let (before, behind) = (u32::from_le_bytes([b0, b1, b2, b3]), u32::from_le_bytes([e0, e1, e2, e3]));
    inflate_within((before, behind), stream, len, out)
}

/// A body that came packed, unpacked.
pub(crate) fn inflated(deflated: &Deflated<'_>) -> std::result::Result<Vec<u8>, UnpackError> {
    let mut out = Vec::new();
    let around = (deflated.before, deflated.behind);
    inflate_within(around, deflated.stream, deflated.len as usize, &mut out)?;
    Ok(out)
}

fn inflate_within(
    (before, behind): (u32, u32),
    stream: &[u8],
    len: usize,
    out: &mut Vec<u8>,
) -> std::result::Result<(), UnpackError> {
    let broken = |what: String| UnpackError::Broken(what);
    if !is_near(before, behind) {
        return Err(broken(format!("{before} bytes before it and {behind} behind it are too many")));
    }
    let before = before as usize;
    let all = before + len + behind as usize;
    if all as u64 > Codec::Deflate.unpacked_max(stream.len()) {
        return Err(broken(format!("{} bytes cannot unpack to {all}", stream.len())));
    }
    INFLATER.with_borrow_mut(|(inflater, scratch)| {
        if scratch.len() < all {
            scratch.resize(all, 0);
        }
        let room = scratch.get_mut(..all).unwrap_or_default();
        let (_, written) = inflater.inflate(stream, room).map_err(|e| broken(e.to_string()))?;
        if written != all {
            return Err(broken(format!("{written} bytes came out, {all} were expected")));
        }
        // No more memory than it needs: whoever keeps it counts what is in it.
        out.reserve_exact(len);
        out.extend_from_slice(room.get(before..before + len).unwrap_or_default());
        if scratch.len() > SCRATCH_BYTES_MAX {
            *scratch = Vec::new();
        }
        Ok(())
    })
}

/// Whether no more comes with a body than what may be in a file's record around it.
fn is_near(before: u32, behind: u32) -> bool {
    u64::from(before) + u64::from(behind) <= NEAR_BYTES_MAX
}

/// Whether a body stays as it came packed: it is smaller so, and not much else is packed with it.
pub(crate) fn is_kept(deflated: &Deflated<'_>) -> bool {
    deflated.stream.len() + AROUND_BYTES < deflated.len as usize && is_near(deflated.before, deflated.behind)
}

/// What stands in a record before a stream that stays as it came packed.
pub(crate) fn around(deflated: &Deflated<'_>) -> [u8; AROUND_BYTES] {
    let mut around = [0; AROUND_BYTES];
    let (before, behind) = around.split_at_mut(AROUND_BYTES / 2);
    before.copy_from_slice(&deflated.before.to_le_bytes());
    behind.copy_from_slice(&deflated.behind.to_le_bytes());
    around
}

/// Packs `body` and hands codec, dictionary digest and packed bytes to `then`. A body that does not shrink
/// stays plain.
pub(crate) fn pack<R>(
    compression: Compression,
    dictionary: Option<&Dictionary>,
    body: &[u8],
    then: impl FnOnce(Codec, u64, &[u8]) -> R,
) -> R {
    if compression == Compression::None || body.len() < 64 {
        return then(Codec::Plain, 0, body);
    }
    PACKER.with_borrow_mut(|(context, scratch)| {
        scratch.clear();
        let (codec, digest, packed) = match compression {
            Compression::None => (Codec::Plain, 0, None),
            Compression::Lz4 => {
                scratch.resize(lz4_flex::block::get_maximum_output_size(body.len()), 0);
                (Codec::Lz4, 0, lz4_flex::block::compress_into(body, scratch).ok())
            }
            Compression::Zstd(level) => {
                scratch.reserve(compress_bound(body.len()));
                match dictionary {
                    Some(d) if d.level == level => {
                        (Codec::Zstd, d.digest, context.compress_using_cdict(scratch, body, &d.pack).ok())
                    }
                    _ => (Codec::Zstd, 0, context.compress(scratch, body, level).ok()),
                }
            }
        };
        match packed.and_then(|n| scratch.get(..n)) {
            Some(packed) if packed.len() < body.len() => then(codec, digest, packed),
            _ => then(Codec::Plain, 0, body),
        }
    })
}

/// Packs an HTTP head with a dictionary, if that makes it smaller.
pub(crate) fn pack_head(dictionary: &Dictionary, head: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    out.reserve(compress_bound(head.len()));
    let packed =
        PACKER.with_borrow_mut(|(context, _)| context.compress_using_cdict(out, head, &dictionary.pack));
    packed.is_ok() && out.len() + 4 < head.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Vec<Vec<u8>> {
        (0..200)
            .map(|i| {
                format!(
                    "<html><head><title>page {i}</title></head><body>{}</body></html>",
                    "some words and <b>tags</b> ".repeat(20 + i)
                )
                .into_bytes()
            })
            .collect()
    }

    #[test]
    fn bodies_come_back_from_every_codec() {
        let bodies = bodies();
        let samples: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let dictionary = Arc::new(Dictionary::train(&samples, 4096, 3).unwrap());
        let known = Dictionaries::default();
        known.insert(dictionary.clone());
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3)] {
            for with in [None, Some(&*dictionary)] {
                for body in &bodies {
                    let (codec, digest, stored) = pack(compression, with, body, |c, d, s| (c, d, s.to_vec()));
                    assert_eq!(digest != 0, with.is_some() && compression == Compression::Zstd(3));
                    let mut out = Vec::new();
                    known.unpack(codec, digest, &stored, body.len(), &mut out).unwrap();
                    assert_eq!(&out, body);
                }
            }
        }
    }

    fn deflated(plain: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(plain).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn what_came_packed_comes_back_without_what_was_around_it() {
        let known = Dictionaries::default();
        for body in bodies() {
            for (before, behind) in
                [("", ""), ("", "\r\n\r\n"), ("WARC/1.0\r\n\r\n", ""), ("a head", "a tail")]
            {
                let stream = deflated(&[before.as_bytes(), &body, behind.as_bytes()].concat());
                let (before, behind) = (before.len() as u32, behind.len() as u32);
                let deflated = Deflated { stream: &stream, before, behind, len: body.len() as u32 };
                assert!(is_kept(&deflated));
                let stored = [&around(&deflated)[..], &stream].concat();
                assert_eq!(inflated(&deflated).unwrap(), body);
                let mut out = Vec::new();
                known.unpack(Codec::Deflate, 0, &stored, body.len(), &mut out).unwrap();
                assert_eq!(out, body);
                assert_eq!(out.capacity(), out.len(), "no memory that nobody counts");
            }
        }
        // Much comes with it.
        let (stream, behind) = (deflated(&vec![b'\n'; 1 << 20]), (1 << 20) - 20_000);
        assert!(!is_kept(&Deflated { stream: &stream, before: 0, behind, len: 20_000 }));
        // It is no smaller than what is in it.
        let stream = deflated(b"short");
        assert!(!is_kept(&Deflated { stream: &stream, before: 0, behind: 0, len: 5 }));
    }

    #[test]
    fn what_came_packed_and_is_not_what_it_should_be_is_an_error() {
        let known = Dictionaries::default();
        let body = bodies().remove(100);
        let stream = deflated(&body);
        let around = |before: u32, behind: u32| [before.to_le_bytes(), behind.to_le_bytes()].concat();
        let stored = |before: u32, stream: &[u8]| [&around(before, 0), stream].concat();
        let mut flipped = stream.clone();
        flipped[0] = 0xff; // a kind of block that there is none of
        for (what, stored) in [
            ("it begins too late", stored(1, &stream)),
            ("it begins nowhere", stored(u32::MAX, &stream)),
            ("far too much is said to be behind it", [&around(0, u32::MAX), &stream[..]].concat()),
            ("there is more behind it", [&around(0, 1), &stream[..]].concat()),
            ("its stream is cut", stored(0, &stream[..stream.len() / 2])),
            ("its stream is none", stored(0, &flipped)),
            ("there is no stream", stored(0, b"")),
            ("there is nothing", b"\0\0".to_vec()),
        ] {
            let mut out = Vec::new();
            let unpacked = known.unpack(Codec::Deflate, 0, &stored, body.len(), &mut out);
            assert!(matches!(unpacked, Err(UnpackError::Broken(_))), "{what}");
            assert!(out.capacity() < 1 << 20, "{what}");
        }
    }

    #[test]
    fn what_does_not_shrink_stays_plain() {
        let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(4096);
        assert_eq!(pack(Compression::Zstd(1), None, &noise, |c, _, s| (c, s.len())), (Codec::Plain, 4096));
    }

    trait TakeBytes {
        fn take_bytes(self, n: usize) -> Vec<u8>;
    }
    impl TakeBytes for blake3::OutputReader {
        fn take_bytes(mut self, n: usize) -> Vec<u8> {
            let mut out = vec![0; n];
            self.fill(&mut out);
            out
        }
    }

    #[test]
    fn rubbish_and_wrong_lengths_are_errors() {
        let known = Dictionaries::default();
        let mut out = Vec::new();
        for codec in [Codec::Lz4, Codec::Zstd] {
            assert!(known.unpack(codec, 0, b"rubbish that is no frame", 100, &mut out).is_err());
        }
        let packed = pack(Compression::Zstd(1), None, &[b'a'; 5000], |_, _, s| s.to_vec());
        assert!(known.unpack(Codec::Zstd, 0, &packed, 4999, &mut out).is_err());
        assert!(known.unpack(Codec::Zstd, 0, &packed, 5001, &mut out).is_err());
        assert_eq!(known.unpack(Codec::Zstd, 77, &packed, 5000, &mut out), Err(UnpackError::Dictionary(77)));
        // A length that cannot be true costs no memory.
        let mut out = Vec::new();
        for codec in [Codec::Lz4, Codec::Zstd, Codec::Deflate] {
            assert!(known.unpack(codec, 0, b"few", 1 << 30, &mut out).is_err());
        }
        assert!(out.capacity() < 1 << 20);
    }
}
