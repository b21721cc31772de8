//! Queries that were put to pywb's own CDX server over the same lines, with its answers.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::ask::{Ask, Dialect};
use super::capture::Capture;
use super::lines::Lines;
use super::select::Select;
use crate::gateway::params::Params;

fn data(name: &str) -> Option<String> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let folder = std::env::var_os("WEBBASE_TEST_DATA").map_or_else(|| PathBuf::from(own), PathBuf::from);
    std::fs::read_to_string(folder.join("cdx").join(name)).ok()
}

/// A line of a CDXJ file. Digests are bare here.
fn capture(line: &str) -> Capture {
    let mut parts = line.splitn(3, ' ');
    let (urlkey, timestamp) = (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned());
    let fields: Value = serde_json::from_str(parts.next().unwrap()).unwrap();
    let field = |name: &str| fields[name].as_str().map(|text| text.trim_start_matches("sha1:").to_owned());
    Capture {
        urlkey,
        timestamp,
        url: field("url").unwrap(),
        mime: field("mime"),
        status: field("status"),
        digest: field("digest"),
        length: field("length"),
        offset: field("offset"),
        filename: field("filename"),
        key: None,
    }
}

/// Digests are bare here.
fn bare(line: &str) -> String {
    line.replace("\"sha1:", "\"")
}

/// What differs on purpose: pywb guesses at like URLs where it finds nothing (`is_fuzzy`), finds no host by its default port, and
/// encodes the control characters of one URL, which a repository would have encoded when it made the line.
fn is_known(params: &str, expected: &[String]) -> bool {
    params.contains("megaclick.com:80") || expected.iter().any(|line| line.contains("\"is_fuzzy\""))
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn queries_are_answered_as_pywb_does() {
    let (Some(lines), Some(queries)) = (data("warcs.cdxj"), data("queries-pywb.jsonl")) else {
        eprintln!("SKIPPED: there are no CDX files; WEBBASE_TEST_DATA names the folder that has cdx/");
        return;
    };
    let captures: Vec<Capture> = lines.lines().map(capture).collect();
    let (mut asked, mut refused, mut known, mut differ) = (0, 0, 0, Vec::new());
    for query in queries.lines() {
        let query: Value = serde_json::from_str(query).unwrap();
        let pairs: Vec<String> = query["params"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| {
                format!("{}={}", encoded(pair[0].as_str().unwrap()), encoded(pair[1].as_str().unwrap()))
            })
            .collect();
        let expected: Vec<String> =
            query["lines"].as_array().unwrap().iter().map(|line| bare(line.as_str().unwrap())).collect();
        asked += 1;
        let ask = Params::parse(Some(&pairs.join("&"))).and_then(|params| Ask::parse(params, Dialect::Pywb));
        let ask = match ask {
            Ok(ask) => Arc::new(ask),
            // What is no URL has no captures there; here it is an error.
            Err(_) if query["status"] != 200 || expected.is_empty() => {
                refused += 1;
                continue;
            }
            Err(problem) => panic!("{}: {}", query["params"], problem.detail()),
        };
        assert_eq!(query["status"], 200, "{}", query["params"]);
        let mut select = Select::new(ask.clone());
        let inside: Vec<&Capture> = captures.iter().filter(|c| ask.range.contains(&c.urlkey)).collect();
        let ordered: Vec<&Capture> = if ask.descends() { inside.into_iter().rev().collect() } else { inside };
        for capture in ordered {
            if select.is_over() {
                break;
            }
            select.push(capture.clone());
        }
        select.finish();
        let (mut writer, mut out) = (Lines::new(ask.clone(), String::new()), String::new());
        select.out.iter().for_each(|capture| writer.line(capture, &mut out));
        let found: Vec<&str> = out.lines().collect();
        if found != expected && is_known(&query["params"].to_string(), &expected) {
            known += 1;
        } else if found != expected {
            differ.push(format!("{}\n  found {found:#?}\n  pywb  {expected:#?}", query["params"]));
        }
    }
    assert!(
        asked > 480 && refused < 8 && known < 10,
        "{asked} asked, {refused} refused, {known} known to differ"
    );
    assert!(
        differ.is_empty(),
        "{} of {asked} differ:\n{}",
        differ.len(),
        differ[..differ.len().min(5)].join("\n")
    );
}
