//! Taking space back: living records are copied out of sparse segments into a new one, with their ordinals, and the new
//! one takes the old ones' place. Readers of older views keep the old files until they are done.
//!
//! 1. A record keeps its ordinal, so index, bitmaps and cursors stay as they are.
//! 2. Work goes on in steps of the caller's budget; until the last step nothing has changed, and a crash loses only the
//!    half-written copy.
//! 3. A tombstone must outlive every older record of its page that is still on disk, or rebuilding the index from the
//!    segments would bring the page back. Each segment knows the log's end up to which it is *clean*: when it was
//!    compacted, no record in it was dead. A tombstone goes when all segments before it are clean beyond it.
//! 4. "Seen" entries go: the checkpoint has their deadlines.
//! 5. What a kept generation needs is as good as alive (generations.rs): it is copied, and the copy is clean only up to
//!    the end of the oldest generation that has it.
//! 6. A damaged record is copied as it is, still damaged, still reported. Only `repair` leaves it out.

use std::sync::Arc;

use super::LogStore;
use super::generations::Layer;
use super::manifest::Counts;
use super::segment::{RECORDS_OFFSET, Segment};
use super::view::{Part, View};
use super::writer::Call;
use crate::bits::Bitmap;
use crate::catalog::{self, Row};
use crate::error::{Result, StorageError};
use crate::record::{Kind, RecordRef};
use crate::store::Compacted;

/// A segment is worth compacting when this share of it is garbage.
const GARBAGE_SHARE: f64 = 0.2;
/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A copy under way.
pub(crate) struct Compaction {
    sources: Vec<u64>,
    /// The log's end when it began.
    clean_to: u64,
    leave_out_damaged: bool,
    target: Segment,
    /// The source being copied, and the position in it.
    at: (usize, usize),
    rows: Vec<Row>,
    offsets: Vec<u32>,
    ordinals: Vec<u32>,
    buffer: Vec<u8>,
    written: u64,
}

/// Compacts for about `budget_bytes`.
pub(super) fn compact(store: &LogStore, budget_bytes: u64) -> Result<Compacted> {
    let mut slot = store.compaction.lock();
    let mut done = Compacted::default();
    loop {
        let mut work = match slot.take() {
            Some(work) => work,
            None => match choose(store)? {
                Some(sources) => Compaction::start(store, sources, false)?,
                None => {
                    done.done = true;
                    return Ok(done);
                }
            },
        };
        let finished = work.step(store, budget_bytes, &mut done)?;
        if !finished {
            *slot = Some(work);
            return Ok(done);
        }
        work.finish(store, &mut done)?;
        if done.read_bytes + done.written_bytes >= budget_bytes {
            done.done = choose(store)?.is_none();
            return Ok(done);
        }
    }
}

/// Rewrites one segment, without its damaged records or with them.
pub(super) fn rewrite(store: &LogStore, number: u64, leave_out_damaged: bool) -> Result<()> {
    let mut slot = store.compaction.lock();
    *slot = None; // a half-written copy may hold the same damage
    let mut work = Compaction::start(store, vec![number], leave_out_damaged)?;
    let mut done = Compacted::default();
    while !work.step(store, u64::MAX, &mut done)? {}
    work.finish(store, &mut done)
}

/// Neighbouring segments worth compacting into one, most of all those with garbage; `None` when there are none.
fn choose(store: &LogStore) -> Result<Option<Vec<u64>>> {
    {
        // The open segment is sealed first if it is worth it.
        let mut writer = store.writer.lock();
        let view = store.view.load_full();
        let worth = view.parts.last().is_some_and(|p| garbage_share(&view, p) >= GARBAGE_SHARE);
        let idle = writer.batch.rows.is_empty() && !writer.syncing; // what is staged is not ours to commit
        if worth && idle && writer.poisoned.is_none() {
            store.roll(&mut writer, Call::STAGES_NOTHING)?;
        }
    }
    let view = store.view.load_full();
    let Some((_, sealed)) = view.parts.split_last() else { return Ok(None) };
    let small = store.segment_bytes() / 4;
    let is_small = |p: &Part| p.segment.records_end() - RECORDS_OFFSET < small;
    let dirty = |p: &Part| garbage_share(&view, p) >= GARBAGE_SHARE;
    for (i, part) in sealed.iter().enumerate() {
        let joins = |p: &Part| dirty(p) || is_small(p);
        let worth = dirty(part) || (is_small(part) && sealed.get(i + 1).is_some_and(is_small));
        if !worth {
            continue;
        }
        let mut bytes = 0;
        let holder = |p: &Part| view.holder(p).map(|g| g.number);
        let group: Vec<u64> = sealed
            .iter()
            .skip(i)
            .take_while(|p| {
                let counts = view.garbage(p).1;
                bytes += counts.live_bytes + (counts.tombstones + 1) * 100;
                // Relative ordinals have 32 bits.
                let near = p.end_ordinal - part.segment.first_ordinal <= u64::from(u32::MAX);
                let fits = bytes <= store.segment_bytes() && near && holder(p) == holder(part);
                joins(p) && (fits || p.segment.number == part.segment.number)
            })
            .map(|p| p.segment.number)
            .collect();
        if dirty(part) || group.len() > 1 {
            return Ok(Some(group));
        }
    }
    Ok(None)
}

/// The share of a segment that compacting it would free.
fn garbage_share(view: &View, part: &Part) -> f64 {
    let bytes = part.segment.records_end() - RECORDS_OFFSET;
    let counts = view.garbage(part).1;
    let last = part.end_ordinal.saturating_sub(1);
    let tombstones =
        if tombstones_needed(view, &[part.segment.number], last) { counts.tombstones } else { 0 };
    if counts.dead_pages == 0 && counts.seen == 0 && counts.tombstones == tombstones {
        return 0.0; // nothing would go, whatever the arithmetic says
    }
    let kept = counts.live_bytes + tombstones * crate::record::RECORD_BYTES_MIN as u64;
    if bytes == 0 { 0.0 } else { bytes.saturating_sub(kept) as f64 / bytes as f64 }
}

/// Whether tombstones up to `ordinal` may still hold down older records outside `sources`.
fn tombstones_needed(view: &View, sources: &[u64], ordinal: u64) -> bool {
    view.parts.iter().any(|p| {
        p.segment.first_ordinal < ordinal
            && !sources.contains(&p.segment.number)
            && p.clean_to <= ordinal
            && p.counts.dead_pages > 0
    })
}

impl Compaction {
    fn start(store: &LogStore, sources: Vec<u64>, leave_out_damaged: bool) -> Result<Compaction> {
        let view = store.view.load();
        let first = view.parts.iter().find(|p| sources.contains(&p.segment.number));
        let first_ordinal = first.map_or(0, |p| p.segment.first_ordinal);
        let target = Segment::create(&store.disk, &store.dir, store.new_file(), first_ordinal, 0)?;
        target.retire(); // until it is finished
        Ok(Compaction {
            sources,
            clean_to: first.and_then(|p| view.holder(p)).map_or(view.end, |g| g.end),
            leave_out_damaged,
            target,
            at: (0, 0),
            rows: Vec::new(),
            offsets: vec![RECORDS_OFFSET as u32],
            ordinals: Vec::new(),
            buffer: Vec::new(),
            written: RECORDS_OFFSET,
        })
    }

    /// Copies on until the budget is used up (false) or all is copied (true).
    fn step(&mut self, store: &LogStore, budget_bytes: u64, done: &mut Compacted) -> Result<bool> {
        let view = store.view.load_full();
        while let Some(&number) = self.sources.get(self.at.0) {
            let Some(part) = view.parts.iter().find(|p| p.segment.number == number) else {
                return Err(StorageError::corrupt(
                    &store.dir,
                    0,
                    format!("segment {number} is gone while compacted"),
                ));
            };
            let count = part.segment.position_from(part.end_ordinal);
            while self.at.1 < count {
                if done.read_bytes + done.written_bytes >= budget_bytes {
                    return Ok(false);
                }
                self.copy(&view, part, self.at.1, done)?;
                self.at.1 += 1;
            }
            self.at = (self.at.0 + 1, 0);
        }
        Ok(true)
    }

    fn copy(&mut self, view: &View, part: &Part, position: usize, done: &mut Compacted) -> Result<()> {
        let segment = &part.segment;
        let row = segment.row(position);
        let ordinal = segment.ordinal(position);
        let needed = !view.garbage(part).0.get(position);
        let wanted = match &row {
            Ok(row) if row.is_damaged() => !self.leave_out_damaged,
            Ok(row) => match row.kind() {
                Kind::Page => needed,
                Kind::Tombstone => tombstones_needed(view, &self.sources, ordinal),
                Kind::Seen => false,
            },
            Err(StorageError::Corrupt { .. }) => !self.leave_out_damaged && needed,
            Err(_) => return row.map(|_| ()),
        };
        let Some(place) = segment.place(position).filter(|_| wanted) else { return Ok(()) };
        let start = self.buffer.len();
        self.buffer.resize(start + (place.end - place.start) as usize, 0);
        let bytes = self.buffer.get_mut(start..).unwrap_or_default();
        if let Err(e) = segment.file().read_exact_at(bytes, place.start) {
            self.buffer.truncate(start);
            if self.leave_out_damaged {
                return Ok(());
            }
            return Err(segment.read_error(e, place.start));
        }
        done.read_bytes += place.end - place.start;
        if self.leave_out_damaged && RecordRef::parse(bytes).is_err() {
            self.buffer.truncate(start);
            return Ok(());
        }
        self.rows.push(row.unwrap_or_else(|_| Row::damaged()));
        self.offsets.push((self.written + self.buffer.len() as u64) as u32);
        self.ordinals.push((ordinal - self.target.first_ordinal) as u32);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush(done)?;
        }
        Ok(())
    }

    fn flush(&mut self, done: &mut Compacted) -> Result<()> {
        let write = self.target.file().write_all_at(&self.buffer, self.written);
        write.map_err(|e| StorageError::io("write", self.target.path(), e))?;
        self.target.file().start_writeback(self.written..self.written + self.buffer.len() as u64);
        self.written += self.buffer.len() as u64;
        done.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// The new part with what is dead in `before`, now that it is copied: it died since, or another state needs it.
    fn seen_by(&self, before: &View, mut part: Part) -> Part {
        let dead = Arc::make_mut(&mut part.dead);
        for (position, &relative) in self.ordinals.iter().enumerate() {
            if before.is_dead(self.target.first_ordinal + u64::from(relative)) {
                dead.set(position);
            }
        }
        for (position, (row, places)) in self.rows.iter().zip(self.offsets.windows(2)).enumerate() {
            let len = if let [start, end] = places { end - start } else { 0 };
            part.count(position, row, u64::from(len));
        }
        part
    }

    /// Writes the catalog and puts the new segment in the place of its sources.
    fn finish(mut self, store: &LogStore, done: &mut Compacted) -> Result<()> {
        self.flush(done)?;
        let writer = store.writer.lock(); // no commit meanwhile
        let mut view = View::clone(&store.view.load());
        let Some(at) = view.parts.iter().position(|p| self.sources.first() == Some(&p.segment.number)) else {
            return Err(StorageError::corrupt(&store.dir, 0, "the compacted segments are gone"));
        };
        let generations: Vec<View> = view.generations.iter().map(|g| view.of_generation(g)).collect();
        let old: Vec<Part> = view.parts.splice(at..at + self.sources.len(), []).collect();
        let old_view = View { parts: old, ..View::default() };
        let end_ordinal = old_view.parts.last().map_or(0, |p| p.end_ordinal);
        if !self.rows.is_empty() {
            let first_ordinal = self.target.first_ordinal;
            let range = (first_ordinal, end_ordinal);
            let bytes = catalog::encode(&self.rows, &self.offsets, Some(&self.ordinals), range, self.written);
            let fail = |op| move |e| StorageError::io(op, &store.dir, e);
            let file = self.target.file();
            file.write_all_at(&bytes, self.written).map_err(fail("write a segment in"))?;
            file.sync().map_err(fail("sync a segment in"))?;
            done.written_bytes += bytes.len() as u64;
            let segment = Segment::sealed(&store.disk, file.clone(), self.target.number, false)?;
            let part = Part {
                segment: Arc::new(segment),
                dead: Arc::new(Bitmap::default()),
                end_ordinal,
                clean_to: self.clean_to,
                counts: Counts::default(),
            };
            for (generation, seen) in view.generations.iter_mut().zip(&generations) {
                let layer = (generation.end >= end_ordinal)
                    .then(|| (self.target.number, Layer::of(&self.seen_by(seen, part.clone()))));
                Arc::make_mut(generation).replace(&self.sources, layer);
            }
            view.parts.insert(at, self.seen_by(&old_view, part));
            self.target.keep();
        } else {
            for generation in &mut view.generations {
                Arc::make_mut(generation).replace(&self.sources, None);
            }
        }
        let view = store.checkpoint(view)?;
        store.view.store(Arc::new(view));
        drop(writer);
        for part in &old_view.parts {
            done.freed_bytes += part.segment.file().len().unwrap_or(0);
            part.segment.retire();
        }
        done.freed_bytes = done.freed_bytes.saturating_sub(self.written);
        Ok(())
    }
}
