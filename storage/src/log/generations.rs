//! Kept generations: committed states of a log with a number, each in a file `generation-N` that the manifest names.
//!
//! ```text
//!   0  4  magic "WBGN"    4  4  version
//!   8  8  generation     16  8  end ordinal       24  8  the log's end when the store last stood at this generation
//!  32  8  deadline file (0: none)
//!  40  8  segments       then each: number 8, records 8, live pages 8, live bytes 8, dead pages 8, tombstones 8,
//!                        seen entries 8, words 8, dead bitmap words
//!         CRC-64 of all the above
//! ```
//!
//! A generation is the segments below its end with its own dead bitmaps, over the index that all states share.
//!
//! 1. Keeping a generation ends the open segment, and compaction joins no segments across a generation's end: so a
//!    segment belongs to a generation as a whole or not at all, and rolling back drops whole segments.
//! 2. A record that dies stays dead, so what is alive in any generation, or now, is alive in the oldest generation that
//!    has its segment. That generation's bitmap says what compaction and merges of the index must keep.
//! 3. After rolling back, ordinals go on above all that were ever given: an ordinal never names a second record.
//! 4. A generation's file is written anew when compaction has moved its records; the manifest says which one counts.
//! 5. A damaged file costs the generation, which is reported; nothing else depends on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::LogStore;
use super::deadlines::{self, Deadlines};
use super::manifest::{self, Counts, GenerationEntry, Manifest};
use super::open;
use super::segment::{RECORDS_OFFSET, Segment};
use super::view::{IndexRun, Part, View};
use super::writer::{Call, Writer};
use crate::bits::Bitmap;
use crate::disk::{self, Disk};
use crate::error::{Result, StorageError};
use crate::expiry::Renewed;
use crate::index::Run;
use crate::record::crc64;
use crate::store::Damage;

const MAGIC: [u8; 4] = *b"WBGN";

/// A kept generation.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    /// Records from here on are none of its.
    pub(crate) end: u64,
    /// The store is in this generation's state while the log ends here.
    stands_at: u64,
    deadline_file: u64,
    /// By segment number.
    layers: BTreeMap<u64, Layer>,
    /// The file that holds it, if it is on disk as it is.
    pub(crate) file: Option<u64>,
}

/// What a generation sees of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    records: u64,
    dead: Arc<Bitmap>,
    counts: Counts,
}

impl Layer {
    pub(crate) fn of(part: &Part) -> Layer {
        let records = part.segment.position_from(part.end_ordinal) as u64;
        Layer { records, dead: part.dead.clone(), counts: part.counts }
    }
}

impl Generation {
    /// The state of `view`, whose open segment is empty.
    fn of(view: &View, number: u64, deadline_file: u64) -> Generation {
        let sealed = view.parts.split_last().map_or(&[][..], |(_, sealed)| sealed);
        let layers = sealed.iter().map(|p| (p.segment.number, Layer::of(p))).collect();
        Generation { number, end: view.end, stands_at: view.end, deadline_file, layers, file: None }
    }

    fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.number, self.end, self.stands_at, self.deadline_file];
        words.push(self.layers.len() as u64);
        for (number, layer) in &self.layers {
            let c = layer.counts;
            words.extend([*number, layer.records]);
            words.extend([c.live_pages, c.live_bytes, c.dead_pages, c.tombstones, c.seen]);
            words.push(layer.dead.words().len() as u64);
            words.extend(layer.dead.words());
        }
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
        words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }

    /// Reads the file of a generation; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Generation, String> {
        let body = manifest::checked(bytes)?;
        let body = body.strip_prefix(&MAGIC).ok_or("not a generation")?;
        let body = body.strip_prefix(&crate::identity::VERSION.to_le_bytes()).ok_or("another version")?;
        let mut words = manifest::words(body);
        let mut next = || words.next().ok_or("generation cut short");
        let (number, end, stands_at, deadline_file) = (next()?, next()?, next()?, next()?);
        let mut layers = BTreeMap::new();
        for _ in 0..next()? {
            let (segment, records) = (next()?, next()?);
            let (live_pages, live_bytes, dead_pages) = (next()?, next()?, next()?);
            let counts = Counts { live_pages, live_bytes, dead_pages, tombstones: next()?, seen: next()? };
            let count = next()?;
            if count > records.div_ceil(64) {
                return Err(format!("{count} words of a bitmap for {records} records"));
            }
            let dead = (0..count).map(|_| next()).collect::<std::result::Result<_, _>>()?;
            let layer = Layer { records, dead: Arc::new(Bitmap::from_words(dead)), counts };
            if layers.insert(segment, layer).is_some() {
                return Err(format!("segment {segment} is named twice"));
            }
        }
        if next().is_ok() || !body.len().is_multiple_of(8) {
            return Err("generation longer than it says".into());
        }
        Ok(Generation { number, end, stands_at, deadline_file, layers, file: None })
    }

    /// Whether it is about these segments as they are.
    fn check(&self, view: &View) -> std::result::Result<(), String> {
        for part in view.parts.iter().filter(|p| p.segment.first_ordinal < self.end) {
            let found = part.segment.position_from(part.end_ordinal) as u64;
            match self.layers.get(&part.segment.number) {
                Some(layer) if layer.records == found && part.end_ordinal <= self.end => {}
                None if found == 0 => {}
                Some(layer) => {
                    let (number, expected) = (part.segment.number, layer.records);
                    return Err(format!("segment {number} has {found} records, expected {expected}"));
                }
                None => return Err(format!("it does not know segment {}", part.segment.number)),
            }
        }
        Ok(())
    }

    /// Puts layers of a compacted segment in the place of its sources'.
    pub(super) fn replace(&mut self, sources: &[u64], target: Option<(u64, Layer)>) {
        sources.iter().for_each(|number| _ = self.layers.remove(number));
        self.layers.extend(target);
        self.file = None;
    }

    /// Writes it, unless it is on disk as it is, and returns what the manifest has to say.
    pub(super) fn save(&mut self, store: &LogStore) -> Result<GenerationEntry> {
        let file = match self.file {
            Some(file) => file,
            None => {
                let file = store.new_file();
                disk::replace_file(&*store.disk, &path(&store.dir, file), &self.encode())?;
                *self.file.insert(file)
            }
        };
        Ok(GenerationEntry { number: self.number, file, deadline_file: self.deadline_file })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.layers.values().map(|l| size_of::<Layer>() + l.dead.memory_bytes()).sum()
    }
}

fn path(dir: &Path, file: u64) -> PathBuf {
    dir.join(format!("generation-{file}"))
}

fn read(disk: &dyn Disk, dir: &Path, entry: &GenerationEntry) -> Result<Generation> {
    let path = path(dir, entry.file);
    let bytes = disk::read_file(disk, &path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => StorageError::corrupt(&path, 0, "the file is missing"),
        _ => StorageError::io("read", &path, e),
    })?;
    let damaged = |what: String| {
        StorageError::corrupt(&path, 0, format!("generation {} is lost: {what}", entry.number))
    };
    let generation = Generation::decode(&bytes).map_err(damaged)?;
    if (generation.number, generation.deadline_file) != (entry.number, entry.deadline_file) {
        return Err(damaged("it is another generation's".into()));
    }
    Ok(Generation { file: Some(entry.file), ..generation })
}

/// The generations a manifest names, for the segments of `view`. Damaged ones are left out.
pub(super) fn load(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
    view: &View,
    found: &mut Vec<Damage>,
) -> Result<Vec<Arc<Generation>>> {
    let mut all = Vec::new();
    for entry in &manifest.generations {
        let fits = |generation: Generation| match generation.check(view) {
            Ok(()) => Ok(generation),
            Err(what) => Err(StorageError::corrupt(&path(dir, entry.file), 0, what)),
        };
        match read(disk, dir, entry).and_then(fits) {
            Ok(generation) => all.push(Arc::new(generation)),
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Checks the files of all generations on disk, those with deadlines too.
pub(super) fn verify(disk: &dyn Disk, dir: &Path) -> Vec<Result<()>> {
    let Ok(Some(manifest)) = Manifest::read(disk, dir) else { return Vec::new() }; // reported elsewhere
    let check = |entry: &GenerationEntry| {
        [read(disk, dir, entry).map(|_| ()), Deadlines::open(disk, dir, entry.deadline_file).map(|_| ())]
    };
    manifest.generations.iter().flat_map(check).collect()
}

/// The generations whose files are there, for a manifest made without the old one: of several files of a generation the
/// newest whose segments are all there.
pub(super) fn reconstruct(
    disk: &dyn Disk,
    dir: &Path,
    names: &[String],
    manifest: &Manifest,
) -> Vec<GenerationEntry> {
    let mut files: Vec<u64> =
        names.iter().filter_map(|n| n.strip_prefix("generation-")?.parse().ok()).collect();
    files.sort_unstable();
    let mut all: BTreeMap<u64, GenerationEntry> = BTreeMap::new();
    for file in files {
        let Ok(bytes) = disk::read_file(disk, &path(dir, file)) else { continue };
        let Ok(generation) = Generation::decode(&bytes) else { continue };
        let there = |number: &u64| manifest.segments.iter().any(|s| s.number == *number);
        if generation.layers.keys().all(there) {
            let Generation { number, deadline_file, .. } = generation;
            all.insert(number, GenerationEntry { number, file, deadline_file });
        }
    }
    all.into_values().collect()
}

impl View {
    /// The oldest generation that has this part's segment: what is alive in any state is alive in it.
    pub(super) fn holder(&self, part: &Part) -> Option<&Arc<Generation>> {
        self.generations
            .iter()
            .find(|g| g.end >= part.end_ordinal && part.end_ordinal > part.segment.first_ordinal)
    }

    /// Which records of a part nobody needs, now or in a kept generation, and the counts that go with it.
    pub(super) fn garbage<'a>(&'a self, part: &'a Part) -> (&'a Bitmap, Counts) {
        match self.holder(part).and_then(|g| g.layers.get(&part.segment.number)) {
            Some(layer) => (&layer.dead, layer.counts),
            None => (&part.dead, part.counts),
        }
    }

    /// Whether nobody needs the record with this ordinal.
    pub(super) fn is_garbage(&self, ordinal: u64) -> bool {
        let place = self.locate(ordinal);
        let part = place.and_then(|place| Some((self.part(place)?, place.position)));
        part.is_none_or(|(part, position)| self.garbage(part).0.get(position))
    }

    /// The state of a generation.
    pub(super) fn of_generation(&self, generation: &Generation) -> View {
        let part = |part: &Part| {
            let layer = generation.layers.get(&part.segment.number)?;
            Some(Part { dead: layer.dead.clone(), counts: layer.counts, ..part.clone() })
        };
        View {
            parts: self.parts.iter().filter_map(part).collect(),
            runs: self.runs.clone(),
            end: generation.end,
            generations: Vec::new(),
            lost: self.lost.iter().filter(|lost| lost.ordinal < generation.end).cloned().collect(),
        }
    }
}

impl LogStore {
    /// The writer, when no sync is under way.
    fn settled_writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let mut writer = self.writer.lock();
        while writer.syncing {
            self.synced.wait(&mut writer);
        }
        self.check_writable(&writer)?;
        Ok(writer)
    }

    fn unknown(&self, number: u64, view: &View) -> StorageError {
        let kept = view.generations.iter().map(|g| g.number).collect();
        StorageError::UnknownGeneration { path: self.dir.clone(), number, kept }
    }
}

/// Keeps the committed state as generation `number`.
pub(super) fn keep(store: &LogStore, number: u64) -> Result<()> {
    let mut writer = store.settled_writer()?;
    if let Some(why) = writer.dropped.take() {
        return Err(StorageError::Dropped { path: store.dir.clone(), why });
    }
    if !writer.batch.rows.is_empty() {
        return Err(StorageError::Staged { path: store.dir.clone() });
    }
    let view = store.view.load_full();
    match view.generations.last() {
        Some(last) if last.number == number && last.stands_at == view.end => return Ok(()),
        Some(last) if last.number >= number => {
            let (path, last) = (store.dir.clone(), last.number);
            return Err(StorageError::GenerationOrder { path, number, last });
        }
        _ => {}
    }
    if writer.open.count() > 0 {
        store.roll(&mut writer, Call::STAGES_NOTHING)?;
    }
    let mut view = View::clone(&store.view.load());
    let deadline_file =
        store.deadlines.lock().save(&store.disk, &store.dir, || store.new_file(), |o| view.is_dead(o))?;
    view.generations.push(Arc::new(Generation::of(&view, number, deadline_file)));
    store.view.store(Arc::new(store.checkpoint(view)?));
    Ok(())
}

/// Lets generation `number` go.
pub(super) fn forget(store: &LogStore, number: u64) -> Result<bool> {
    let _writer = store.settled_writer()?;
    let mut view = View::clone(&store.view.load());
    let before = view.generations.len();
    view.generations.retain(|g| g.number != number);
    if view.generations.len() == before {
        return Ok(false);
    }
    store.view.store(Arc::new(store.checkpoint(view)?));
    Ok(true)
}

/// Makes generation `number` the store's state again.
pub(super) fn roll_back(store: &LogStore, number: u64) -> Result<()> {
    let mut compaction = store.compaction.lock();
    let mut writer = store.settled_writer()?;
    let before = store.view.load_full();
    let mut kept: Vec<_> = before.generations.iter().filter(|g| g.number <= number).cloned().collect();
    let Some(generation) = kept.last_mut().filter(|g| g.number == number) else {
        return Err(store.unknown(number, &before));
    };
    *compaction = None; // it may copy segments that go
    let end = writer.next_ordinal().max(before.end);
    let fresh = Arc::new(Segment::create(&store.disk, &store.dir, store.new_file(), end, store.map_bytes())?);
    let mut view = before.of_generation(generation);
    let deadlines = match Deadlines::open(&*store.disk, &store.dir, generation.deadline_file) {
        Err(StorageError::Corrupt { path, offset, what }) => {
            store.found.lock().push(Damage { path, offset, what, key: None });
            open::deadlines_in_log(&view)?
        }
        opened => opened?,
    };
    let first_gone = generation.end;
    let standing = Arc::make_mut(generation);
    (standing.stands_at, standing.file) = (end, None);
    view.generations = kept;
    view.end = end;
    view.parts.push(Part {
        segment: fresh.clone(),
        dead: Arc::default(),
        end_ordinal: end,
        clean_to: end,
        counts: Counts::default(),
    });
    let runs = std::mem::take(&mut view.runs);
    for index in runs {
        if index.run.ordinals().end <= first_gone {
            view.runs.push(index);
        } else if index.run.ordinals().start < first_gone {
            let run = Arc::new(Run::merge(&[&index.run], |ordinal| view.is_garbage(ordinal)));
            view.runs.push(IndexRun { run, file: None });
        }
    }
    let newer = std::mem::replace(&mut *store.deadlines.lock(), deadlines);
    let view = match store.checkpoint(view) {
        Ok(view) => view,
        Err(e) => {
            *store.deadlines.lock() = newer;
            // A full disk refused before anything counted. Of another failure nobody knows which manifest is there.
            if !matches!(e, StorageError::NoSpace { .. }) {
                writer.poisoned = Some(e.to_string());
            }
            return Err(e);
        }
    };
    let stays = |part: &Part| view.parts.iter().any(|p| p.segment.number == part.segment.number);
    before.parts.iter().filter(|p| !stays(p)).for_each(|p| p.segment.retire());
    store.view.store(Arc::new(view));
    writer.restart(fresh, RECORDS_OFFSET);
    Ok(())
}

/// Pages of generation `number` that were seen again.
pub(super) fn renewed(
    store: &LogStore,
    number: u64,
    from: u64,
    limit: usize,
) -> Result<(Vec<Renewed>, Option<u64>)> {
    let now = store.view.load_full();
    let generation =
        now.generations.iter().find(|g| g.number == number).ok_or_else(|| store.unknown(number, &now))?;
    let view = now.of_generation(generation);
    let deadlines = match Deadlines::open(&*store.disk, &store.dir, generation.deadline_file) {
        Err(StorageError::Corrupt { .. }) => open::deadlines_in_log(&view)?,
        opened => opened?,
    };
    deadlines::renewed(&view, &deadlines.reader()?, from, limit)
}

/// Makes deadlines of generations anew where their files are damaged, from what the log still says of visits.
pub(super) fn mend(store: &LogStore, view: &mut View) -> Result<()> {
    let mut generations = std::mem::take(&mut view.generations);
    for generation in &mut generations {
        let opened = Deadlines::open(&*store.disk, &store.dir, generation.deadline_file);
        if matches!(opened, Err(StorageError::Corrupt { .. })) {
            let old = view.of_generation(generation);
            let mut deadlines = open::deadlines_in_log(&old)?;
            Arc::make_mut(generation).deadline_file =
                deadlines.save(&store.disk, &store.dir, || store.new_file(), |o| old.is_dead(o))?;
        }
        Arc::make_mut(generation).file = None;
    }
    view.generations = generations;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_reads_back_and_damage_is_noticed() {
        let mut dead = Bitmap::default();
        dead.set(3);
        let counts = Counts { live_pages: 4, live_bytes: 500, dead_pages: 1, tombstones: 2, seen: 3 };
        let layer = Layer { records: 10, dead: Arc::new(dead), counts };
        let generation = Generation {
            number: 5,
            end: 99,
            stands_at: 120,
            deadline_file: 7,
            layers: [(1, layer.clone()), (4, layer)].into(),
            file: None,
        };
        let mut bytes = generation.encode();
        let again = Generation::decode(&bytes).unwrap();
        assert_eq!(again.encode(), bytes);
        assert!(again.layers[&4].dead.get(3));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(Generation::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
            assert!(Generation::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
