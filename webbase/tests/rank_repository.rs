//! `webbase rank` on a repository: pages in by its stream, importance back to it, where streams filter and order by it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::process::Output;

use tempfile::TempDir;
use tokio::process::Command;
use webbase::embedded::{Embedded, Options};
use webbase_storage::Page;

struct Rig {
    embedded: Embedded,
    folder: TempDir,
}

impl Rig {
    async fn start() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("repository"));
        options.range_bits = 3;
        Rig { embedded: Embedded::start(options).await.unwrap(), folder }
    }

    async fn add(&self, pages: &[(&str, &str, &str)]) {
        let pages: Vec<Page<'_>> = pages
            .iter()
            .map(|(url, mime, body)| Page {
                url,
                mime,
                body: body.as_bytes(),
                status: 200,
                fetched_at_ms: 1_700_000_000_000,
                ..Page::default()
            })
            .collect();
        let added = self.embedded.cluster().add(&pages).await.unwrap();
        assert_eq!(added.all().unwrap(), pages.len() as u64);
        self.embedded.cluster().cycle(|_| {}).await.unwrap();
    }

    /// Runs the program against the repository.
    async fn webbase(&self, arguments: &[&str]) -> Output {
        let server = format!("http://{}", self.embedded.http());
        let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
        command.args(arguments).args(["--server", &server]).current_dir(self.folder.path());
        command.output().await.unwrap()
    }

    async fn told(&self, arguments: &[&str]) -> String {
        let output = self.webbase(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn ranks(&self, name: &str) -> BTreeMap<String, (f64, f64)> {
        let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap();
        let line = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[0].to_owned(), (fields[1].parse().unwrap(), fields[2].parse().unwrap()))
        };
        text.lines().map(line).collect()
    }
}

const PAGES: [(&str, &str, &str); 6] = [
    (
        "http://hub.test/",
        "text/html",
        "<a href=/a><a href=/b><a href=http://never.test/x><link rel=canonical href=/>",
    ),
    ("http://hub.test/a", "text/html", "<a href=/><a href=/feed.xml>"),
    ("http://hub.test/b", "text/html", "<a href=https://hub.test/#top><a href=/a rel=nofollow>"),
    ("http://hub.test/c", "text/html", "<a href='/'>"),
    (
        "http://hub.test/feed.xml",
        "application/rss+xml",
        "<rss><item><link>http://hub.test/a</link></item></rss>",
    ),
    ("http://hub.test/i.png", "image/png", "no links <a href=/no>"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_is_ranked_and_its_streams_know_it() {
    let rig = Rig::start().await;
    rig.add(&PAGES).await;
    // Nothing is known yet, and that is said.
    let early = rig.webbase(&["stream", "--format", "jsonl", "--order", "importance"]).await;
    assert!(!early.status.success() && String::from_utf8_lossy(&early.stderr).contains("webbase rank"));
    assert!(!rig.webbase(&["rank", "--stored", "--top", "3"]).await.status.success());

    let text = rig.told(&["rank", "--top", "2", "--explain", "http://HUB.test", "--out", "ranks"]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("hub.test") || lines[1].ends_with("hub.test/"), "{text}");
    assert!(
        lines[3].contains("place 1 of 7") && lines[3].contains("3 pages link to it, it has 3 links"),
        "{text}"
    );
    let ranks = rig.ranks("ranks");
    assert_eq!(ranks.len(), 7, "six pages, and one URL that was never read: {ranks:?}");
    assert!((ranks.values().map(|(importance, _)| importance).sum::<f64>() - 1.0).abs() < 1e-9);
    // The fixed point `renorm`: hub gets all of c and b, and half of a; its own canonical link is none.
    let of = |name: &str| ranks.iter().find(|(url, _)| url.trim_end_matches('/') == name).unwrap().1;
    let (hub, a, b, c) = (of("hub.test"), of("hub.test/a"), of("hub.test/b"), of("hub.test/c"));
    let r = 1.0 / (0.85 * (hub.0 + a.0 + b.0 + c.0 + of("hub.test/feed.xml").0) + 0.15);
    assert!((hub.0 - r * (0.85 * (a.0 / 2.0 + b.0 + c.0) + 0.15 / 7.0)).abs() < 1e-9, "{ranks:?}");
    assert!((of("never.test/x").0 - r * (0.85 * hub.0 / 3.0 + 0.15 / 7.0)).abs() < 1e-9);
    // XML is of interest: the page that links to the feed is the most useful of the others.
    assert!(a.1 > hub.1 && hub.1 > 0.0 && of("hub.test/i.png").1 == 0.0, "{ranks:?}");

    // Streams order and filter by it.
    let lines =
        rig.told(&["stream", "--format", "jsonl", "--order", "importance", "--what", "without-body"]).await;
    let order: Vec<String> = lines
        .lines()
        .filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["url"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(order.len(), 6);
    let mut sorted = order.clone();
    let importance = |url: &str| of(url.trim_start_matches("http://").trim_end_matches('/')).0 as f32;
    sorted.sort_by(|a, b| importance(b).total_cmp(&importance(a)));
    assert_eq!(order[0], "http://hub.test/");
    assert_eq!(
        order.iter().map(|url| importance(url)).collect::<Vec<_>>(),
        sorted.iter().map(|url| importance(url)).collect::<Vec<_>>()
    );
    let least = format!("{}", (hub.0 + a.0) / 2.0);
    let some = rig.told(&["stream", "--format", "jsonl", "--min-importance", &least]).await;
    let pages = some.lines().filter(|line| line.contains("\"url\":")).count();
    assert_eq!(pages, 1, "{some}");

    // What was never read, by importance; from what is stored, without a repository.
    let unread = rig.told(&["rank", "--stored", "--top", "5", "--unread"]).await;
    assert!(unread.lines().count() == 2 && unread.contains("unread  never.test/x"), "{unread}");
    let unknown = rig.webbase(&["rank", "--stored", "--explain", "http://unknown.test/"]).await;
    assert_eq!(unknown.status.code(), Some(4));

    // In hardly any memory, from the last result on: the same.
    rig.told(&["rank", "--memory", "1", "--out", "on-disk"]).await;
    for (url, (importance, usefulness)) in rig.ranks("on-disk") {
        let known = ranks[&url];
        assert!((importance - known.0).abs() < 1e-9 && (usefulness - known.1).abs() < 1e-9, "{url}");
    }
    // Links that are not to be followed count if that is asked for; any domain can be of interest; pages can be lifted.
    std::fs::write(rig.folder.path().join("named"), "# subscription\nhttp://hub.test/c\n").unwrap();
    rig.told(&[
        "rank",
        "--nofollow",
        "--interest",
        "mime:image/png",
        "--lift",
        "named",
        "--lift-into",
        "20",
        "--out",
        "lifted",
    ])
    .await;
    let lifted = rig.ranks("lifted");
    assert!(lifted["hub.test/c"].0 > c.0 * 2.0, "{lifted:?}");
    // What was useful before fades from round to round, and is not exactly nothing.
    let (feed, image) = (lifted["hub.test/feed.xml"].1, lifted["hub.test/i.png"].1);
    assert!(image > 0.0 && feed < image / 1000.0, "{lifted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_repository_has_no_ranks_and_that_is_no_error() {
    let rig = Rig::start().await;
    rig.told(&["rank", "--out", "none"]).await;
    assert!(rig.ranks("none").is_empty());
}
