//! A link matrix is what a map of pages to links would be: under any pages in any order, changes, merges, crashes and damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use webbase_storage::disk::{Crash, Disk, OsDisk, SimDisk};

use super::*;
use crate::importance::LINKS_MAX;

type Model = BTreeMap<u32, Vec<u32>>;

fn check(found: &LinkMatrix, model: &Model, pages: &[u32]) {
    for page in pages {
        assert_eq!(found.links_of(*page).unwrap(), model.get(page).cloned(), "page {page}");
    }
}

fn apply(matrix: &mut LinkMatrix, model: &mut Model, batch: &[(u32, Vec<u32>)]) {
    let mut changes = matrix.changes();
    let mut seen = BTreeMap::new();
    for (page, links) in batch {
        if seen.insert(*page, ()).is_some() {
            assert!(matches!(changes.add(*page, links), Err(MatrixError::Twice(twice)) if twice == *page));
            continue;
        }
        changes.add(*page, links).unwrap();
        let mut links = links.clone();
        links.sort_unstable();
        links.dedup();
        model.insert(*page, links);
    }
    matrix.accept(changes, None).unwrap();
}

/// Pages near each other, in other blocks and in other tiles.
fn page() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..50, 65_530u32..65_540, 524_280u32..524_300, 1_100_000u32..1_100_005]
}

fn batches() -> impl Strategy<Value = Vec<Vec<(u32, Vec<u32>)>>> {
    let links = proptest::collection::vec(page(), 0..12);
    proptest::collection::vec(proptest::collection::vec((page(), links), 0..20), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_is_a_map_of_pages_to_links(batches in batches()) {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let dir = Path::new("/links");
        let mut matrix = LinkMatrix::open(disk.clone(), dir, 1 << 20).unwrap();
        let mut model = Model::new();
        let mut pages: Vec<u32> = batches.iter().flatten().flat_map(|(page, links)| links.iter().copied().chain([*page])).collect();
        pages.sort_unstable();
        pages.dedup();
        for batch in &batches {
            apply(&mut matrix, &mut model, batch);
            check(&matrix, &model, &pages);
        }
        matrix.merge().unwrap();
        check(&matrix, &model, &pages);
        let again = LinkMatrix::open(disk, dir, 1 << 20).unwrap();
        check(&again, &model, &pages);
    }
}

fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as u32
}

/// More links than fit in the sorter's memory: runs are spilled and merged, and nothing is left of them.
#[test]
fn sorting_spills_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut matrix = LinkMatrix::open(Arc::new(OsDisk::new()), folder.path(), 1).unwrap();
    let (mut changes, mut state, mut model) = (matrix.changes(), 7, Model::new());
    let pages = 60_000;
    for page in (0..pages).rev() {
        let links: Vec<u32> = (0..11).map(|_| random(&mut state) % 600_000).collect();
        changes.add(page, &links).unwrap();
        let mut links = links;
        links.sort_unstable();
        links.dedup();
        model.insert(page, links);
    }
    let built = matrix.accept(changes, Some(600_000)).unwrap();
    assert_eq!(built.links, model.values().map(|links| links.len() as u64).sum::<u64>());
    assert_eq!((built.pages, built.pages_read), (600_000, 60_000));
    check(&matrix, &model, &[0, 1, 30_000, 59_999, 60_000, 599_999]);
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["list", "matrix-1"]);
}

#[test]
fn a_page_has_at_most_65534_links() {
    let mut matrix = LinkMatrix::open(Arc::new(SimDisk::new()), Path::new("/m"), 1 << 20).unwrap();
    let mut changes = matrix.changes();
    changes.add(3, &(0..1_000_000).rev().collect::<Vec<u32>>()).unwrap();
    changes.add(4, &[]).unwrap();
    matrix.accept(changes, None).unwrap();
    let links = matrix.links_of(3).unwrap().unwrap();
    assert_eq!((links.len(), links.first()), (LINKS_MAX, Some(&(1_000_000 - LINKS_MAX as u32))));
    assert_eq!(matrix.links_of(4).unwrap(), Some(Vec::new()), "read, and without links");
    assert_eq!(matrix.links_of(5).unwrap(), None, "never read");
    let mut beyond = matrix.changes();
    beyond.add(0, &[10]).unwrap();
    assert!(matches!(matrix.accept(beyond, Some(10)), Err(MatrixError::Page { page: 10, pages: 10 })));
}

fn small(disk: &SimDisk) -> (Vec<Model>, usize) {
    let mut matrix = LinkMatrix::open(Arc::new(disk.clone()), Path::new("/m"), 1 << 20).unwrap();
    let (mut model, mut states) = (Model::new(), vec![Model::new()]);
    let begun = disk.changes();
    for batch in [vec![(0, vec![1, 2]), (1, vec![0])], vec![(1, vec![1]), (2, vec![])]] {
        apply(&mut matrix, &mut model, &batch);
        states.push(model.clone());
    }
    matrix.merge().unwrap();
    (states, begun)
}

/// Cut at every change, with what was not synced lost or kept: the links are those of one state.
#[test]
fn a_crash_leaves_the_state_before_or_after() {
    let disk = SimDisk::new();
    let (states, begun) = small(&disk);
    for at in begun..=disk.changes() {
        for crash in [Crash::InOrder, Crash::Unsynced, Crash::Torn(5)] {
            let crashed = disk.crashed(at, 0, crash);
            let found = LinkMatrix::open(Arc::new(crashed), Path::new("/m"), 1 << 20).unwrap();
            let links: Model =
                (0..3).filter_map(|page| Some((page, found.links_of(page).unwrap()?))).collect();
            assert!(states.contains(&links), "cut at change {at}: {links:?}");
        }
    }
}

/// Any byte changed, in any file: an error or the right links, never others.
#[test]
fn damage_is_found() {
    let disk = SimDisk::new();
    let (states, _) = small(&disk);
    for (path, bytes) in disk.files() {
        for offset in (0..bytes).filter(|offset| *offset < 64 || *offset >= 4096) {
            disk.flip(&path, offset, 1 << (offset % 8));
            let found =
                LinkMatrix::open(Arc::new(disk.clone()), Path::new("/m"), 1 << 20).and_then(|found| {
                    let mut links = Model::new();
                    for page in 0..3 {
                        if let Some(of) = found.links_of(page)? {
                            links.insert(page, of);
                        }
                    }
                    Ok(links)
                });
            if let Ok(links) = found {
                assert_eq!(Some(&links), states.last(), "{} at {offset}", path.display());
            }
            disk.flip(&path, offset, 1 << (offset % 8));
        }
    }
}
