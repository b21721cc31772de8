//! What came out last: importance and usefulness of every URL-id.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  magic "WBRK"
//!        4     4  version 1
//!        8     8  URL-ids n
//!       16     8  when it was computed, in milliseconds since 1970
//!       24     8  CRC-64 of all the above
//!       32     …  blocks of 4096 URL-ids (the last one fewer): importance 8 and usefulness 8 of each; CRC-64 of them 8
//! ```
//!
//! The file is replaced as a whole.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use webbase_storage::crc64;

use super::{LinksError, Result, rename};

const MAGIC: [u8; 8] = *b"WBRK\x01\0\0\0";
const HEAD_BYTES: usize = 32;
const BLOCK: usize = 4096;
const BLOCK_BYTES: usize = BLOCK * 16 + 8;

/// Writes a result, URL-id after URL-id.
pub(super) struct RanksWriter {
    path: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
    block: Vec<u8>,
    count: u64,
    at_ms: u64,
}

impl RanksWriter {
    pub(super) fn create(path: &Path, at_ms: u64) -> Result<RanksWriter> {
        let beside = path.with_extension("partial");
        let file = File::create(&beside).map_err(LinksError::io("make", &beside))?;
        let mut file = BufWriter::with_capacity(1 << 18, file);
        file.write_all(&[0; HEAD_BYTES]).map_err(LinksError::io("write", &beside))?;
        Ok(RanksWriter { path: path.to_owned(), beside, file, block: Vec::new(), count: 0, at_ms })
    }

    pub(super) fn push(&mut self, importance: f64, usefulness: f64) -> Result<()> {
        self.block.extend(importance.to_le_bytes());
        self.block.extend(usefulness.to_le_bytes());
        self.count += 1;
        if self.block.len() == BLOCK * 16 { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let crc = crc64(&self.block);
        self.block.extend(crc.to_le_bytes());
        self.file.write_all(&self.block).map_err(LinksError::io("write", &self.beside))?;
        self.block.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let mut head = MAGIC.to_vec();
        head.extend(self.count.to_le_bytes());
        head.extend(self.at_ms.to_le_bytes());
        head.extend(crc64(&head).to_le_bytes());
        let beside = &self.beside;
        self.file.flush().map_err(LinksError::io("write", beside))?;
        let file = self.file.get_ref();
        file.write_all_at(&head, 0)
            .and_then(|()| file.sync_all())
            .map_err(LinksError::io("write", beside))?;
        rename(beside, &self.path)
    }
}

/// A result.
#[derive(Debug)]
pub struct Ranks {
    path: PathBuf,
    file: File,
    count: u64,
    at_ms: u64,
    /// The block that was read last, and its number.
    block: Vec<u8>,
    number: Option<u64>,
}

impl Ranks {
    pub(super) fn open(path: &Path) -> Result<Option<Ranks>> {
        let mut file = match File::open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(LinksError::io("read", path))?,
        };
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head).map_err(LinksError::io("read", path))?;
        let damaged = |what| LinksError::Damaged { path: path.to_owned(), what };
        let (body, crc) = head.split_last_chunk::<8>().ok_or_else(|| damaged("it is cut short"))?;
        let fields = body.strip_prefix(&MAGIC).ok_or_else(|| damaged("it is no result of version 1"))?;
        if crc64(body) != u64::from_le_bytes(*crc) {
            return Err(damaged("its checksum is wrong"));
        }
        let mut fields = fields.as_chunks::<8>().0.iter().map(|field| u64::from_le_bytes(*field));
        let (count, at_ms) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
        let expected = HEAD_BYTES as u64 + count * 16 + count.div_ceil(BLOCK as u64) * 8;
        if file.metadata().map_err(LinksError::io("read", path))?.len() != expected {
            return Err(damaged("it has another length than it says"));
        }
        Ok(Some(Ranks { path: path.to_owned(), file, count, at_ms, block: Vec::new(), number: None }))
    }

    /// How many URL-ids it speaks of.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it speaks of none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// When it was computed, in milliseconds since 1970.
    pub fn computed_at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Importance and usefulness of a URL-id; none beyond the last. Asked in order, every block is read once.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn get(&mut self, id: u32) -> Result<Option<(f64, f64)>> {
        if u64::from(id) >= self.count {
            return Ok(None);
        }
        let (number, place) = (u64::from(id) / BLOCK as u64, id as usize % BLOCK);
        if self.number != Some(number) {
            let left = (self.count - number * BLOCK as u64).min(BLOCK as u64) as usize;
            self.number = None;
            self.block.resize(left * 16 + 8, 0);
            let offset = HEAD_BYTES as u64 + number * BLOCK_BYTES as u64;
            self.file.read_exact_at(&mut self.block, offset).map_err(LinksError::io("read", &self.path))?;
            let whole = self.block.split_last_chunk::<8>();
            if whole.is_none_or(|(body, crc)| crc64(body) != u64::from_le_bytes(*crc)) {
                return Err(LinksError::Damaged {
                    path: self.path.clone(),
                    what: "a block's checksum is wrong",
                });
            }
            self.number = Some(number);
        }
        let pair = self.block.get(place * 16..).and_then(|rest| rest.first_chunk::<16>());
        let [a, b, c, d, e, f, g, h, i @ ..] = *pair.unwrap_or(&[0; 16]);
        Ok(Some((f64::from_le_bytes([a, b, c, d, e, f, g, h]), f64::from_le_bytes(i))))
    }
}
