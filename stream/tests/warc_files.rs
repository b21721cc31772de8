//! The WARC reader against files that other people's tools made, and against what warcio finds in them: the same records at the
//! same places with the same payloads. Damaged files are read as far as they go, and say where they are damaged.
//!
//! The files are in `../shared/data` beside the workspace, or where `WEBBASE_TEST_DATA` says; without them every test says that
//! it was skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use data_encoding::BASE32_NOPAD;
use serde_json::Value;
use sha1::Digest;
use webbase_storage::{Codec, Compression, Dictionaries, RepositoryKey, pack_page};
use webbase_stream::warc::{
    Block, Capture, Form, Importer, Item, Originals, Reader, Report, Writer, read_ahead,
};

fn folder() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = Path::new(&root).join("warc");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
    None
}

/// What is compared of a record: place, type, and length and digest of its payload.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Found {
    offset: u64,
    kind: String,
    payload: Option<(u64, String)>,
}

fn read(path: &Path) -> (Vec<Found>, Vec<(u64, String)>, bool) {
    // One of the pages has 431 MB.
    let mut reader = Reader::new(File::open(path).unwrap()).unwrap().with_block_bytes_max(512 << 20);
    let (mut found, mut damage, mut shares) = (Vec::new(), Vec::new(), false);
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Damage(place) => damage.push((place.offset, place.what)),
            Item::Record(record) => {
                if let Block::Damaged(_, why) = &record.block {
                    damage.push((record.offset, why.clone()));
                }
                shares |= record.shares_member;
                let payload = record.payload().map(|payload| {
                    (payload.len() as u64, BASE32_NOPAD.encode(&sha1::Sha1::digest(&payload)))
                });
                found.push(Found { offset: record.offset, kind: record.kind().name().to_owned(), payload });
            }
        }
    }
    (found, damage, shares)
}

/// What warcio found in each file, and whether it gave up.
fn expected(folder: &Path) -> BTreeMap<String, (Vec<Found>, bool)> {
    let mut text = String::new();
    let packed = File::open(folder.join("records.jsonl.gz")).unwrap();
    flate2::read::MultiGzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let mut all: BTreeMap<String, (Vec<Found>, bool)> = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (records, gave_up) = all.entry(line["file"].as_str().unwrap().to_owned()).or_default();
        if !line["stopped"].is_null() {
            *gave_up = true;
            continue;
        }
        let payload =
            line["payload_len"].as_u64().map(|len| (len, line["payload_sha1"].as_str().unwrap().to_owned()));
        let kind = line["type"].as_str().unwrap_or_default().trim().to_owned();
        records.push(Found { offset: line["offset"].as_u64().unwrap(), kind, payload });
    }
    all
}

#[test]
fn the_records_are_those_that_warcio_finds() {
    let Some(folder) = folder() else { return };
    let mut wrong = Vec::new();
    let (mut files, mut records) = (0, 0);
    for (file, (expected, gave_up)) in expected(&folder) {
        let (found, damage, shares) = read(&folder.join(&file));
        (files, records) = (files + 1, records + expected.len());
        let same = if gave_up { found.starts_with(&expected) } else { found == expected };
        if !same {
            let at = found
                .iter()
                .zip(&expected)
                .position(|(a, b)| a != b)
                .unwrap_or(found.len().min(expected.len()));
            wrong.push(format!(
                "{file}: {} records, warcio finds {}{}; the first that differs is {at}: {:?}, expected {:?}; damage {damage:?}",
                found.len(),
                expected.len(),
                if gave_up { " and gives up" } else { "" },
                found.get(at),
                expected.get(at),
            ));
        }
        if gave_up && damage.is_empty() && !shares {
            wrong.push(format!("{file}: warcio gives up, and nothing is reported; {} records", found.len()));
        }
    }
    assert!(wrong.is_empty(), "{} of {files} files\n{}", wrong.len(), wrong.join("\n"));
    assert!(files > 100 && records > 3000, "{files} files, {records} records");
    println!("{files} files, {records} records");
}

#[test]
fn what_is_no_archive_is_said_to_be_none() {
    let Some(folder) = folder() else { return };
    for file in ["chatnoir-resiliparse/warcfile.warc.lz4", "gowarc/test.warc.bz2", "MANIFEST.tsv"] {
        let (found, damage, _) = read(&folder.join(file));
        assert!(found.is_empty() && !damage.is_empty(), "{file}: {found:?}");
    }
}

#[test]
fn damage_is_found_where_it_was_made() {
    let Some(folder) = folder() else { return };
    let folder = folder.join("derived");
    let (truth, damage, _) = read(&folder.join("blackbook-plain.warc"));
    assert!(truth.len() == 90 && damage.is_empty());
    // Places differ between the variants, what the records hold does not.
    let held = |records: &[Found]| -> Vec<(String, Option<(u64, String)>)> {
        records.iter().map(|found| (found.kind.clone(), found.payload.clone())).collect()
    };
    let truth = held(&truth);
    for line in std::fs::read_to_string(folder.join("EXPECTED.jsonl")).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let file = line["file"].as_str().unwrap();
        let (found, damage, shares) = read(&folder.join(file));
        let found = held(&found);
        let number = |name: &str| line[name].as_u64().map(|number| number as usize);
        if let Some(count) = number("records") {
            assert!(
                found == truth[..count] && damage.is_empty(),
                "{file}: {} records, {damage:?}",
                found.len()
            );
            assert_eq!(shares, file.contains("whole-gzip"), "{file}");
            continue;
        }
        assert!(!damage.is_empty(), "{file}: nothing is reported");
        let before = number("records_before").or(number("records_whole")).unwrap();
        assert_eq!(found[..before], truth[..before], "{file}");
        // Nothing is made up: what follows are records of the file, in their order.
        let mut rest = truth[before..].iter();
        let known = found[before..]
            .iter()
            .filter(|record| rest.clone().any(|t| t == *record) && rest.by_ref().any(|t| t == *record));
        let (known, all) = (known.count(), found.len() - before);
        if let Some(after) = number("records_after_recoverable") {
            assert!(known >= after, "{file}: {known} of {after} records behind the damage");
        }
        // One record is the damaged one itself.
        assert!(all - known <= 1, "{file}: {} records that are none; {damage:?}", all - known);
        println!("{file}: {before} records, then {known} of {all}; {damage:?}");
    }
}

fn import(path: &Path, originals: &Originals) -> (Vec<Capture>, Report) {
    let mut reader = Reader::new(File::open(path).unwrap()).unwrap();
    let mut importer = Importer::new(originals.clone());
    let mut captures = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        captures.extend(importer.take(item));
    }
    (captures, importer.finish(reader.offset()))
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![folder.to_owned()] };
    entries.flat_map(|entry| files(&entry.unwrap().path())).collect()
}

/// What all threads import of a file, its bodies packed again or kept as they are packed.
fn import_ahead(path: &Path, keeps_gzip: bool) -> (Vec<Capture>, Report) {
    let mut importer = Importer::new(Originals::new(64 << 20)).keeping_gzip(keeps_gzip);
    let mut captures = Vec::new();
    let (read, _) = read_ahead(File::open(path).unwrap(), &mut importer, |capture| {
        captures.push(capture);
        Ok::<_, ()>(())
    });
    (captures, importer.finish(read))
}

#[test]
fn many_threads_import_what_one_does() {
    let Some(folder) = folder() else { return };
    let all = files(&folder);
    for path in &all {
        let (captures, report) = import(path, &Originals::new(64 << 20));
        let (ahead, report_ahead) = import_ahead(path, false);
        assert_eq!(report_ahead, report, "{}", path.display());
        assert_eq!(ahead.len(), captures.len(), "{}", path.display());
        for (one, other) in captures.iter().zip(&ahead) {
            assert!(one.page() == other.page(), "{}: {}", path.display(), one.url);
        }
    }
    assert!(all.len() > 140, "{} files", all.len());
}

#[test]
fn bodies_that_stay_packed_are_the_same_bodies() {
    let Some(folder) = folder() else { return };
    let key = RepositoryKey::random().unwrap();
    let dictionaries = Dictionaries::default();
    let (mut kept, mut others) = (0, 0);
    for path in files(&folder) {
        let (packed, report) = import_ahead(&path, true);
        let (plain, as_before) = import_ahead(&path, false);
        assert_eq!(report, as_before, "{}", path.display());
        for (one, other) in packed.iter().zip(&plain) {
            let record = pack_page(&key, &one.page(), Compression::default(), None).unwrap();
            assert_eq!(record.body(&dictionaries).unwrap(), other.body, "{}: {}", path.display(), one.url);
            assert_eq!(record.head(&dictionaries).unwrap(), other.head, "{}: {}", path.display(), one.url);
            assert!(other.kept.is_none() && (one.kept.is_none() || one.body.is_empty()));
            match record.get().codec() {
                Codec::Deflate => kept += 1,
                _ => others += 1,
            }
        }
    }
    println!("{kept} bodies stayed as they were packed, {others} did not");
    // The others are not in gzip, share a member, are revisits, or so small that packing does not pay.
    assert!(kept > 300, "{kept} bodies, beside {others}");
}

#[test]
fn what_is_imported_and_written_again_is_the_same() {
    let Some(folder) = folder() else { return };
    let (key, dictionaries) = (RepositoryKey::new([7; 32]), Dictionaries::default());
    let (mut all, mut digests) = (0, 0);
    for (file, _) in expected(&folder) {
        let (captures, report) = import(&folder.join(&file), &Originals::new(64 << 20));
        assert_eq!(report.captures, captures.len() as u64, "{file}");
        for form in [Form::Gzip, Form::Plain] {
            let (mut writer, mut out) = (Writer::new(form), Vec::new());
            writer.warcinfo(0, &[("software", "a test")], &mut out);
            for capture in &captures {
                let record = pack_page(&key, &capture.page(), Compression::Zstd(1), None).unwrap();
                let from = out.len();
                writer.page(&record, &dictionaries, &mut out).unwrap();
                let mut again = Vec::new();
                Writer::new(form).page(&record, &dictionaries, &mut again).unwrap();
                assert!(again == out[from..], "{file}: {} is not written twice alike", capture.url);
            }
            let (written, _) = {
                let mut reader = Reader::new(&out[..]).unwrap();
                let mut importer = Importer::new(Originals::new(0));
                let mut written = Vec::new();
                while let Some(item) = reader.next().unwrap() {
                    assert!(
                        matches!(&item, Item::Record(record) if matches!(record.block, Block::Whole(_))),
                        "{item:?}"
                    );
                    written.extend(importer.take(item));
                }
                let report = importer.finish(reader.offset());
                assert!(report.damaged == 0 && report.digests_wrong == 0 && report.sharing_member == 0);
                (written, report)
            };
            assert_eq!(written.len(), captures.len(), "{file}");
            for (before, after) in captures.iter().zip(&written) {
                assert_eq!(
                    (&before.head, &before.body),
                    (&after.head, &after.body),
                    "{file}: {}",
                    before.url
                );
                assert_eq!(before.payload_digest, after.payload_digest, "{file}: {}", before.url);
                assert_eq!(before.fetched_at_ms, after.fetched_at_ms, "{file}: {}", before.url);
                assert_eq!(
                    (before.status, &before.mime),
                    (after.status, &after.mime),
                    "{file}: {}",
                    before.url
                );
            }
        }
        all += captures.len();
        digests += report.digests_verified;
    }
    println!("{all} captures, {digests} digests");
    assert!(all > 1200 && digests > 500, "{all} captures, {digests} digests");
}

#[test]
fn revisits_get_the_body_of_their_original() {
    let Some(folder) = folder() else { return };
    let originals = Originals::new(64 << 20);
    let (captures, report) = import(&folder.join("pywb/iana.warc.gz"), &originals);
    println!("{report:?}");
    assert_eq!(report.records["revisit"], 123);
    assert_eq!(report.revisits_resolved + report.revisits_unresolved + report.not_modified, 123);
    assert!(report.revisits_resolved > 100, "{report:?}");
    assert_eq!(captures.len() as u64, report.pages + report.superseded);
    // An original in another file, of another URL.
    let (_, report) = import(&folder.join("pywb/example-url-agnostic-revisit.warc.gz"), &originals);
    assert_eq!((report.revisits_resolved, report.revisits_unresolved), (0, 1));
    import(&folder.join("pywb/example-url-agnostic-orig.warc.gz"), &originals);
    let (captures, report) = import(&folder.join("pywb/example-url-agnostic-revisit.warc.gz"), &originals);
    assert_eq!((report.revisits_resolved, captures.len()), (1, 1));
    assert!(!captures[0].body.is_empty() && captures[0].head.starts_with(b"HTTP/"));
}
