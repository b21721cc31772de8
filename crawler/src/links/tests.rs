//! Links from pages to ranks: ids that stay, pages that change, restarts, memory and disk alike, damage.

use super::*;
use crate::importance::{Method, Settings, Usefulness};

const BUDGET: usize = 8 << 20;

fn page(url: &str, links: &[&str]) -> PageLinks {
    let links = links.iter().map(|link| canonical(link).unwrap()).collect();
    PageLinks { url: canonical(url).unwrap(), links, of_interest: url.ends_with(".xml") }
}

fn wanted(memory_bytes: usize) -> Wanted {
    Wanted {
        settings: Settings { epsilon: 1e-12, ..Settings::default() },
        method: Method::Power,
        usefulness: Usefulness::Average,
        lifted: None,
        memory_bytes,
    }
}

fn rank(links: &Links, url: &str) -> (f64, f64) {
    let id = links.id(url).unwrap().unwrap();
    links.ranks().unwrap().unwrap().get(id).unwrap().unwrap()
}

fn links_of(links: &mut Links, url: &str) -> Option<Vec<String>> {
    let id = links.id(url).unwrap()?;
    let found = links.matrix().unwrap().unwrap().links_of(id).unwrap()?;
    Some(found.into_iter().map(|id| links.urls().url(id).unwrap().unwrap()).collect())
}

#[test]
fn pages_and_urls_never_read_have_ranks_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    links.page(&page("a.example/", &["a.example/1", "b.example/x.xml", "a.example/1"])).unwrap();
    links.page(&page("a.example/1", &["b.example/x.xml", "never.example/"])).unwrap();
    links.page(&page("b.example/x.xml", &[])).unwrap();
    let counts = links.commit(Extent::All).unwrap();
    assert_eq!(counts, Counts { urls: 4, pages_read: 3, links: 4 });
    let done = estimate(&mut links, &wanted(1 << 30), 7).unwrap();
    assert!(done.in_memory);
    let in_memory: Vec<(f64, f64)> = ["a.example/", "a.example/1", "b.example/x.xml", "never.example"]
        .iter()
        .map(|url| rank(&links, url))
        .collect();
    // The fixed point `renorm`, by hand: I_i = r·(0.85·what it gets + 0.15/4).
    let i: Vec<f64> = in_memory.iter().map(|(importance, _)| *importance).collect();
    let r = 1.0 / (0.85 * (i[0] + i[1]) + 0.15);
    let got = [0.0, i[0] / 2.0, i[0] / 2.0 + i[1] / 2.0, i[1] / 2.0];
    for page in 0..4 {
        assert!((i[page] - r * (0.85 * got[page] + 0.15 / 4.0)).abs() < 1e-11, "page {page}: {i:?}");
    }
    assert!(in_memory[1].1 > 0.0 && in_memory[0].1 > 0.0 && in_memory[3].1 == 0.0, "{in_memory:?}");
    drop(links);
    // On disk, from the last result on: the same.
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    let done = estimate(&mut links, &wanted(1), 8).unwrap();
    assert!(!done.in_memory && done.importance_rounds <= 3, "{done:?}");
    for (url, known) in
        ["a.example/", "a.example/1", "b.example/x.xml", "never.example"].iter().zip(&in_memory)
    {
        let found = rank(&links, url);
        assert!((found.0 - known.0).abs() < 1e-11 && (found.1 - known.1).abs() < 1e-11, "{url}");
    }
    assert_eq!(links.ranks().unwrap().unwrap().computed_at_ms(), 8);
    assert!(matches!(
        estimate(&mut links, &Wanted { usefulness: Usefulness::PseudoCode, ..wanted(1) }, 9),
        Err(LinksError::Memory { .. })
    ));
}

/// Pages named are lifted on disk as they are in memory.
#[test]
fn pages_are_lifted_on_disk_as_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    let name = |n: u32| format!("site{}.example/{n}", n % 7);
    for n in 0..60u32 {
        let to: Vec<String> = (1..5).map(|k| name(n * k % 50)).collect();
        links.page(&page(&name(n), &to.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    }
    links.commit(Extent::All).unwrap();
    let named: Vec<u32> = [name(53), name(57)].iter().map(|url| links.id(url).unwrap().unwrap()).collect();
    let lifted = Some(Lifted { pages: named, top: 0.1 });
    // Not to the last digit: every try on disk writes whole tiles.
    let settings = Settings { epsilon: 1e-5, ..Settings::default() };
    let lifting = |memory_bytes| Wanted { lifted: lifted.clone(), settings, ..wanted(memory_bytes) };
    let in_memory = estimate(&mut links, &lifting(1 << 30), 1).unwrap();
    let known: Vec<(f64, f64)> = (0..60).map(|n| rank(&links, &name(n))).collect();
    let done = estimate(&mut links, &lifting(1), 2).unwrap();
    assert!(!done.in_memory && done.reached && in_memory.reached && done.strength > 0.0, "{done:?}");
    assert!((done.strength / in_memory.strength - 1.0).abs() < 3e-3, "{done:?}, {in_memory:?}");
    for (n, known) in (0..60).zip(&known) {
        let found = rank(&links, &name(n));
        assert!((found.0 - known.0).abs() < 3e-3 * known.0, "{n}: {found:?}, {known:?}");
    }
    let beyond = Wanted { lifted: Some(Lifted { pages: vec![1000], top: 0.1 }), ..wanted(1) };
    assert!(matches!(estimate(&mut links, &beyond, 3), Err(LinksError::Importance(_))));
}

#[test]
fn ids_stay_and_changed_pages_have_their_new_links() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    links.page(&page("a.example/", &["a.example/1"])).unwrap();
    links.page(&page("a.example/1", &["a.example/2"])).unwrap();
    // Given again before it counts: the second holds.
    links.page(&page("a.example/", &["a.example/3"])).unwrap();
    links.commit(Extent::All).unwrap();
    assert_eq!(links_of(&mut links, "a.example/").unwrap(), ["a.example/3"]);
    let id = links.id("http://a.example/1").unwrap();
    // Somebody offered pages, and was killed before they counted.
    links.page(&page("z.example/", &["z.example/1"])).unwrap();
    drop(links);
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    assert_eq!(links.id("a.example/1").unwrap(), id);
    assert_eq!(links_of(&mut links, "z.example/"), None, "it does not count");
    links.page(&page("a.example/1", &["a.example/4", "a.example/1"])).unwrap();
    links.commit(Extent::Changes).unwrap();
    assert_eq!(links_of(&mut links, "a.example/1").unwrap().len(), 2);
    assert_eq!(links_of(&mut links, "a.example/").unwrap(), ["a.example/3"], "what did not change stays");
    assert_eq!(links.id("a.example/1").unwrap(), id);
    links.page(&page("a.example/1", &[])).unwrap();
    links.commit(Extent::All).unwrap();
    assert_eq!(links_of(&mut links, "a.example/"), None, "it is not there any more");
    assert_eq!(links_of(&mut links, "a.example/1").unwrap().len(), 0);
    assert_eq!(links.id("nonsense://").unwrap(), None);
    assert_eq!(links.id("http://unknown.example/").unwrap(), None);
}

#[test]
fn nothing_is_no_error_and_the_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    assert!(matches!(Links::open(folder.path(), BUDGET), Err(LinksError::InUse { .. })));
    assert!(links.ranks().unwrap().is_none());
    estimate(&mut links, &wanted(1 << 30), 1).unwrap();
    assert!(links.ranks().unwrap().unwrap().is_empty());
    assert_eq!(links.commit(Extent::All).unwrap(), Counts::default());
    estimate(&mut links, &wanted(1 << 30), 2).unwrap();
    assert!(links.ranks().unwrap().unwrap().is_empty());
}

#[test]
fn a_damaged_result_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    links.page(&page("a.example/", &["a.example/1"])).unwrap();
    links.commit(Extent::All).unwrap();
    estimate(&mut links, &wanted(1 << 30), 1).unwrap();
    let path = folder.path().join("ranks");
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let found = links.ranks().and_then(|ranks| ranks.unwrap().get(0));
        assert!(found.is_err(), "byte {at}");
    }
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(links.ranks().is_err());
    std::fs::write(&path, &whole).unwrap();
    let interest = folder.path().join("interest");
    let mut bytes = std::fs::read(&interest).unwrap();
    bytes[9] ^= 1;
    std::fs::write(&interest, bytes).unwrap();
    drop(links);
    assert!(matches!(Links::open(folder.path(), BUDGET), Err(LinksError::Damaged { .. })));
}

/// A repository that refuses what is too long, and makes the rest visible.
#[derive(Default)]
struct Kept(std::sync::atomic::AtomicU64);

impl crate::crawl::Sink for Kept {
    async fn add(
        &self,
        pages: &[webbase_storage::Page<'_>],
    ) -> std::result::Result<Vec<(usize, String)>, String> {
        let refused = pages.iter().enumerate().filter(|(_, page)| page.url.contains("refused"));
        Ok(refused.map(|(place, _)| (place, "no".to_owned())).collect())
    }

    async fn seen(&self, _: &[crate::crawl::SeenPage]) -> std::result::Result<(), String> {
        Ok(())
    }

    async fn cycle(&self) -> std::result::Result<u64, String> {
        Ok(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)
    }
}

#[tokio::test]
async fn what_a_crawl_adds_gives_its_links_with_the_next_cycle() {
    use crate::crawl::Sink;
    use webbase_storage::Page;

    let folder = tempfile::tempdir().unwrap();
    let links = Arc::new(parking_lot::Mutex::new(Links::open(folder.path(), BUDGET).unwrap()));
    let sink = WithLinks::new(Kept::default(), links.clone());
    let page = |url, body: &'static str| Page {
        url,
        mime: "text/html",
        body: body.as_bytes(),
        status: 200,
        ..Page::default()
    };
    let first = [
        page("http://a.test/", "<a href=1><a href=2 rel=nofollow>"),
        page("http://refused.test/", "<a href=1>"),
    ];
    assert_eq!(sink.add(&first).await.unwrap().len(), 1);
    assert_eq!(links.lock().counts().unwrap().pages_read, 0, "not before the cycle");
    assert_eq!(sink.cycle().await.unwrap(), 1);
    assert_eq!(links.lock().counts().unwrap(), Counts { urls: 2, pages_read: 1, links: 1 });
    sink.add(&[page("http://a.test/1", "<a href=/>")]).await.unwrap();
    sink.cycle().await.unwrap();
    assert_eq!(links.lock().counts().unwrap(), Counts { urls: 2, pages_read: 2, links: 2 });
}

#[tokio::test]
async fn what_a_crawl_added_before_a_kill_counts_when_the_folder_is_opened() {
    use crate::crawl::Sink;

    let folder = tempfile::tempdir().unwrap();
    let links = Arc::new(parking_lot::Mutex::new(Links::open(folder.path(), BUDGET).unwrap()));
    let sink = WithLinks::new(Kept::default(), links.clone());
    let body = b"<a href=1><a href=2>";
    let page = webbase_storage::Page {
        url: "http://a.test/",
        mime: "text/html",
        body,
        status: 200,
        ..webbase_storage::Page::default()
    };
    sink.add(&[page]).await.unwrap();
    // No cycle, no commit: all that was in memory is gone.
    drop((sink, links));
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    assert_eq!(links.counts().unwrap(), Counts { urls: 3, pages_read: 1, links: 2 });
    drop(links);
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    assert_eq!(links.counts().unwrap(), Counts { urls: 3, pages_read: 1, links: 2 }, "and once");
}

#[test]
fn pages_that_are_not_there_any_more_are_of_no_interest() {
    let folder = tempfile::tempdir().unwrap();
    let mut links = Links::open(folder.path(), BUDGET).unwrap();
    links.page(&page("a.example/", &["a.example/x.xml", "a.example/y.xml"])).unwrap();
    links.page(&page("a.example/x.xml", &[])).unwrap();
    links.page(&page("a.example/y.xml", &[])).unwrap();
    links.commit(Extent::All).unwrap();
    let interest = |links: &Links| -> Vec<bool> {
        let ids =
            ["a.example/", "a.example/x.xml", "a.example/y.xml"].map(|url| links.id(url).unwrap().unwrap());
        ids.map(|id| has_bit(&links.interest, id)).to_vec()
    };
    assert_eq!(interest(&links), [false, true, true]);
    links.page(&page("a.example/y.xml", &[])).unwrap();
    links.commit(Extent::Changes).unwrap();
    assert_eq!(interest(&links), [false, true, true], "what did not change stays");
    links.page(&page("a.example/", &["a.example/x.xml", "a.example/y.xml"])).unwrap();
    links.page(&page("a.example/y.xml", &[])).unwrap();
    links.commit(Extent::All).unwrap();
    assert_eq!(interest(&links), [false, false, true]);
    drop(links);
    assert_eq!(interest(&Links::open(folder.path(), BUDGET).unwrap()), [false, false, true]);
}
