//! Link extraction against what others found in the same documents: the trees of html5lib's tests, the entries of sitemaps and feeds
//! by ultimate-sitemap-parser and lxml; and broken XML, which must not make it fail.
//!
//! The data lie outside the repository, in `../shared/data` beside the workspace or where the variable `WEBBASE_TEST_DATA` says;
//! without them every test says that it was skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use url::Url;
use webbase_storage::Page;
use webbase_stream::extract::{Content, LinkKind, links};

fn folder(name: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = PathBuf::from(root).join(name);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
    None
}

const BASE: &str = "http://base.invalid/";

fn found(mime: &str, body: &[u8]) -> Vec<(LinkKind, String)> {
    let page = Page { url: BASE, mime, body, status: 200, ..Page::default() };
    links(&Content::of_page(&page)).into_iter().map(|link| (link.kind, link.url.to_string())).collect()
}

/// What an `a` of the expected tree has as `href`.
fn expected_links(tree: &str) -> BTreeSet<String> {
    let base = Url::parse(BASE).unwrap();
    let (mut found, mut in_anchor) = (BTreeSet::new(), false);
    for line in tree.lines() {
        let line = line.trim_start_matches('|').trim_start();
        if line.starts_with('<') {
            in_anchor = line.starts_with("<a>");
        } else if in_anchor
            && let Some(value) = line.strip_prefix("href=\"").and_then(|rest| rest.strip_suffix('"'))
            && !value.is_empty()
            && !value.starts_with('#')
            && let Ok(url) = base.join(value)
            && matches!(url.scheme(), "http" | "https")
        {
            found.insert(url.to_string());
        }
    }
    found
}

#[test]
fn anchors_are_those_of_the_tree() {
    let Some(folder) = folder("adversarial/html-tree-construction") else { return };
    let (mut cases, mut with_links) = (0, 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "dat") {
            continue;
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        for case in text.split("#data\n").skip(1) {
            let (Some((data, rest)), Some((_, tree))) =
                (case.split_once("\n#errors"), case.split_once("#document\n"))
            else {
                continue;
            };
            // Fragments are parsed within some other element, and scripting changes what noscript is.
            if rest.contains("#document-fragment") || rest.contains("#script-off") {
                continue;
            }
            let found = found("text/html", data.as_bytes());
            let anchors: BTreeSet<String> =
                found.into_iter().filter(|(kind, _)| *kind == LinkKind::Page).map(|(_, url)| url).collect();
            let expected = expected_links(tree);
            cases += 1;
            with_links += usize::from(!expected.is_empty());
            assert!(
                anchors.is_superset(&expected),
                "{}: {data:?}: {anchors:?}, expected {expected:?}",
                path.display()
            );
        }
    }
    eprintln!("{cases} documents, {with_links} of them with links");
    assert!(cases > 1000 && with_links >= 4, "{cases} documents, {with_links} with links");
}

#[test]
fn entries_of_sitemaps_and_feeds_are_links() {
    let Some(folder) = folder("sitemaps") else { return };
    let expected = std::fs::read_to_string(folder.join("expected.jsonl")).unwrap();
    let mut files = 0;
    for line in expected.lines() {
        let case: Value = serde_json::from_str(line).expect("a JSON line");
        let name = case["file"].as_str().unwrap();
        let bytes = std::fs::read(folder.join(name)).unwrap();
        if bytes.starts_with(&[0x1f, 0x8b]) || name.ends_with(".txt") {
            continue;
        }
        let found: BTreeSet<String> =
            found("application/xml", &bytes).into_iter().map(|(_, url)| url).collect();
        let wanted = case["pages"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let missing: Vec<String> = wanted
            .filter_map(|url| Url::parse(url.trim()).ok())
            .map(|mut url| {
                url.set_fragment(None);
                url.to_string()
            })
            .filter(|url| !found.contains(url))
            .collect();
        assert!(missing.is_empty(), "{name}: {} found, missing {missing:?}", found.len());
        files += 1;
    }
    assert!(files > 15, "{files} files");
}

#[test]
fn broken_xml_is_gone_through() {
    let Some(folder) = folder("adversarial/xml") else { return };
    let mut files = 0;
    for part in ["libxml2-errors", "libxml2-recurse", "."] {
        for file in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "xml") {
                let bytes = std::fs::read(&path).unwrap();
                for mime in ["text/xml", "text/html"] {
                    assert!(found(mime, &bytes).len() < 1000, "{}", path.display());
                }
                files += 1;
            }
        }
    }
    assert!(files > 20, "{files} files");
}
