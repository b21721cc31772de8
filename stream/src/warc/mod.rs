//! WARC: the format in which the web-archive world hands pages over.
//!
//! ```text
//!   a file ─▶ Reader ─▶ WarcRecord ─▶ Importer ─▶ Capture ─▶ a repository's add
//!   a repository's stream ─▶ Record ─▶ Writer ─▶ one gzip member a record
//! ```
//!
//! Reading takes WARC/1.0 and 1.1 (and 0.17, 0.18, and ARC), plain, gzip or zstd, with bare line feeds, `<…>` around URLs,
//! missing or wrong digests; of damaged files it takes what is readable and says where the rest was. Writing makes WARC/1.1.
//!
//! A page that was imported and is written again has the same HTTP head and body, byte for byte, the same date to the
//! millisecond, and the same payload digest.

mod capture;
mod date;
mod head;
mod http;
mod input;
mod originals;
mod reader;
mod report;
mod unpack;
mod write;

pub use self::capture::{Capture, Importer};
pub use self::head::{Head, Kind};
pub use self::originals::Originals;
pub use self::reader::{BLOCK_BYTES_MAX, Block, Damage, Item, Reader, WarcRecord};
pub use self::report::Report;
pub use self::unpack::Packing;
pub use self::write::{Form, Writer};

/// A longer block is a wrong length, not a block: 1 TiB.
const BLOCK_BYTES_BELIEVED: u64 = 1 << 40;

/// The SHA-1 of some bytes, one piece after the other.
fn sha1<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> [u8; 20] {
    use sha1::Digest;
    let mut hasher = sha1::Sha1::new();
    for piece in pieces {
        hasher.update(piece);
    }
    hasher.finalize().into()
}
