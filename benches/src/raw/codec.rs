//! Compressors alone: each page on its own, as a store would pack it, shared out over threads.

use std::{
    hint::black_box,
    iter,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::measure::touch;

/// How pages are packed.
#[derive(Clone)]
pub enum Codec {
    /// zstd at a level, with a dictionary unless it is empty.
    Zstd {
        /// 1 is fast, 3 the usual.
        level: i32,
        /// As [`train_dictionary`] gives it, or empty.
        dictionary: Vec<u8>,
    },
    /// lz4 blocks.
    Lz4,
}

/// A dictionary of `dictionary_bytes` trained on the samples given.
pub fn train_dictionary(samples: &[&[u8]], dictionary_bytes: usize) -> Vec<u8> {
    zstd::dict::from_samples(samples, dictionary_bytes).expect("enough samples for a dictionary")
}

/// Packs every page and drops the result; returns how many bytes came out.
pub fn compress_all(codec: &Codec, pages: &[&[u8]], threads: usize) -> u64 {
    shared_out(pages, threads, |pages| {
        let mut packer = Packer::new(codec);
        pages.map(|page| black_box(packer.pack(page)).len() as u64).sum()
    })
}

/// Unpacks and touches every page; returns how many bytes came out.
pub fn unpack_all(codec: &Codec, packed: &Packed, threads: usize) -> u64 {
    let bytes_max = packed.pages.iter().map(|page| page.unpacked_bytes).max().unwrap_or(0);
    shared_out(&packed.pages, threads, |pages| {
        let mut out = vec![0; bytes_max];
        let mut unpacker = Unpacker::new(codec);
        let mut unpack = |page: &PackedPage| {
            let out = &mut out[..page.unpacked_bytes];
            unpacker.unpack(&page.bytes, out);
            black_box(touch(out));
            out.len() as u64
        };
        pages.map(&mut unpack).sum()
    })
}

/// Pages packed ahead of time, for [`unpack_all`].
pub struct Packed {
    pages: Vec<PackedPage>,
}

struct PackedPage {
    bytes: Vec<u8>,
    unpacked_bytes: usize,
}

impl Packed {
    /// Packs the pages.
    pub fn new(codec: &Codec, pages: &[&[u8]]) -> Packed {
        let mut packer = Packer::new(codec);
        let pack =
            |page: &&[u8]| PackedPage { bytes: packer.pack(page).to_vec(), unpacked_bytes: page.len() };
        Packed { pages: pages.iter().map(pack).collect() }
    }
}

/// Deals the items out in small shares as threads become free; adds up what `work` returns for each thread.
fn shared_out<'a, T: Sync>(
    items: &'a [T],
    threads: usize,
    work: impl Fn(&mut dyn Iterator<Item = &'a T>) -> u64 + Sync,
) -> u64 {
    const SHARE: usize = 64;
    let next = AtomicUsize::new(0);
    let run = || {
        let shares = iter::from_fn(|| items.chunks(SHARE).nth(next.fetch_add(1, Ordering::Relaxed)));
        work(&mut shares.flatten())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum()
    })
}

/// One thread's compressor and output, both used again for every page.
enum Packer {
    Zstd(zstd::bulk::Compressor<'static>, Vec<u8>),
    Lz4(Vec<u8>),
}

impl Packer {
    fn new(codec: &Codec) -> Packer {
        match codec {
            Codec::Zstd { level, dictionary } => {
                let packer = zstd::bulk::Compressor::with_dictionary(*level, dictionary);
                Packer::Zstd(packer.expect("a zstd context"), Vec::new())
            }
            Codec::Lz4 => Packer::Lz4(Vec::new()),
        }
    }

    fn pack(&mut self, page: &[u8]) -> &[u8] {
        match self {
            Packer::Zstd(packer, out) => {
                out.clear();
                out.reserve(zstd::zstd_safe::compress_bound(page.len()));
                packer.compress_to_buffer(page, out).expect("the buffer is large enough");
                out
            }
            Packer::Lz4(out) => {
                out.resize(lz4_flex::block::get_maximum_output_size(page.len()), 0);
                let len = lz4_flex::block::compress_into(page, out).expect("the buffer is large enough");
                &out[..len]
            }
        }
    }
}

enum Unpacker {
    Zstd(zstd::bulk::Decompressor<'static>),
    Lz4,
}

impl Unpacker {
    fn new(codec: &Codec) -> Unpacker {
        match codec {
            Codec::Zstd { dictionary, .. } => {
                Unpacker::Zstd(zstd::bulk::Decompressor::with_dictionary(dictionary).expect("a zstd context"))
            }
            Codec::Lz4 => Unpacker::Lz4,
        }
    }

    /// `out` has the page's exact length.
    fn unpack(&mut self, packed: &[u8], out: &mut [u8]) {
        let len = match self {
            Unpacker::Zstd(unpacker) => unpacker.decompress_to_buffer(packed, out).expect("we packed it"),
            Unpacker::Lz4 => lz4_flex::block::decompress_into(packed, out).expect("we packed it"),
        };
        assert_eq!(len, out.len(), "unpacked length");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_whole() {
        let page = b"<p>hello</p>".repeat(100);
        let pages = vec![page.as_slice(); 300];
        for codec in [Codec::Lz4, Codec::Zstd { level: 3, dictionary: Vec::new() }] {
            let packed_bytes = compress_all(&codec, &pages, 2);
            assert!(packed_bytes < 300 * 200, "{packed_bytes} bytes packed");
            assert_eq!(unpack_all(&codec, &Packed::new(&codec, &pages), 2), 300 * 1200);
        }
    }
}
