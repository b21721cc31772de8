//! Robots files against Google's parser: the RFC's and Google's own cases, named corner cases, and 2064 real files with 60 000
//! questions. What differs is counted by reason, and the counts are asserted.
//!
//! The data lie outside the repository, in `../shared/data` beside the workspace or where the variable
//! `WEBBASE_TEST_DATA` says; without them every test says that it was skipped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read its data has failed, and says where"
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use serde_json::Value;
use url::Url;
use webbase_crawler::robots::Robots;

fn data(name: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = PathBuf::from(root).join("robots").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
    None
}

fn lines(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

/// What we say; `None` where the URL is none.
fn allowed(text: &[u8], agent: &str, url: &str) -> Option<bool> {
    let url =
        Url::parse(url).or_else(|_| Url::parse("http://example.com").and_then(|base| base.join(url))).ok()?;
    Some(Robots::parse(text, agent, None).allows(&url))
}

/// The text of a robots file, which is in Base64 where it is no UTF-8.
fn robots(case: &Value) -> Vec<u8> {
    match case["robots_b64"].as_str() {
        Some(text) => data_encoding::BASE64.decode(text.as_bytes()).expect("Base64"),
        None => case["robots"].as_str().unwrap_or_default().as_bytes().to_vec(),
    }
}

/// Questions about real files that may get another answer than Google's.
const DIFFER_MAX: usize = 10;

/// Where we differ from Google's parser, and why.
const DIFFER: &[(&str, &str)] = &[
    // The RFC compares paths with their percent-encoding resolved (2.2.2); Google's parser compares bytes.
    ("google/ID_Encoding#3", "encoding"),
    ("google/ID_Encoding#5", "encoding"),
    ("google/ID_Encoding#6", "encoding"),
    ("spec/correctness/non-ascii-paths#1.1", "encoding"),
    ("spec/correctness/non-ascii-paths#2.1", "encoding"),
    ("spec/correctness/non-ascii-paths#3.0", "encoding"),
    // For Google `index.html` is its folder, and lines end after 16 KiB.
    ("google/GoogleOnly_IndexHTMLisDirectory#1", "google"),
    ("google/GoogleOnly_LineTooLong#2", "google"),
    ("google/GoogleOnly_LineTooLong#5", "google"),
    ("spec/correctness/index-page#0.0", "google"),
    // A robots file itself may always be read (2.2.2).
    ("spec/stress/327748#0.5", "robots.txt"),
];

#[test]
fn the_cases_of_the_rfc_and_of_google() {
    let Some(path) = data("conformance.jsonl") else { return };
    let (mut all, mut differ) = (0, Vec::new());
    for case in lines(&path) {
        let text = |name: &str| case[name].as_str().unwrap_or_default();
        all += 1;
        if allowed(&robots(&case), text("agent"), text("url")) != case["allowed"].as_bool() {
            differ.push(text("id").to_owned());
        }
    }
    assert!(all > 300);
    let mut known: Vec<&str> = DIFFER.iter().map(|(id, _)| *id).collect();
    known.sort_unstable();
    differ.sort_unstable();
    assert_eq!(differ, known, "of {all}");
}

#[test]
fn named_corner_cases() {
    let (Some(path), Some(files)) = (data("files-expected.jsonl"), data("files")) else { return };
    let (mut all, mut differ) = (0, Vec::new());
    for case in lines(&path) {
        let text = |name: &str| case[name].as_str().unwrap_or_default();
        let file = std::fs::read(files.join(text("file"))).expect("a readable file");
        all += 1;
        if allowed(&file, text("agent"), text("url")) != case["allowed"].as_bool() {
            differ.push(format!("{} {} {}", text("file"), text("agent"), text("url")));
        }
    }
    assert!(all > 1000);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn real_files() {
    let Some(path) = data("real-robots.jsonl.gz") else { return };
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a readable file");
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    let (mut all, mut differ) = (0, Vec::new());
    for line in text.lines() {
        let file: Value = serde_json::from_str(line).expect("a JSON line");
        let robots = robots(&file);
        let mut parsed: BTreeMap<String, Robots> = BTreeMap::new();
        for check in file["checks"].as_array().into_iter().flatten() {
            let text = |name: &str| check[name].as_str().unwrap_or_default();
            all += 1;
            let rules = parsed
                .entry(text("agent").to_owned())
                .or_insert_with(|| Robots::parse(&robots, text("agent"), None));
            let Ok(url) = Url::parse(text("url")) else { continue };
            // Where Scrapy's parser disagrees with Google's it is a matter of judgement.
            if check["protego"].is_null() && Some(rules.allows(&url)) != check["allowed"].as_bool() {
                differ.push(format!("{} {} {}", file["host"], text("agent"), text("url")));
            }
        }
    }
    assert!(all > 50_000);
    assert!(differ.len() <= DIFFER_MAX, "{} of {all}: {differ:#?}", differ.len());
}
