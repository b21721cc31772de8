//! Raw reads: the whole file in order, or given extents at random, warm or cold as the caller arranged.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    hint::black_box,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use io_uring::{IoUring, opcode, types::Fd};

use super::{ReadMode, aligned};
use crate::measure::touch;

/// Where one page's value is in the raw file.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
}

/// Reads and touches the whole file; returns its length.
pub fn sequential_read(path: &Path, mode: ReadMode) -> io::Result<u64> {
    let len = std::fs::metadata(path)?.len();
    let (chunk_bytes, in_flight, flags) = match mode {
        ReadMode::Buffered => (1 << 20, 1, 0),
        ReadMode::Direct { chunk_bytes, in_flight } => (chunk_bytes, in_flight, libc::O_DIRECT),
    };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let next = AtomicU64::new(0);
    let read_chunks = || -> io::Result<()> {
        let mut buffer = aligned(chunk_bytes);
        // Huge pages, as the stores' read-ahead has them: fewer page faults and fewer pages to pin. Only a hint.
        let _ = buffer.advise(memmap2::Advice::HugePage);
        loop {
            let offset = next.fetch_add(chunk_bytes as u64, Ordering::Relaxed);
            if offset >= len {
                return Ok(());
            }
            let mut filled = 0;
            while filled < chunk_bytes {
                let n = file.read_at(&mut buffer[filled..], offset + filled as u64)?;
                filled += n;
                // The end of the file; O_DIRECT refuses to go on from an odd length.
                if n == 0 || offset + filled as u64 >= len {
                    break;
                }
            }
            black_box(touch(&buffer[..filled]));
        }
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..in_flight).map(|_| scope.spawn(read_chunks)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader"))
    })?;
    Ok(len)
}

/// Reads and touches each extent with one `pread`, the list shared out over `threads`. `direct` reads the blocks
/// around it past the page cache.
pub fn random_reads(path: &Path, extents: &[Extent], threads: usize, direct: bool) -> io::Result<()> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let read = |extents: &[Extent]| -> io::Result<()> {
        let mut buffer = aligned(buffer_bytes(extents));
        for &extent in extents {
            let (offset, len, skip) = if direct { blocks(extent) } else { (extent.offset, extent.len, 0) };
            let mut filled = 0;
            while filled < skip + extent.len {
                let n = file.read_at(&mut buffer[filled..len], offset + filled as u64)?;
                assert!(n > 0, "extent beyond the end of the raw file");
                filled += n;
            }
            black_box(touch(&buffer[skip..skip + extent.len]));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let parts = extents.chunks(extents.len().div_ceil(threads).max(1));
        let readers: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader"))
    })
}

/// Reads and touches each extent through one io_uring with `depth` reads under way.
pub fn random_reads_io_uring(path: &Path, extents: &[Extent], depth: usize, direct: bool) -> io::Result<()> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let mut ring = IoUring::new(depth as u32)?;
    let mut buffers: Vec<_> = (0..depth).map(|_| aligned(buffer_bytes(extents))).collect();
    let mut under_way = vec![Extent { offset: 0, len: 0 }; depth];
    let mut free: VecDeque<usize> = (0..depth).collect();
    let mut waiting = extents.iter();
    loop {
        while !free.is_empty() {
            let Some(&extent) = waiting.next() else { break };
            let slot = free.pop_front().expect("checked above");
            under_way[slot] = extent;
            let (offset, len, _) = if direct { blocks(extent) } else { (extent.offset, extent.len, 0) };
            let read = opcode::Read::new(Fd(file.as_raw_fd()), buffers[slot].as_mut_ptr(), len as u32)
                .offset(offset)
                .build()
                .user_data(slot as u64);
            // SAFETY: the slot's buffer is left alone until its completion arrives, and outlives the ring's use of
            // it: the loop ends only when every slot is free again. The queue has room for `depth` entries.
            #[expect(unsafe_code, reason = "io_uring writes into our buffer")]
            unsafe {
                ring.submission().push(&read).expect("a free slot means a free entry");
            }
        }
        if free.len() == depth {
            return Ok(());
        }
        ring.submit_and_wait(1)?;
        for completion in ring.completion() {
            let slot = completion.user_data() as usize;
            let extent = under_way[slot];
            let skip = if direct { blocks(extent).2 } else { 0 };
            assert!(
                completion.result() >= (skip + extent.len) as i32,
                "short or failed read: {}",
                completion.result()
            );
            black_box(touch(&buffers[slot][skip..skip + extent.len]));
            free.push_back(slot);
        }
    }
}

/// Maps a file that nobody changes meanwhile.
pub fn map_file(path: &Path) -> io::Result<memmap2::Mmap> {
    let file = File::open(path)?;
    // SAFETY: benchmark files are complete before they are mapped.
    #[expect(unsafe_code, reason = "the map is what we measure against")]
    unsafe {
        memmap2::Mmap::map(&file)
    }
}

/// Touches every page through the map.
pub fn scan_map_touched(map: &[u8], extents: &[Extent]) {
    for extent in extents {
        black_box(touch(&map[extent.offset as usize..][..extent.len]));
    }
}

/// Computes the CRC-64 of every page through the map; with `touched`, a consumer touches it afterwards, as it does with
/// the pages of a store.
pub fn scan_map_checked(map: &[u8], extents: &[Extent], touched: bool) {
    for extent in extents {
        let page = &map[extent.offset as usize..][..extent.len];
        black_box(webbase_storage::crc64(page));
        if touched {
            black_box(touch(page));
        }
    }
}

/// The blocks that hold an extent: offset, length, and how far in the extent starts.
fn blocks(extent: Extent) -> (u64, usize, usize) {
    let offset = extent.offset & !4095;
    let skip = (extent.offset - offset) as usize;
    (offset, (skip + extent.len).next_multiple_of(4096), skip)
}

fn buffer_bytes(extents: &[Extent]) -> usize {
    extents.iter().map(|extent| extent.len).max().unwrap_or(0).next_multiple_of(4096) + 2 * 4096
}
