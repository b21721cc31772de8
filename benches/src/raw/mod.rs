//! What the machine can do at best with the same bytes: disk, memory and compressors without any store around them.
//!
//! The raw file is the pages' values end to end, in the order they are added; [`Extent`]s say where each one is.

mod codec;
mod read;
mod write;

pub use codec::{Codec, Packed, compress_all, train_dictionary, unpack_all};
pub use read::{
    Extent, map_file, random_reads, random_reads_io_uring, scan_map_checked, scan_map_touched,
    sequential_read,
};
pub use write::{WriteMode, append};

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub enum ReadMode {
    /// Through the page cache, with the kernel's read-ahead.
    Buffered,
    /// O_DIRECT in blocks of `chunk_bytes`, `in_flight` at a time.
    Direct {
        /// Bytes per read; a multiple of 4096.
        chunk_bytes: usize,
        /// Threads, each with one read under way.
        in_flight: usize,
    },
}

/// Page-aligned memory, as O_DIRECT wants it.
fn aligned(bytes: usize) -> memmap2::MmapMut {
    memmap2::MmapMut::map_anon(bytes).expect("memory for a buffer")
}
