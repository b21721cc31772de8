//! Real and broken sitemaps against ultimate-sitemap-parser and a recovering XML parser: every page that both see is found, and
//! no file makes reading fail.
//!
//! The data lie outside the repository, in `../shared/data` beside the workspace or where the variable
//! `WEBBASE_TEST_DATA` says; without them every test says that it was skipped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read its data has failed, and says where"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use url::Url;
use webbase_crawler::sitemap::Sitemap;

#[test]
fn every_page_is_found() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let folder = PathBuf::from(root).join("sitemaps");
    let Ok(expected) = std::fs::read_to_string(folder.join("expected.jsonl")) else {
        eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", folder.display());
        return;
    };
    let base = Url::parse("http://base.invalid/").unwrap();
    let (mut files, mut lacking) = (0, Vec::new());
    for line in expected.lines() {
        let case: Value = serde_json::from_str(line).expect("a JSON line");
        let name = case["file"].as_str().unwrap();
        let sitemap = Sitemap::read(&std::fs::read(folder.join(name)).unwrap(), &base);
        let found: BTreeSet<String> =
            sitemap.pages.iter().chain(&sitemap.sitemaps).map(|entry| entry.url.to_string()).collect();
        let list = |name: &str| -> BTreeSet<String> {
            let all = case[name].as_array().into_iter().flatten().filter_map(Value::as_str);
            all.filter_map(|url| Url::parse(url.trim()).ok()).map(|url| url.to_string()).collect()
        };
        let wanted = list("pages").into_iter().chain(list("locs_lxml_recover"));
        let missing: Vec<String> = wanted.filter(|url| !found.contains(url)).collect();
        files += 1;
        if !missing.is_empty() {
            lacking.push(format!(
                "{name}: {} found, {} missing: {:?}",
                found.len(),
                missing.len(),
                &missing[..missing.len().min(5)]
            ));
        }
    }
    assert!(files > 20);
    assert!(lacking.is_empty(), "{lacking:#?}");
}
