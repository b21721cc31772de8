//! SURT keys against those of other tools: Python `surt` 0.3.1 on real URLs out of web archives, and the cases of
//! `urlcanon` and of `surt` itself. Every key that differs is listed here with the reason, or falls under a named rule
//! whose count is asserted.
//!
//! The data lie outside the repository, in `../shared/data` beside the workspace or where the variable
//! `WEBBASE_TEST_DATA` says; without them every test says that it was skipped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read its data has failed, and says where"
)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use webbase_storage::surt::Profile;

fn data(name: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = PathBuf::from(root).join("urls").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
    None
}

fn oracle() -> Option<Vec<(String, Option<String>)>> {
    let path = data("surt-oracle.jsonl.gz")?;
    let Ok(output) = Command::new("gzip").arg("-dc").arg(&path).output() else {
        eprintln!("SKIPPED: no gzip to read {} with", path.display());
        return None;
    };
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let entry = |line| {
        let entry: Value = serde_json::from_str(line).expect("a JSON line");
        let url = entry["url"].as_str().expect("a URL").to_owned();
        (url, entry["surt"].as_str().map(str::to_owned))
    };
    Some(text.lines().map(entry).collect())
}

#[test]
fn real_urls_have_the_keys_of_python_surt() {
    let Some(oracle) = oracle() else { return };
    let mut different = Vec::new();
    for (url, theirs) in &oracle {
        let ours = Profile::Ia1.key(url).ok();
        // The name of an ARC file, not the address of a page: no repository has it.
        if ours != *theirs && !url.starts_with("filedesc:") {
            different.push(format!("{url}\n  theirs {theirs:?}\n  ours   {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{} of {}:\n{}", different.len(), oracle.len(), different.join("\n"));
    assert!(oracle.len() > 4000);
}

/// What Python `surt` 0.3.1 answered to URLs that nobody has in an archive, where ours differs, and why.
const DIFFERENT: [(&str, &str, &str); 22] = [
    // A name with a port is a host here as in the address bar, and as in page ids.
    ("example.com:8080/x", "example.com:8080/x", "com,example:8080)/x"),
    ("localhost:80/x", "localhost:80/x", "localhost)/x"),
    // `..` above the root stays at the root, as in browsers; theirs depends on how many there are.
    ("http://example.com/..", "com,example)/..", "com,example)/"),
    ("http://example.com/a/../../b/..", "com,example)/..", "com,example)/"),
    // A site of its own is not folded into its top-level domain (internetarchive/surt#28).
    ("http://www.com/", "com)/", "com,www)/"),
    ("http://www3288.com/", "com)/", "com,www3288)/"),
    // The default port of every scheme goes, and a port 0 is a port.
    ("ftp://example.com:21/", "com,example:21)/", "com,example)/"),
    ("http://e.com:0/", "com,e)/", "com,e:0)/"),
    // Addresses are read as browsers read them, as in page ids.
    ("http://0x7f.1/", "1,0x7f)/", "1,0,0,127)/"),
    // `\\` is a slash to browsers, in every scheme they know.
    ("http://example.com\\a\\b", "com\\a\\b,example)/", "com,example)/a/b"),
    ("http://example.com/[]\\", "com,example)/[]\\", "com,example)/[]"),
    ("hTTps:\\\\example.com\\a\\b", "hTTps:\\\\example.com\\a\\b", "com,example)/a/b"),
    // Schemes have no case.
    ("URN:X", "URN:x", "urn:x"),
    // A parameter is a session id or it is not; theirs finds ids inside of others, once, and leaves an `&`.
    (
        "http://e.com/x?asid=9682993c8daa2c5497996114facdc805&a=1",
        "com,e)/x?aa=1",
        "com,e)/x?a=1&asid=9682993c8daa2c5497996114facdc805",
    ),
    ("http://e.com/x?a=1&sid=9682993c8daa2c5497996114facdc805", "com,e)/x?&a=1", "com,e)/x?a=1"),
    ("http://e.com/x?b=1&cfid=a-b&cftoken=c_d", "com,e)/x?&b=1", "com,e)/x?b=1"),
    ("http://e.com/x?acfid=1&cftoken=3&b=1", "com,e)/x?ab=1", "com,e)/x?acfid=1&b=1&cftoken=3"),
    // Files are no site's pages.
    ("file://host/x", "host)/x", "file:/host/x"),
    // Names of archive files are no addresses of pages.
    ("filedesc://foo.arc.gz", "filedesc://foo.arc.gz", "gz,arc,foo)/"),
    // The web's rules for names have changed since (UTS 46): `ß` is a letter of its own.
    ("http://straße.de/", "de,strasse)/", "de,xn--strae-oqa)/"),
    // A path alone could belong to any site: refused.
    ("/x", "x)/", "refused"),
    ("http://256.256.256.256/", "256,256,256,256)/", "refused"),
];

#[test]
fn what_differs_is_meant_to() {
    for (url, theirs, ours) in DIFFERENT {
        assert_ne!(theirs, ours);
        let found = Profile::Ia1.key(url).unwrap_or_else(|_| "refused".to_owned());
        assert_eq!(found, ours, "{url}");
    }
}

/// The members of one group of `urlcanon-surt.json` that are texts.
fn group(name: &str) -> Option<Vec<(String, String)>> {
    let text = std::fs::read_to_string(data("urlcanon-surt.json")?).expect("readable");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let members = all[name].as_object().expect("a group").iter();
    Some(members.map(|(url, key)| (url.clone(), key.as_str().expect("a text").to_owned())).collect())
}

#[test]
fn cases_of_urlcanon_and_surt() {
    let key = |url: &str| Profile::Ia1.key(url).ok();
    let Some(surts) = group("defaultIASurt") else { return };
    for (url, theirs) in surts {
        match url.as_str() {
            // No URL at all, and names of archive files.
            "" => assert_eq!(key(&url), None),
            _ if url.starts_with("filedesc:") || url.starts_with("warcinfo:") => {}
            _ => assert_eq!(key(&url), Some(theirs), "{url}"),
        }
    }
    // These give the canonical URL: its key is that of the URL. A path's session ids are another function's there.
    let sites = ["Canonicalizer.DefaultIA", "Canonicalizer.IA", "googleSupplementalFromSurt", "google"];
    let mut different = Vec::new();
    for (url, theirs) in sites.iter().filter_map(|name| group(name)).flatten() {
        // Browsers, and so pages, have no such hosts: escapes that stay, control characters, UTF-8 read as Latin-1.
        let refused = [
            "http://host%23.com/",
            "http://www.t%EF%BF%BD%04.82.net/",
            "http://\u{1}\u{80}.com/",
            "â\u{98}\u{83}.com",
        ];
        if refused.iter().any(|start| url.starts_with(start)) {
            assert_eq!(key(&url), None, "{url}");
            continue;
        }
        if key(&url) != key(&theirs) {
            different.push(format!("{url:?} {:?}, {theirs:?} {:?}", key(&url), key(&theirs)));
        }
    }
    for (path, theirs) in group("stripPathSessionId").unwrap() {
        let at = |path: &str| key(&format!("http://e.com{path}"));
        assert_eq!(at(&path), at(&theirs), "{path}");
    }
    for (query, theirs) in group("alphaRorderQuery").unwrap() {
        let wanted = if theirs.is_empty() { "com,e)/".to_owned() } else { format!("com,e)/?{theirs}") };
        assert_eq!(key(&format!("http://e.com/?{query}")), Some(wanted));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Prints how many keys a second one core makes of real URLs. A measurement, not a check:
/// `cargo test --release -p webbase-storage --test surt_cases -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn keys_a_second() {
    let Some(oracle) = oracle() else { return };
    let urls: Vec<&str> = oracle.iter().map(|(url, _)| url.as_str()).collect();
    let mut key = String::new();
    for profile in Profile::ALL {
        let (mut made, started) = (0_u32, Instant::now());
        while started.elapsed().as_millis() < 1000 {
            for url in &urls {
                key.clear();
                let _ = profile.key_into(url, &mut key);
                made += 1;
            }
        }
        println!(
            "{}: {:.2} million keys/s",
            profile.name(),
            f64::from(made) / started.elapsed().as_secs_f64() / 1e6
        );
    }
}
