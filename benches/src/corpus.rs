//! The corpus: real web pages in one file, made by `corpus.sh`. Little-endian.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     8  magic "WBCORP01"
//!        8     8  number of pages
//!       16     …  pages, one after another:
//!
//!        0     4  length of the URL (u)
//!        4     4  length of the HTTP head (h)
//!        8     4  length of the body (b)
//!       12     8  fetched_at_ms
//!       20     u  URL
//!        …     h  HTTP head, ending in an empty line
//!        …     b  body
//! ```
//!
//! 1. Pages are sorted by site, then path; no two URLs are equal, and no two bodies.
//! 2. The file is trusted: we made it. A broken one panics.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

/// First bytes of a corpus file.
pub const MAGIC: &[u8; 8] = b"WBCORP01";
/// Bytes before the first page.
pub const FILE_HEADER_BYTES: usize = 16;
/// Bytes of lengths and time before a page's URL.
pub const FRAME_HEADER_BYTES: usize = 20;

/// One page; the bytes live in memory as long as the program.
#[derive(Clone, Copy)]
pub struct CorpusPage {
    /// Address of the page.
    pub url: &'static str,
    /// Status line and header fields, with the empty line that ends them.
    pub head: &'static [u8],
    /// What the server sent after the head.
    pub body: &'static [u8],
    /// When the page was fetched, in milliseconds since 1970.
    pub fetched_at_ms: u64,
    frame: &'static [u8],
}

impl CorpusPage {
    /// Bytes of URL, head and body: what a store has to keep.
    pub fn len_bytes(&self) -> u64 {
        (self.url.len() + self.head.len() + self.body.len()) as u64
    }

    /// The whole page in one piece, for engines that know only values: lengths, time, URL, head and body as in the
    /// file.
    pub fn value(&self) -> &'static [u8] {
        self.frame
    }

    /// A new version of this page: its URL with another page's head and body, fetched a day later.
    pub fn new_version(&self, content: &CorpusPage) -> CorpusPage {
        let mut frame = Vec::with_capacity(self.url.len() + content.frame.len());
        write_frame(&mut frame, self.url, content.head, content.body, self.fetched_at_ms + 86_400_000)
            .expect("writing to memory");
        take_page(&mut &*frame.leak())
    }

    /// A 16-byte key that looks random: webbase's page key, id and tie.
    pub fn key(&self) -> [u8; 16] {
        let key = repository_key().page_key(self.url).expect("a URL");
        (u128::from(key.id.0) << 64 | u128::from(key.tie)).to_be_bytes()
    }
}

/// The key of all repositories that benchmarks make.
pub fn repository_key() -> webbase_storage::RepositoryKey {
    webbase_storage::RepositoryKey::new([7; 32])
}

/// Pages held in memory, so that no benchmark reads its input from the disk it measures.
pub struct Corpus {
    /// Sorted by site, then path.
    pub pages: Vec<CorpusPage>,
}

impl Corpus {
    /// Reads the corpus, or `page_count_max` pages spread evenly over it. The bytes are never freed.
    pub fn read(path: &Path, page_count_max: usize) -> io::Result<Corpus> {
        let file = File::open(path)?;
        // SAFETY: nobody changes the corpus while benchmarks run, and the map is gone when this function returns.
        #[expect(unsafe_code, reason = "reading 4 GB through a map copies only the chosen pages")]
        let map = unsafe { memmap2::Mmap::map(&file)? };
        assert_eq!(&map[..8], MAGIC, "{} is not a corpus", path.display());
        let page_count = u64_at(&map, 8) as usize;

        let wanted = page_count_max.min(page_count);
        let mut chosen = Vec::with_capacity(wanted);
        let mut bytes_needed = 0;
        let mut at = FILE_HEADER_BYTES;
        for n in 0..page_count {
            let frame_bytes = FRAME_HEADER_BYTES + (0..3).map(|i| u32_at(&map, at + 4 * i)).sum::<usize>();
            if (n + 1) * wanted / page_count > n * wanted / page_count {
                chosen.push(at..at + frame_bytes);
                bytes_needed += frame_bytes;
            }
            at += frame_bytes;
        }

        let mut data = Vec::with_capacity(bytes_needed);
        for range in &chosen {
            data.extend_from_slice(&map[range.clone()]);
        }
        let mut rest: &'static [u8] = data.leak();
        let pages = chosen.iter().map(|_| take_page(&mut rest)).collect();
        Ok(Corpus { pages })
    }

    /// Bytes of all URLs, heads and bodies.
    pub fn len_bytes(&self) -> u64 {
        self.pages.iter().map(CorpusPage::len_bytes).sum()
    }

    /// Page numbers in random order, the same for the same seed.
    pub fn shuffled(&self, seed: u64) -> Vec<u32> {
        shuffled(self.pages.len(), seed).into_iter().map(|n| n as u32).collect()
    }

    /// Page numbers in the order of their keys.
    pub fn by_key(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.pages.len() as u32).collect();
        order.sort_by_cached_key(|&n| self.pages[n as usize].key());
        order
    }
}

/// The numbers below `count` in random order, the same for the same seed.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random(seed);
    for i in (1..count).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

/// SplitMix64: small, seeded, good enough to shuffle.
pub struct Random(pub u64);

impl Random {
    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// Writes one page as the file has it.
pub fn write_frame(
    out: &mut impl Write,
    url: &str,
    head: &[u8],
    body: &[u8],
    fetched_at_ms: u64,
) -> io::Result<()> {
    for len in [url.len(), head.len(), body.len()] {
        out.write_all(&(len as u32).to_le_bytes())?;
    }
    out.write_all(&fetched_at_ms.to_le_bytes())?;
    out.write_all(url.as_bytes())?;
    out.write_all(head)?;
    out.write_all(body)
}

fn take_page(rest: &mut &'static [u8]) -> CorpusPage {
    let start = *rest;
    let (header, after) = rest.split_at(FRAME_HEADER_BYTES);
    let (url, after) = after.split_at(u32_at(header, 0));
    let (head, after) = after.split_at(u32_at(header, 4));
    let (body, after) = after.split_at(u32_at(header, 8));
    *rest = after;
    let url = std::str::from_utf8(url).expect("a URL in the corpus is ASCII");
    let frame = &start[..start.len() - after.len()];
    CorpusPage { url, head, body, fetched_at_ms: u64_at(header, 12), frame }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
