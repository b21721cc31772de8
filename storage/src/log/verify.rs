//! Reading everything to see whether it is what was written, and keeping what is good when it is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LogStore;
use super::compaction;
use super::generations;
use super::open;
use super::segment::{self, SegmentHeader};
use super::view::{Part, View};
use super::writer::Call;
use crate::catalog::Row;
use crate::dictionary_files::{Needed, count_needed};
use crate::disk::{ReadAhead, Through};
use crate::error::{Result, StorageError};
use crate::record::{Kind, RecordRef};
use crate::store::{Damage, Organization, Verified};

/// Checks every segment's header, catalog and records, and that the index finds every living page.
pub(super) fn verify(store: &LogStore) -> Result<Verified> {
    check(store).map(|(report, _)| report)
}

/// As `verify`; also which lost dictionaries are needed.
fn check(store: &LogStore) -> Result<(Verified, Needed)> {
    let view = store.view.load_full();
    let mut report = Verified { damage: store.found.lock().clone(), ..Verified::default() };
    let mut needed = Needed::new();
    for part in &view.parts {
        verify_part(&view, part, &mut report, &store.options.checked_bytes, |record| {
            count_needed(record, store.packer.dictionaries(), &mut needed);
        })?;
    }
    for generation in &view.generations {
        verify_index(&view.of_generation(generation), &mut report)?;
    }
    let small = [
        crate::identity::verify(&*store.disk, &store.dir),
        open::verify_checkpoint(&*store.disk, &store.dir),
    ];
    for result in small.into_iter().chain(generations::verify(&*store.disk, &store.dir)) {
        note(&mut report, result)?;
    }
    report.damage.extend(store.packer.verify_dictionaries(&needed)?);
    report
        .damage
        .sort_by(|a, b| (&a.path, a.offset, a.key.is_none()).cmp(&(&b.path, b.offset, b.key.is_none())));
    report.damage.dedup_by(|a, b| a.path == b.path && a.offset == b.offset);
    Ok((report, needed))
}

/// Checks a segment, and hands `living` each good record that somebody can get.
fn verify_part(
    view: &View,
    part: &Part,
    report: &mut Verified,
    told: &AtomicU64,
    mut living: impl FnMut(&RecordRef<'_>),
) -> Result<()> {
    let segment = &part.segment;
    let header = SegmentHeader::read(&**segment.file()).map(|_| ());
    let catalog = if segment.is_open() { Ok(()) } else { segment::verify_catalog(&**segment.file()) };
    for result in [header, catalog] {
        note(report, result)?;
    }
    let count = segment.position_from(part.end_ordinal);
    let Some(last) = count.checked_sub(1).and_then(|last| segment.place(last)) else { return Ok(()) };
    let mut ahead = ReadAhead::new(segment.file().clone(), segment::RECORDS_OFFSET..last.end, Through::Cache);
    for position in 0..count {
        let Some(place) = segment.place(position) else { continue };
        let row = match segment.row(position) {
            Err(StorageError::Corrupt { .. }) => None,
            row => Some(row?),
        };
        let key = row.filter(|r| !r.is_damaged()).map(|r| r.key());
        let bytes = match ahead.get(place.clone()) {
            Ok(bytes) => Ok(bytes),
            Err(_) => {
                let mut bytes = vec![0; (place.end - place.start) as usize];
                let read = segment.file().read_exact_at(&mut bytes, place.start);
                read.map(|()| bytes.into()).map_err(|e| e.to_string())
            }
        };
        let checked = bytes.and_then(|bytes| match RecordRef::parse(&bytes) {
            Ok(record) if Some(record.key()) != key => Err("record and catalog name different pages".into()),
            Ok(record) => {
                if !view.garbage(part).0.get(position) {
                    living(&record);
                }
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        });
        report.checked_bytes += place.end - place.start;
        told.fetch_add(place.end - place.start, Ordering::Relaxed);
        let path = segment.path().to_path_buf();
        match checked {
            Err(what) => report.damage.push(Damage { path, offset: place.start, what, key }),
            Ok(()) => report.good_records += 1,
        }
        if let Some(row) = row {
            verify_found(view, part, position, &row, report);
        }
    }
    Ok(())
}

/// Checks that the index finds every living page of a generation; its records are those of all segments.
fn verify_index(view: &View, report: &mut Verified) -> Result<()> {
    for part in &view.parts {
        for position in 0..part.segment.position_from(part.end_ordinal) {
            match part.segment.row(position) {
                Err(StorageError::Corrupt { .. }) => {}
                row => verify_found(view, part, position, &row?, report),
            }
        }
    }
    Ok(())
}

fn verify_found(view: &View, part: &Part, position: usize, row: &Row, report: &mut Verified) {
    if row.kind() != Kind::Page || part.dead.get(position) {
        return;
    }
    let ordinal = part.segment.ordinal(position);
    let found = view.find(row.key()).ok().flatten().map(|(ordinal, _)| ordinal);
    if found != Some(ordinal) {
        let what = format!("the index has {found:?} for ordinal {ordinal}");
        let (path, key) = (part.segment.path().to_path_buf(), Some(row.key()));
        let offset = part.segment.place(position).map_or(0, |p| p.start);
        report.damage.push(Damage { path, offset, what, key });
    }
}

fn note(report: &mut Verified, result: Result<()>) -> Result<()> {
    match result {
        Err(StorageError::Corrupt { path, offset, what }) => {
            report.damage.push(Damage { path, offset, what, key: None });
            Ok(())
        }
        other => other,
    }
}

/// Rewrites each damaged segment without what is damaged, or, to leave out nothing that may be healed, with damaged pages as
/// they are. Damage outside segments was mended by opening the store, but for
/// dictionaries that are lost: what needs them stays.
pub(super) fn repair(store: &LogStore, leave_out: bool) -> Result<Verified> {
    let (report, needed) = check(store)?;
    let damaged: BTreeSet<_> = report.damage.iter().map(|d| d.path.clone()).collect();
    let open = store.view.load().parts.last().map(|p| p.segment.path().to_path_buf());
    if open.is_some_and(|path| damaged.contains(&path)) {
        let mut writer = store.writer.lock();
        store.check_writable(&writer)?;
        store.roll(&mut writer, Call::STAGES_NOTHING)?;
    }
    let view = store.view.load_full();
    for part in &view.parts {
        if damaged.contains(part.segment.path()) {
            compaction::rewrite(store, part.segment.number, leave_out)?;
        }
    }
    // The small files are written anew, whether they were damaged or not. Deadlines that are lost are taken from what the
    // log still says of visits.
    let lost = matches!(open::verify_checkpoint(&*store.disk, &store.dir), Err(StorageError::Corrupt { path, .. })
        if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("deadlines-")));
    if lost {
        *store.deadlines.lock() = open::deadlines_in_log(&store.view.load())?;
    }
    crate::identity::rewrite(&*store.disk, &store.dir, store.packer.repository_key(), Organization::Log, 0)?;
    store.packer.mend_dictionaries(&needed)?;
    let _writer = store.writer.lock();
    let mut view = View::clone(&store.view.load());
    view.runs.iter_mut().for_each(|run| run.file = None);
    view.lost.retain(|_| !leave_out);
    generations::mend(store, &mut view)?;
    store.view.store(Arc::new(store.checkpoint(view)?));
    store.found.lock().clear();
    Ok(report)
}
