//! Which leaf covers which ids: in memory as an immutable sorted list in chunks, on disk as a file of frames.
//!
//! ```text
//!   directory:  4096 bytes of head (magic "WBDR" 4, version 4, zero 24, durable marks as in mark.rs), then frames
//!   frame:      magic "WBDF" 4, length of the rest without CRC 4, sequence 8, first journal still needed 8,
//!               next leaf sequence 8, sequence of the last frame that changed pages 8,
//!               generations kept 8, each 8, ascending; changes 8, changes, CRC-64 of the frame 8
//!   change:     first id 8, last id 8, leaves 8, then each leaf:
//!               first id 8, slot 4, slots 4, used bytes 4, live bytes 4, pages 4, zero 4, earliest deadline 8
//! ```
//!
//! A change says: the ids from first to last are covered by these leaves from now on. The first frame covers all ids. A
//! frame is the commit of the slots written before it. When the file has grown to several times what it says, it is
//! replaced by a new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::log_index::LogIndex;
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Result, StorageError};
use crate::mark;
use crate::record::crc64;

const MAGIC: [u8; 4] = *b"WBDR";
const FRAME_MAGIC: [u8; 4] = *b"WBDF";
const ENTRY_BYTES: usize = 40;
/// Entries of a chunk: what a change copies.
const CHUNK_ENTRIES: usize = 512;

/// Successive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) slot: u32,
    /// 0: an empty leaf.
    pub(crate) slots: u32,
}

/// A leaf in the directory.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// It covers ids from here up to the next entry.
    pub(crate) first_id: u64,
    pub(crate) extent: Extent,
    pub(crate) used: u32,
    pub(crate) live_bytes: u32,
    pub(crate) pages: u32,
    /// No page in it is due before; 2^64-1 is never.
    pub(crate) deadline_ms: u64,
    /// hashed-log: where its pages are, once somebody asked.
    pub(crate) index: Arc<LogIndex>,
}

impl Entry {
    /// A leaf without pages.
    pub(crate) fn empty(first_id: u64) -> Entry {
        Entry {
            first_id,
            extent: Extent { slot: 0, slots: 0 },
            used: 0,
            live_bytes: 0,
            pages: 0,
            deadline_ms: u64::MAX,
            index: Arc::default(),
        }
    }
}

/// These ids are covered by these leaves from now on.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) first_id: u64,
    pub(crate) last_id: u64,
    pub(crate) entries: Vec<Entry>,
}

/// All leaves, sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    chunks: Vec<Arc<Vec<Entry>>>,
}

impl Directory {
    /// One empty leaf for all ids.
    pub(crate) fn new() -> Directory {
        Directory { chunks: vec![Arc::new(vec![Entry::empty(0)])] }
    }

    fn chunk_of(&self, id: u64) -> usize {
        self.chunks.partition_point(|c| c.first().is_some_and(|e| e.first_id <= id)).saturating_sub(1)
    }

    /// The leaf that covers `id`, and the last id it covers.
    pub(crate) fn find(&self, id: u64) -> Option<(&Entry, u64)> {
        let at = self.chunk_of(id);
        let chunk = self.chunks.get(at)?;
        let i = chunk.partition_point(|e| e.first_id <= id).checked_sub(1)?;
        let next = chunk.get(i + 1).or_else(|| self.chunks.get(at + 1)?.first());
        Some((chunk.get(i)?, next.map_or(u64::MAX, |e| e.first_id - 1)))
    }

    /// All leaves from the one that covers `id` on.
    pub(crate) fn iter_from(&self, id: u64) -> impl Iterator<Item = &Entry> {
        let at = self.chunk_of(id);
        let skip =
            self.chunks.get(at).map_or(0, |c| c.partition_point(|e| e.first_id <= id).saturating_sub(1));
        self.chunks.iter().skip(at).flat_map(|c| c.iter()).skip(skip)
    }

    /// All leaves.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|c| c.iter())
    }

    /// Applies a change whose bounds are bounds of leaves.
    pub(crate) fn apply(&mut self, change: &Change) {
        let first_chunk = self.chunk_of(change.first_id);
        let last_chunk = self.chunk_of(change.last_id);
        let mut merged = Vec::new();
        for chunk in self.chunks.iter().take(last_chunk + 1).skip(first_chunk) {
            merged.extend(
                chunk.iter().filter(|e| e.first_id < change.first_id || e.first_id > change.last_id).cloned(),
            );
        }
        let at = merged.partition_point(|e| e.first_id < change.first_id);
        merged.splice(at..at, change.entries.iter().cloned());
        let pieces: Vec<Arc<Vec<Entry>>> = if merged.len() <= 2 * CHUNK_ENTRIES {
            vec![Arc::new(merged)]
        } else {
            merged.chunks(CHUNK_ENTRIES).map(|c| Arc::new(c.to_vec())).collect()
        };
        self.chunks.splice(first_chunk..=last_chunk, pieces);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // Each entry has its index in an allocation of its own, with two counters.
        let one = size_of::<Entry>() + size_of::<LogIndex>() + 16;
        self.iter().map(|e| one + e.index.memory_bytes()).sum()
    }
}

/// What a frame says beside its changes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Commit {
    pub(crate) sequence: u64,
    /// Journals before this one are in the leaves.
    pub(crate) journal: u64,
    /// The sequence of the next leaf written.
    pub(crate) next_leaf: u64,
    /// The sequence of the last commit that changed pages; the ones since moved them at most.
    pub(crate) content: u64,
    /// The generations kept, ascending.
    pub(crate) generations: Vec<u64>,
}

/// A whole directory as one frame.
pub(crate) fn encode_whole(commit: &Commit, directory: &Directory) -> Vec<u8> {
    let entries = directory.iter().cloned().collect();
    encode_frame(commit, &[Change { first_id: 0, last_id: u64::MAX, entries }])
}

fn encode_frame(commit: &Commit, changes: &[Change]) -> Vec<u8> {
    let mut out = FRAME_MAGIC.to_vec();
    out.extend_from_slice(&[0; 4]);
    let word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
    let kept = commit.generations.len() as u64;
    for w in [commit.sequence, commit.journal, commit.next_leaf, commit.content, kept] {
        word(&mut out, w);
    }
    for &number in &commit.generations {
        word(&mut out, number);
    }
    word(&mut out, changes.len() as u64);
    for change in changes {
        for w in [change.first_id, change.last_id, change.entries.len() as u64] {
            word(&mut out, w);
        }
        for e in &change.entries {
            word(&mut out, e.first_id);
            for part in [e.extent.slot, e.extent.slots, e.used, e.live_bytes, e.pages, 0] {
                out.extend_from_slice(&part.to_le_bytes());
            }
            word(&mut out, e.deadline_ms);
        }
    }
    let len = (out.len() - 8) as u32;
    if let Some(target) = out.get_mut(4..8) {
        target.copy_from_slice(&len.to_le_bytes());
    }
    let crc = crc64(&out);
    word(&mut out, crc);
    out
}

/// Reads the frame at the start of `bytes`: what it says, its changes, its length.
pub(crate) fn decode_frame(bytes: &[u8]) -> std::result::Result<(Commit, Vec<Change>, usize), String> {
    if bytes.get(..4) != Some(&FRAME_MAGIC) {
        return Err("no frame here".into());
    }
    let len = bytes.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes) as usize + 8;
    let (Some(frame), Some(crc)) = (bytes.get(..len), bytes.get(len..len + 8)) else {
        return Err("frame cut short".into());
    };
    if crc64(frame).to_le_bytes() != crc {
        return Err("frame damaged".into());
    }
    let mut rest = frame.get(8..).unwrap_or_default();
    let mut word = || {
        let (head, tail) = rest.split_first_chunk::<8>().ok_or("frame inconsistent")?;
        rest = tail;
        Ok::<u64, String>(u64::from_le_bytes(*head))
    };
    let (sequence, journal, next_leaf, content) = (word()?, word()?, word()?, word()?);
    let mut generations = Vec::new();
    for _ in 0..word()? {
        generations.push(word()?);
    }
    if !generations.is_sorted_by(|a, b| a < b) {
        return Err("generations are not in order".into());
    }
    let commit = Commit { sequence, journal, next_leaf, content, generations };
    let mut changes = Vec::new();
    for _ in 0..word()? {
        let (first_id, last_id, count) = (word()?, word()?, word()?);
        let mut entries = Vec::with_capacity((count as usize).min(len / ENTRY_BYTES + 1));
        for _ in 0..count {
            let (first_id, place, sizes, pages, deadline_ms) = (word()?, word()?, word()?, word()?, word()?);
            entries.push(Entry {
                first_id,
                extent: Extent { slot: place as u32, slots: (place >> 32) as u32 },
                used: sizes as u32,
                live_bytes: (sizes >> 32) as u32,
                pages: pages as u32,
                deadline_ms,
                index: Arc::default(),
            });
        }
        changes.push(Change { first_id, last_id, entries });
    }
    if !rest.is_empty() {
        return Err("frame longer than it says".into());
    }
    Ok((commit, changes, len + 8))
}

fn path(dir: &Path) -> PathBuf {
    dir.join("directory")
}

/// The file of a directory, to which frames are appended.
#[derive(Debug)]
pub(crate) struct DirectoryFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file: Arc<dyn DiskFile>,
    end: u64,
    mark_sequence: u64,
    /// Length when it was last written as a whole.
    whole: u64,
}

impl DirectoryFile {
    /// Writes a directory as a whole.
    pub(crate) fn replace(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        directory: &Directory,
        commit: &Commit,
    ) -> Result<DirectoryFile> {
        let frame = encode_whole(commit, directory);
        let end = (mark::HEAD_BYTES + frame.len()) as u64;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
        bytes.resize(32, 0);
        bytes.extend_from_slice(&mark::encode(0, 0, end));
        bytes.resize(mark::HEAD_BYTES, 0);
        bytes.extend_from_slice(&frame);
        disk::replace_file(&**disk, &path(dir), &bytes)?;
        let file = disk.open(&path(dir), false).map_err(|e| StorageError::io("open", &path(dir), e))?;
        Ok(DirectoryFile {
            disk: disk.clone(),
            dir: dir.to_path_buf(),
            file,
            end,
            mark_sequence: 0,
            whole: end,
        })
    }

    /// Reads a directory, changing nothing. A bad frame below the durable mark is damage, beyond it the end.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(DirectoryFile, Directory, Commit)> {
        let path = path(dir);
        let bytes = disk::read_file(&**disk, &path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => StorageError::corrupt(&path, 0, "the directory is missing"),
            _ => StorageError::io("read", &path, e),
        })?;
        let head = bytes.get(..8);
        if head != Some(&[MAGIC, crate::identity::VERSION.to_le_bytes()].concat()[..]) {
            return Err(StorageError::corrupt(&path, 0, "no directory of this version"));
        }
        let (mark_sequence, durable) = mark::newest(&bytes, 0).unwrap_or((0, bytes.len() as u64));
        let (mut directory, mut last) = (Directory::new(), Commit::default());
        let mut at = mark::HEAD_BYTES;
        while at < bytes.len() {
            match decode_frame(bytes.get(at..).unwrap_or_default()) {
                Ok((commit, changes, len)) => {
                    changes.iter().for_each(|change| directory.apply(change));
                    last = commit;
                    at += len;
                }
                Err(what) if (at as u64) < durable => {
                    return Err(StorageError::corrupt(&path, at as u64, what));
                }
                Err(_) => break,
            }
        }
        if (at as u64) < durable {
            return Err(StorageError::corrupt(
                &path,
                at as u64,
                format!("the file ends here, {durable} bytes were durable"),
            ));
        }
        let file = disk.open(&path, false).map_err(|e| StorageError::io("open", &path, e))?;
        let (end, whole) = (at as u64, mark::HEAD_BYTES as u64);
        Ok((
            DirectoryFile { disk: disk.clone(), dir: dir.to_path_buf(), file, end, mark_sequence, whole },
            directory,
            last,
        ))
    }

    /// Cuts off what a crash left behind the last frame.
    pub(crate) fn cut(&self) -> Result<()> {
        let path = path(&self.dir);
        if self.file.len().map_err(|e| StorageError::io("read", &path, e))? > self.end {
            self.file.set_len(self.end).map_err(|e| StorageError::io("cut", &path, e))?;
            self.file.sync().map_err(|e| StorageError::io("sync", &path, e))?;
        }
        Ok(())
    }

    /// Appends a commit and syncs it. `directory` is what it leads to.
    pub(crate) fn append(
        &mut self,
        commit: &Commit,
        changes: &[Change],
        directory: &Directory,
    ) -> Result<()> {
        if self.end > 4 * self.whole + (1 << 20) {
            *self = DirectoryFile::replace(&self.disk, &self.dir, directory, commit)?;
            return Ok(());
        }
        let frame = encode_frame(commit, changes);
        let path = &path(&self.dir);
        let fail = |op| move |e| StorageError::io(op, path, e);
        self.file.write_all_at(&frame, self.end).map_err(fail("write"))?;
        self.file.sync().map_err(fail("sync"))?;
        self.end += frame.len() as u64;
        self.mark_sequence += 1;
        // A hint for recovery, made durable by the next sync.
        let _ = mark::write(&*self.file, 0, self.mark_sequence, self.end);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(directory: &Directory) -> Vec<u64> {
        directory.iter().map(|e| e.first_id).collect()
    }

    #[test]
    fn changes_replace_what_they_cover() {
        let mut directory = Directory::new();
        let entries = (0..2000).map(|i| Entry::empty(i * 10)).collect();
        directory.apply(&Change { first_id: 0, last_id: u64::MAX, entries });
        assert!(directory.chunks.len() > 2);
        directory.apply(&Change {
            first_id: 50,
            last_id: 69,
            entries: vec![Entry::empty(50), Entry::empty(55), Entry::empty(60)],
        });
        directory.apply(&Change { first_id: 5000, last_id: 14_999, entries: vec![Entry::empty(5000)] });
        let all = starts(&directory);
        assert!(all.is_sorted());
        assert_eq!(all.len(), 2001 - 999);
        for (id, first, last) in
            [(57, 55, 59), (5000, 5000, 14_999), (9000, 5000, 14_999), (u64::MAX, 19_990, u64::MAX)]
        {
            let (entry, end) = directory.find(id).unwrap();
            assert_eq!((entry.first_id, end), (first, last), "id {id}");
        }
        assert_eq!(directory.iter_from(56).next().unwrap().first_id, 55);
    }

    #[test]
    fn a_frame_reads_back_and_damage_is_noticed() {
        let mut entry = Entry::empty(7);
        (entry.extent, entry.used, entry.live_bytes, entry.pages) =
            (Extent { slot: 3, slots: 2 }, 100, 90, 4);
        let commit = Commit { sequence: 5, journal: 6, next_leaf: 9, content: 4, generations: vec![2, 7] };
        let mut bytes = encode_frame(&commit, &[Change { first_id: 7, last_id: 9, entries: vec![entry] }]);
        let (again, changes, len) = decode_frame(&bytes).unwrap();
        assert_eq!((again, changes.len(), len), (commit, 1, bytes.len()));
        assert_eq!(changes[0].entries[0].extent, Extent { slot: 3, slots: 2 });
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(decode_frame(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
            assert!(decode_frame(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
