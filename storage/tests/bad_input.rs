//! Proves that what is wrong is refused, by an error that names the thing and says what to do, and that a refusal
//! changes nothing: paths that are no stores, other versions, stores in use, pages and records that are none, cursors of
//! other stores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{
    Mint, Model, OwnedPage, Random, Step, created, open_sim, organizations, run_step, shows, small_options,
    strong, url,
};
use webbase_storage::disk::SimDisk;
use webbase_storage::{
    Codec, Compression, Cursor, Options, Order, Organization, Page, PageKey, PageStore, Record,
    RepositoryKey, Result, StorageError, StreamSpec, Trust, crc64, create, open,
};

/// The error there must be; its text must contain all `words`.
fn refused<T>(result: Result<T>, words: &[&str]) -> StorageError {
    let Err(e) = result else { panic!("accepted, where an error with {words:?} was expected") };
    let text = e.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    e
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A store with three pages, and its model.
fn three_pages(organization: Organization, options: &Options) -> (SimDisk, Arc<dyn PageStore>, Model) {
    let disk = created(organization, strong(), options);
    let store = open_sim(&disk, options).unwrap();
    let (mint, mut model) = (Mint::new(strong(), options), Model::default());
    let pages = (0..3).map(|n| mint.make(OwnedPage::new(n, 10, format!("page {n}")))).collect();
    for step in [Step::Add(pages), Step::Commit] {
        run_step(&*store, &mut model, &step).unwrap_or_else(|e| panic!("{organization}: {e}"));
    }
    (disk, store, model)
}

/// Whether a refusal left nothing behind: after a commit the store shows what it showed.
fn unchanged(store: &dyn PageStore, model: &Model) {
    store.commit().unwrap();
    shows(store, &model.visible, &[]).unwrap();
}

#[test]
fn a_path_that_is_not_a_store_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = small_options();
    let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
    std::fs::create_dir(&empty).unwrap();
    for path in [&empty, &missing] {
        let e = refused(open(path, &options), &[&name(path), "not a store", "STORE", "create"]);
        assert!(matches!(e, StorageError::NotAStore { .. }), "{e}");
    }
    assert!(!missing.exists(), "a failed open made a folder");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "a failed open left something");

    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    refused(open(&file, &options), &[&name(&file), "not a store"]);
    for organization in organizations() {
        refused(create(&file, organization, strong(), &options), &[&name(&file)]);
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"no folder");

    std::fs::write(empty.join("STORE"), "something else altogether, long enough to be one").unwrap();
    refused(open(&empty, &options), &[&name(&empty), "not a store", "another format"]);
}

#[test]
fn a_store_is_created_only_where_there_is_nothing() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        let options = small_options();
        let (full, twice) = (folder.path().join("full"), folder.path().join("a/b/twice"));
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("letter.txt"), "dear").unwrap();
        let e =
            refused(create(&full, organization, strong(), &options), &[&name(&full), "letter.txt", "empty"]);
        assert!(matches!(e, StorageError::NotAStore { .. }), "{e}");
        assert_eq!(std::fs::read(full.join("letter.txt")).unwrap(), b"dear");

        create(&twice, organization, strong(), &options).unwrap();
        let store = open(&twice, &options).unwrap();
        store.add(&[OwnedPage::new(1, 1, "kept").page()]).unwrap();
        store.close().unwrap();
        refused(create(&twice, organization, strong(), &options), &[&name(&twice)]); // in use
        drop(store);
        refused(
            create(&twice, organization, strong(), &options),
            &[&name(&twice), "a store already", "open it"],
        );
        assert!(open(&twice, &options).unwrap().lookup_url(&url(1)).unwrap().is_some());
    }
}

#[test]
fn a_store_of_another_version_is_named_with_both_versions() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path(), organization, strong(), &small_options()).unwrap();
        let path = folder.path().join("STORE");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4..8].copy_from_slice(&77_u32.to_le_bytes());
        let end = bytes.len() - 8;
        let crc = crc64(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let e = refused(
            open(folder.path(), &small_options()),
            &[&name(folder.path()), "version 77", "version 1", "copy"],
        );
        assert!(matches!(e, StorageError::Version { found: 77, .. }), "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it was left as it is");
    }
}

#[test]
fn a_store_in_use_is_named() {
    for organization in organizations() {
        let (disk, store, model) = three_pages(organization, &small_options());
        let e = refused(open_sim(&disk, &small_options()), &["/store", "in use", "stop"]);
        assert!(matches!(e, StorageError::Locked { .. }), "{e}");
        unchanged(&*store, &model);
    }
}

#[test]
fn the_repository_key_of_a_store_can_be_compared() {
    for organization in organizations() {
        let (_, store, _) = three_pages(organization, &small_options());
        assert_eq!(store.organization(), organization);
        assert_eq!(*store.repository_key(), strong());
        let other = RepositoryKey::new([8; 32]);
        assert_ne!(*store.repository_key(), other);
        assert_ne!(store.repository_key().fingerprint(), other.fingerprint());
    }
}

#[test]
fn one_bad_page_makes_the_batch_refused_and_nothing_of_it_staged() {
    for organization in organizations() {
        let options = Options { page_bytes_max: 5000, ..small_options() };
        let (_, store, model) = three_pages(organization, &options);
        let (large, mime) = (vec![b'x'; 5000], "m".repeat(70_000));
        let good = |n| OwnedPage::new(n, 99, "good");
        let ordinary = Page { url: "http://example.org/bad", ..Page::default() };
        let bad: [(Page<'_>, &[&str]); 6] = [
            (Page { body: &large, ..ordinary }, &["http://example.org/bad", "5000", "page_bytes_max"]),
            (Page { head: &large, ..ordinary }, &["http://example.org/bad", "5000", "page_bytes_max"]),
            (Page { mime: &mime, ..ordinary }, &["http://example.org/bad"]),
            (Page { url: "", ..ordinary }, &["empty", "http://example.com/"]),
            (Page { url: "/only/a/path", ..ordinary }, &["/only/a/path", "in full"]),
            (Page { url: "http://", ..ordinary }, &["http://", "host"]),
        ];
        for (page, words) in bad {
            for at in [0, 1, 100] {
                let goods: Vec<OwnedPage> = (0..100).map(good).collect();
                let mut list: Vec<Page<'_>> = goods.iter().map(OwnedPage::page).collect();
                list.insert(at, page);
                refused(store.add(&list), words);
                unchanged(&*store, &model);
            }
        }
    }
}

#[test]
fn what_was_staged_before_a_bad_page_stays_staged() {
    for organization in organizations() {
        let options = small_options();
        let (_, store, mut model) = three_pages(organization, &options);
        let made = Mint::new(strong(), &options).make(OwnedPage::new(7, 5, "before"));
        run_step(&*store, &mut model, &Step::Add(vec![made]))
            .unwrap_or_else(|e| panic!("{organization}: {e}"));
        refused(store.add(&[Page::default()]), &["empty"]);
        run_step(&*store, &mut model, &Step::Commit).unwrap_or_else(|e| panic!("{organization}: {e}"));
        unchanged(&*store, &model);
        assert!(store.lookup_url(&url(7)).unwrap().is_some());
    }
}

#[test]
fn a_url_that_is_none_cannot_be_looked_up() {
    for organization in organizations() {
        let (_, store, _) = three_pages(organization, &small_options());
        refused(store.lookup_url(""), &["empty"]);
        refused(store.lookup_url("/x"), &["/x", "names no site"]);
        assert!(store.lookup_url("http://example.org/nowhere").unwrap().is_none());
    }
}

/// A record as a store with this key and these settings makes it.
fn record(key: RepositoryKey, options: &Options, page: OwnedPage) -> Record {
    Mint::new(key, options).make(page).record
}

#[test]
fn a_record_of_another_repository_is_refused() {
    for organization in organizations() {
        let (_, store, model) = three_pages(organization, &small_options());
        let good = record(strong(), &small_options(), OwnedPage::new(5, 99, "good"));
        let strange = record(RepositoryKey::new([8; 32]), &small_options(), OwnedPage::new(6, 99, "strange"));
        let words = ["http://example.org/page/6", "another repository", "copy the page"];
        refused(store.add_records(&[good, strange.clone()]), &words);
        unchanged(&*store, &model);
        refused(store.merge(&mut [Ok(strange)].into_iter()), &words);
        unchanged(&*store, &model);
    }
}

#[test]
fn a_record_over_the_limit_is_refused() {
    for organization in organizations() {
        let options = Options { page_bytes_max: 5000, ..small_options() };
        let (_, store, model) = three_pages(organization, &options);
        let large = record(strong(), &small_options(), OwnedPage::new(5, 99, vec![b'x'; 6000]));
        refused(store.add_records(&[large]), &["http://example.org/page/5", "5000", "page_bytes_max"]);
        unchanged(&*store, &model);
    }
}

#[test]
fn a_merge_must_be_sorted() {
    for organization in organizations() {
        let (_, store, mut model) = three_pages(organization, &small_options());
        let make = |n| record(strong(), &small_options(), OwnedPage::new(n, 99, "merged"));
        let mut records: Vec<Record> = (0..6).map(make).collect();
        records.sort_by_key(|r| r.get().key());
        records.swap(3, 4);
        let (previous, next) = (records[3].get().key(), records[4].get().key());
        let merged = store.merge(&mut records.iter().cloned().map(Ok));
        refused(merged, &["ascending", &previous.to_string(), &next.to_string()]);
        // What came before the error stays staged.
        records[..4].iter().for_each(|r| model.add(r, &mut Default::default()));
        model.commit();
        unchanged(&*store, &model);
    }
}

#[test]
fn an_error_from_the_source_ends_a_merge() {
    for organization in organizations() {
        let (_, store, _) = three_pages(organization, &small_options());
        let broken = StorageError::BadCursor { what: "the source broke".into() };
        let good = record(strong(), &small_options(), OwnedPage::new(5, 99, "good"));
        refused(store.merge(&mut [Ok(good), Err(broken)].into_iter()), &["the source broke"]);
        store.commit().unwrap();
        assert!(
            store.lookup_url(&url(5)).unwrap().is_some(),
            "{organization}: what came before stays staged"
        );
    }
}

/// Compressible pages, a dictionary trained on such, and a record that needs it.
fn with_dictionary() -> (Vec<u8>, Record) {
    let options = Options { compression: Compression::Zstd(1), ..small_options() };
    let samples: Vec<Vec<u8>> = (0..400).map(|n| Random(n).body(600, true)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let content = webbase_storage::Dictionary::train(&samples, 4000, 1).unwrap().content().to_vec();
    let store = open_sim(&created(Organization::Log, strong(), &options), &options).unwrap();
    store.add_dictionary(&content).unwrap();
    store.add(&[OwnedPage::new(5, 99, Random(999).body(600, true)).page()]).unwrap();
    store.commit().unwrap();
    let record = store.lookup_url(&url(5)).unwrap().unwrap();
    assert_ne!(record.get().dictionary(), 0);
    (content, record)
}

#[test]
fn a_record_needs_its_dictionary_first() {
    let (dictionary, record) = with_dictionary();
    for organization in organizations() {
        let (disk, store, model) = three_pages(organization, &small_options());
        let digest = format!("{:016x}", record.get().dictionary());
        refused(store.add_records(std::slice::from_ref(&record)), &[&digest, "add the dictionary"]);
        unchanged(&*store, &model);
        assert_eq!(format!("{:016x}", store.add_dictionary(&dictionary).unwrap()), digest);
        store.add_records(std::slice::from_ref(&record)).unwrap();
        store.commit().unwrap();
        drop(store);
        let store = open_sim(&disk, &small_options()).unwrap(); // the dictionary is durable
        let found = store.lookup_url(&url(5)).unwrap().unwrap();
        assert_eq!(found.body(store.dictionaries()).unwrap(), Random(999).body(600, true));
    }
}

/// The same record with other bytes for a body, and every checksum right.
fn with_body(record: &Record, body: &[u8]) -> Record {
    let old = record.bytes();
    let start = old.len() - 8 - record.get().stored_body().len();
    let mut bytes = [&old[..start], body].concat();
    bytes[68..72].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let check = crc64(&bytes[..76]) as u32;
    bytes[76..80].copy_from_slice(&check.to_le_bytes());
    let crc = crc64(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    Record::new(Bytes::from(bytes)).expect("its checksums hold")
}

#[test]
fn a_body_that_does_not_unpack_is_an_error_that_names_the_page() {
    for organization in organizations() {
        for (compression, codec) in [(Compression::Zstd(1), Codec::Zstd), (Compression::Lz4, Codec::Lz4)] {
            let options = Options { compression, ..small_options() };
            let (_, store, _) = three_pages(organization, &options);
            let good = record(strong(), &options, OwnedPage::new(5, 99, Random(1).body(2000, true)));
            assert_eq!(good.get().codec(), codec);
            let stored = good.get().stored_body().to_vec();
            let cut = stored[..stored.len() / 2].to_vec();
            for rubbish in [vec![0xa5; 50], Vec::new(), cut, [stored, vec![0; 9]].concat()] {
                let bad = with_body(&good, &rubbish);
                let e = refused(bad.body(store.dictionaries()), &["http://example.org/page/5", "unpack"]);
                assert!(matches!(e, StorageError::Unpack { .. }), "{e}");
                // A store either refuses it or gives back what it got; it never makes up a body.
                if store.add_records(std::slice::from_ref(&bad)).is_ok() {
                    store.commit().unwrap();
                    let found = store.lookup_url(&url(5)).unwrap().expect("it was accepted");
                    refused(found.body(store.dictionaries()), &["http://example.org/page/5"]);
                    store.delete(&[found.get().key()]).unwrap();
                    store.commit().unwrap();
                }
                let others = (0..3).all(|n| store.lookup_url(&url(n)).unwrap().is_some());
                assert!(others, "{organization}: the other pages stay");
            }
        }
    }
}

#[test]
fn bytes_that_are_no_record_are_none() {
    let good = record(strong(), &small_options(), OwnedPage::new(5, 99, "good"));
    for at in 0..good.bytes().len() {
        let mut bytes = good.bytes().to_vec();
        bytes[at] ^= 1;
        assert!(Record::new(bytes.into()).is_err(), "byte {at} changed");
        assert!(Record::new(good.bytes().slice(..at)).is_err(), "cut at {at}");
    }
    assert!(Record::new([good.bytes().as_ref(), b"x"].concat().into()).is_err(), "a byte too many");
}

#[test]
fn cursors_and_orders_of_other_organizations_are_refused() {
    for organization in organizations() {
        let (_, store, _) = three_pages(organization, &small_options());
        let stream = |order, from| store.stream(&StreamSpec { order, from, ..StreamSpec::default() });
        let (key, ordinal) = (Cursor::Key(PageKey::MIN), Cursor::Ordinal(0));
        if organization == Organization::Log {
            refused(stream(Order::Store, key), &["cursor", "hash", "from the beginning"]);
            refused(stream(Order::Id, Cursor::Start), &["log", "id order", "sort"]);
        } else {
            refused(stream(Order::Store, ordinal), &["cursor", "from the beginning"]);
            refused(stream(Order::Id, ordinal), &["cursor", "from the beginning"]);
        }
        assert!(stream(Order::Store, Cursor::End).unwrap().next().is_none());
        refused("nonsense".parse::<Cursor>(), &["cursor", "nonsense"]);
        refused("kzz.11".parse::<Cursor>(), &["cursor", "kzz.11"]);
    }
}

#[test]
fn a_closed_store_refuses_writes_and_can_be_read() {
    for organization in organizations() {
        let (_, store, model) = three_pages(organization, &small_options());
        store.close().unwrap();
        let key = strong().page_key(&url(1)).unwrap();
        refused(store.add(&[OwnedPage::new(5, 1, "late").page()]), &["/store", "closed", "reopen"]);
        refused(store.delete(&[key]), &["/store", "closed"]);
        shows(&*store, &model.visible, &[]).unwrap();
        assert!(store.lookup(key, Trust::Verify).unwrap().is_some());
    }
}
