//! Places in the store order of logs, as their streams, lists and cursors show them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use common::{Mint, OwnedPage, created, open_sim, small_options, strong};
use webbase_storage::{Organization, PageId, PageKey, PageStore, Record, StreamSpec};

/// Merges pages in key order, and says at which ordinals.
fn run(
    store: &dyn PageStore,
    mint: &Mint,
    pages: impl Iterator<Item = u64>,
    at_ms: u64,
) -> std::ops::Range<u64> {
    let end = || match store
        .snapshot()
        .stream(&StreamSpec { from: webbase_storage::Cursor::End, ..StreamSpec::default() })
        .unwrap()
        .cursor()
    {
        webbase_storage::Cursor::Ordinal(end) => end,
        other => panic!("{other:?}"),
    };
    let first = end();
    let mut records: Vec<Record> =
        pages.map(|n| mint.make(OwnedPage::new(n, at_ms, vec![n as u8; 200])).record).collect();
    records.sort_by_key(|record| record.get().key());
    store.merge(&mut records.into_iter().map(Ok)).unwrap();
    store.commit().unwrap();
    first..end()
}

#[test]
fn the_place_of_a_key_in_a_run_is_found_and_compaction_keeps_it() {
    let options = small_options();
    let disk = created(Organization::Log, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let mint = Mint::new(strong(), &options);
    let first = run(&*store, &mint, 0..200, 1);
    store.keep_generation(1).unwrap();
    let second = run(&*store, &mint, (0..200).step_by(3).chain(300..350), 2);
    store.delete(&[mint.key(5), mint.key(7)]).unwrap();
    store.commit().unwrap();
    store.keep_generation(2).unwrap();
    for compacted in [false, true] {
        if compacted {
            store.drop_generation(1).unwrap();
            while !store.compact(1 << 20).unwrap().done {}
        }
        let snapshot = store.generation(2).unwrap().unwrap();
        // Where each living page lies, as the stream tells.
        let mut stream = snapshot.stream(&StreamSpec::default()).unwrap();
        let mut all = Vec::new();
        while let Some(record) = stream.next() {
            all.push((stream.ordinal().unwrap(), record.unwrap().get().key()));
        }
        let listed = snapshot.list(PageId(0)..=PageId(u64::MAX), PageKey::MIN, 1000).unwrap();
        let mut by_ordinal: Vec<_> = listed.iter().map(|l| (l.ordinal.unwrap(), l.key)).collect();
        by_ordinal.sort_unstable();
        assert_eq!(by_ordinal, all, "lists and streams agree");
        for ordinals in [&first, &second] {
            let of_run: Vec<_> = all.iter().filter(|(o, _)| ordinals.contains(o)).collect();
            assert!(of_run.len() > 20 && of_run.is_sorted_by_key(|(_, key)| *key));
            let keys = of_run.iter().flat_map(|(_, key)| [*key, key.next().unwrap()]);
            for key in keys.chain([PageKey::MIN, PageKey::MAX]) {
                let place = snapshot.ordinal_from(ordinals.clone(), key).unwrap();
                for (ordinal, found) in &of_run {
                    assert_eq!(*ordinal >= place, *found >= key, "{key} at {place}, {found} at {ordinal}");
                }
            }
        }
    }
}
