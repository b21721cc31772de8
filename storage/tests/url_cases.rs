//! Canonical URLs against cases that nobody in this project wrote: the browsers' own parser tests,
//! the pairs that archive and crawler tools call one page, and real URLs out of web archives.
//!
//! Where another tool folds more than we do, the pair is counted under the foldings that would make
//! it one, and the numbers are asserted: a change of the canonical form shows as a changed number.
//! The invariants of `url.rs` are checked on all these URLs and on mutations of them.
//!
//! The data lie outside the repository, in `../shared/data` beside the workspace or where the
//! variable `WEBBASE_TEST_DATA` says; without them every test says that it was skipped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read its data has failed, and says where"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use url::Url;
use webbase_storage::url::{canonical, canonical_into};

type Pair = (String, String);
type Counts = BTreeMap<String, usize>;

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

fn text(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(data(name)?).expect(name))
}

fn json(name: &str) -> Option<Value> {
    Some(serde_json::from_str(&text(name)?).expect(name))
}

/// The cases of a file that has comments between them.
fn cases(name: &str) -> Option<Vec<Value>> {
    let Value::Array(mut cases) = json(name)? else {
        panic!("{name} is no list");
    };
    cases.retain(Value::is_object);
    Some(cases)
}

/// An object's members that are texts.
fn pairs(object: &Value) -> Vec<Pair> {
    let members = object.as_object().expect("an object").iter();
    members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// The crawler's table: `weird URL, normalised URL`, the former perhaps quoted.
fn crawler_pairs() -> Option<Vec<Pair>> {
    let text = text("crawler-commons-weirdToNormalizedUrls.csv")?;
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let pair = |row: &str| {
        let (weird, normal) = row.rsplit_once(',').expect("two columns");
        let quoted = weird.strip_prefix('"').and_then(|weird| weird.strip_suffix('"'));
        let weird = quoted.map_or(weird.to_owned(), |weird| weird.replace("\"\"", "\""));
        (weird, normal.trim().to_owned())
    };
    Some(rows.map(pair).collect())
}

/// Real URLs with their SURT keys, through the `gzip` program.
fn surt_oracle() -> Option<Vec<(String, Option<String>)>> {
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

#[track_caller]
fn assert_counts<const N: usize>(found: &Counts, wanted: [(&str, usize); N]) {
    let wanted = wanted.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(*found, Counts::from(wanted));
}

/// The canonical form, written down from the parts that the browsers agreed on.
fn expected(case: &Value) -> String {
    let part = |name: &str| case[name].as_str().expect("a part");
    let (href, scheme, host) = (part("href"), part("protocol"), part("host"));
    let page = href.split_once('#').map_or(href, |(page, _)| page);
    let query = page.find('?').map_or("", |at| &page[at..]);
    let path = part("pathname").trim_end_matches('/');
    if scheme == "http:" || scheme == "https:" {
        return format!("{host}{path}{query}");
    }
    match href.strip_prefix(scheme).expect("href starts with its scheme") {
        rest if rest.starts_with("//") => format!("{scheme}//{host}{path}{query}"),
        _ if path.starts_with("//") => format!("{scheme}/.{path}{query}"),
        rest if rest.starts_with('/') => format!("{scheme}{path}{query}"),
        _ => page.to_owned(),
    }
}

/// The case's URL as a caller would hand it over: links are resolved before they reach us.
fn resolved(case: &Value) -> Option<String> {
    let input = case["input"].as_str().expect("an input");
    match case["base"].as_str() {
        None => Some(input.to_owned()),
        Some(base) => Some(Url::parse(base).ok()?.join(input).ok()?.into()),
    }
}

#[test]
fn browsers_parser_tests() {
    let Some(cases) = cases("wpt-urltestdata.json") else { return };
    let mut counts = Counts::new();
    for case in &cases {
        let wanted = (case["failure"] != Value::Bool(true)).then(|| expected(case));
        let found = resolved(case).and_then(|url| canonical(&url).ok());
        let input = case["input"].as_str().unwrap().to_lowercase();
        let base = case["base"].as_str().unwrap_or_default();
        let kind = match () {
            () if found == wanted => "agrees",
            // The parser drops hosts before drive letters, and some double slashes.
            () if input.starts_with("file:") || base.starts_with("file:") => "file",
            // The standard now lets labels pass that cannot be decoded; the parser refuses them.
            () if input.contains("xn--") && found.is_none() => "xn--",
            // Goes wrong before we are asked.
            () if !base.is_empty() => "resolving a link",
            () if ["a", "a/", "a//"].contains(&input.as_str()) => "no scheme is http",
            () => panic!("{case}: {found:?}, not {wanted:?}"),
        };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    let wanted =
        [("agrees", 839), ("file", 31), ("no scheme is http", 3), ("resolving a link", 11), ("xn--", 7)];
    assert_counts(&counts, wanted);
}

#[test]
fn browsers_hosts_and_escapes() {
    let Some(hosts) = cases("wpt-toascii.json") else { return };
    let mut refused = Vec::new();
    for case in &hosts {
        let host = case["input"].as_str().unwrap();
        let found = canonical(&format!("https://{host}/x")).ok();
        let wanted = case["output"].as_str().map(|host| format!("{host}/x"));
        match found {
            None if wanted.is_some() => refused.push(host),
            found => assert_eq!(found, wanted, "{host}"),
        }
    }
    // Labels that cannot be decoded, as above.
    let undecodable = "xn--a xn--a.xn--zca xn--ls8h= xn--1ug.example xn--a-yoc xn--zn7c.com xn--0.com";
    assert_eq!(refused.join(" "), undecodable);

    let Some(escapes) = cases("wpt-percent-encoding.json") else { return };
    for case in &escapes {
        let input = case["input"].as_str().unwrap();
        let output = case["output"]["utf-8"].as_str().unwrap();
        assert_eq!(canonical(&format!("http://h/?{input}")).unwrap(), format!("h?{output}"));
    }
}

#[test]
fn dot_segments() {
    let Some(paths) = json("urlcanon-path_dots.json") else { return };
    for (path, resolved) in pairs(&paths["special"]) {
        let resolved = resolved.replace('\\', "/"); // which that tool does elsewhere
        let wanted = format!("h{}", resolved.trim_end_matches('/'));
        assert_eq!(canonical(&format!("http://h{path}")).unwrap(), wanted, "{path}");
    }
    for (path, resolved) in pairs(&paths["nonspecial"]) {
        let found = canonical(&format!("foo://h{path}"));
        if path.starts_with('\\') {
            assert!(found.is_err(), "{path} would belong to the host");
        } else {
            let wanted = format!("foo://h{}", resolved.trim_end_matches('/'));
            assert_eq!(found.unwrap(), wanted, "{path}");
        }
    }
}

#[test]
fn numbers_as_hosts() {
    let Some(hosts) = json("urlcanon-funky_ipv4.json") else { return };
    for (host, address) in hosts.as_object().unwrap() {
        let found = canonical(&format!("http://{host}/")).ok();
        // Not an address, but a name that looks like one.
        let wanted = if host == "0000xa" { Some("0000xa") } else { address.as_str() };
        assert_eq!(found.as_deref(), wanted, "{host}");
    }
}

type Fold = (&'static str, fn(&str) -> String);

/// What other tools do to URLs and we do not.
const FOLDS: [Fold; 6] = [
    ("case", |form| form.to_lowercase()),
    ("escapes", unescaped),
    ("parameters", sorted),
    ("slashes", |form| {
        let (page, query) = form.split_at(form.find('?').unwrap_or(form.len()));
        let segments: Vec<&str> = page.split('/').filter(|segment| !segment.is_empty()).collect();
        segments.join("/") + query
    }),
    ("www", |form| {
        let (label, rest) = form.split_once('.').unwrap_or((form, ""));
        let www = label.trim_end_matches(|c: char| c.is_ascii_digit()) == "www";
        (if www { rest } else { form }).to_owned()
    }),
    ("dot after host", |form| {
        let (host, rest) = form.split_at(form.find(['/', '?']).unwrap_or(form.len()));
        host.trim_end_matches('.').to_owned() + rest
    }),
];

/// Decodes percent escapes until none is left.
fn unescaped(form: &str) -> String {
    let bytes = form.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let hex = form.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let escape = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escape.unwrap_or(bytes[at]));
        at += if escape.is_some() { 3 } else { 1 };
    }
    let out = String::from_utf8_lossy(&out).into_owned();
    if out.len() < form.len() { unescaped(&out) } else { out }
}

/// Sorts the query's parameters, without the empty ones and without `=` before nothing.
fn sorted(form: &str) -> String {
    let (page, query) = form.split_once('?').unwrap_or((form, ""));
    let parameters = query.split('&').map(|p| p.strip_suffix('=').unwrap_or(p));
    let mut parameters: Vec<&str> = parameters.filter(|p| !p.is_empty()).collect();
    parameters.sort_unstable();
    let mark = if parameters.is_empty() { "" } else { "?" };
    format!("{page}{mark}{}", parameters.join("&"))
}

/// Names the fewest foldings that make both forms one.
fn apart_by(one: &str, other: &str) -> String {
    let chosen = |set: u32| (0..FOLDS.len()).filter(move |n| set >> n & 1 == 1);
    let fold = |set, form: &str| chosen(set).fold(form.to_owned(), |form, n| FOLDS[n].1(&form));
    let mut sets: Vec<u32> = (0..1 << FOLDS.len()).collect();
    sets.sort_by_key(|set| set.count_ones());
    match sets.into_iter().find(|&set| fold(set, one) == fold(set, other)) {
        Some(0) => "agrees".to_owned(),
        Some(set) => chosen(set).map(|n| FOLDS[n].0).collect::<Vec<_>>().join(" + "),
        None => "other".to_owned(),
    }
}

/// Counts pairs that another tool calls one page by what keeps them apart here.
fn compared(pairs: &[Pair]) -> Counts {
    let mut counts = Counts::new();
    for (one, other) in pairs {
        let kind = match (canonical(one), canonical(other)) {
            (Ok(one), Ok(other)) => apart_by(&one, &other),
            (Err(_), Err(_)) => "both refused".to_owned(),
            (Err(_), Ok(_)) => "first refused".to_owned(),
            (Ok(_), Err(_)) => "second refused".to_owned(),
        };
        println!("{kind}: {one:?} {other:?}");
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

#[test]
fn archive_canonicalisers() {
    let Some(whatwg) = json("urlcanon-supplemental_whatwg.json") else { return };
    // That tool makes an address of a host that is nothing but dots; browsers keep it.
    let dots = |(_, to): &Pair| to.contains("//0.0.0.0/");
    let (dots, rest): (Vec<Pair>, Vec<Pair>) = pairs(&whatwg).into_iter().partition(dots);
    assert_counts(&compared(&dots), [("other", 15)]);
    // The one refused alone is mojibake.
    assert_counts(&compared(&rest), [("agrees", 95), ("both refused", 7), ("first refused", 1)]);

    let Some(aggressive) = json("urlcanon-aggressive.json") else { return };
    // The others are session ids.
    let wanted = [
        ("agrees", 8),
        ("case + parameters", 1),
        ("case + www", 1),
        ("escapes", 2),
        ("other", 10),
        ("parameters", 2),
        ("slashes", 3),
        ("www", 15),
    ];
    assert_counts(&compared(&pairs(&aggressive)), wanted);

    let Some(surt) = json("urlcanon-surt.json") else { return };
    let lists = "Canonicalizer.DefaultIA Canonicalizer.IA google googleSupplementalFromSurt";
    let lists: Vec<Pair> = lists.split(' ').flat_map(|list| pairs(&surt[list])).collect();
    // The one refused alone is mojibake again.
    let wanted = [
        ("agrees", 26),
        ("both refused", 6),
        ("dot after host", 1),
        ("escapes", 6),
        ("first refused", 1),
        ("parameters", 3),
        ("parameters + www", 1),
        ("slashes", 1),
        ("www", 6),
    ];
    assert_counts(&compared(&lists), wanted);
    for (url, key) in pairs(&surt["defaultIASurt"]).iter().filter(|(url, key)| url == key) {
        assert_eq!(canonical(url).as_ref(), Ok(key), "no http, so left alone");
    }
}

#[test]
fn crawlers_normaliser() {
    let Some(pairs) = crawler_pairs() else { return };
    // The others are parameters without a name, which that tool drops.
    let wanted = [
        ("agrees", 65),
        ("both refused", 3),
        ("case", 4),
        ("dot after host", 1),
        ("escapes", 18),
        ("other", 2),
        ("parameters", 12),
        ("slashes", 7),
    ];
    assert_counts(&compared(&pairs), wanted);

    let Some(invalid) = text("crawler-commons-invalidUrls.csv") else { return };
    for url in invalid.lines().filter(|line| !line.starts_with('#')) {
        assert!(canonical(url).is_err(), "{url}");
    }
}

#[test]
fn real_urls_and_their_surt_keys() {
    let Some(entries) = surt_oracle() else { return };
    let mut forms_of_key: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut keys_of_form: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut counts = Counts::new();
    for (url, key) in &entries {
        match (canonical(url), key) {
            (Ok(form), Some(key)) => {
                forms_of_key.entry(key).or_default().insert(form.clone());
                keys_of_form.entry(form).or_default().insert(key);
            }
            (Err(_), None) => *counts.entry("both refused".to_owned()).or_default() += 1,
            (found, key) => panic!("{url}: {found:?}, {key:?}"),
        }
    }
    let folded = keys_of_form.iter().find(|(_, keys)| keys.len() > 1);
    assert_eq!(folded, None, "we fold nothing that SURT keeps apart");
    for forms in forms_of_key.values() {
        let first = forms.first().unwrap();
        for form in forms {
            *counts.entry(apart_by(first, form)).or_default() += 1;
        }
    }
    assert_counts(&counts, [("agrees", 4307), ("both refused", 1), ("www", 8)]);
}

/// Every URL of the data, as it is and as the other tools write it.
fn corpus() -> Vec<String> {
    let mut urls = Vec::new();
    for case in cases("wpt-urltestdata.json").unwrap_or_default() {
        let texts = ["input", "href"].map(|name| case[name].as_str().map(str::to_owned));
        urls.extend(texts.into_iter().flatten());
    }
    let mut both = crawler_pairs().unwrap_or_default();
    for name in ["urlcanon-aggressive.json", "urlcanon-supplemental_whatwg.json"] {
        both.extend(json(name).iter().flat_map(pairs));
    }
    for lists in json("urlcanon-surt.json").iter().filter_map(Value::as_object) {
        both.extend(lists.values().flat_map(pairs));
    }
    urls.extend(both.into_iter().flat_map(|(one, other)| [one, other]));
    urls.extend(surt_oracle().unwrap_or_default().into_iter().map(|(url, _)| url));
    urls
}

/// What mutations put in: what means something in a URL, and what should not be in one.
const PIECES: &str = "/ // /. /.. /./ . .. ? ?? & = # @ : :80 :443 :8080 %2e %2E %2f % %5 ^ \\ | ' \" \
    < > ` { } [ ] [::1] xn-- xn--bcher-kva 0x7f 1 256 http: https:// HTTP:// ftp: dns: file:// www. A \
    Z - _ ~ + ; , $ ! * ( ) \t \r \n \0 \u{7f} \u{80} \u{a0} \u{ad} \u{df} \u{e4} \u{130} \u{200d} \
    \u{3002} \u{ff0f} \u{ff21} \u{fffd} \u{1f600}";

/// A generator whose numbers depend on the seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    /// The URL with one to three pieces taken out, put in or exchanged.
    fn mutation(&mut self, url: &str) -> String {
        let pieces: Vec<&str> = PIECES.split(' ').chain(["", " "]).collect();
        let mut chars: Vec<char> = url.chars().collect();
        for _ in 0..=self.below(3) {
            let from = self.below(chars.len() + 1);
            let to = (from + self.below(3)).min(chars.len());
            let piece = pieces[self.below(pieces.len())];
            chars.splice(from..to, piece.chars());
        }
        chars.into_iter().collect()
    }
}

/// Checks what `url.rs` promises of one URL.
fn check_invariants(url: &str) {
    let found = canonical(url);
    // No plain URL starts with a blank, so this one goes through the parser.
    assert_eq!(canonical(&format!(" {url}")).ok(), found.clone().ok(), "{url:?}");
    let mut out = "kept ".to_owned();
    let appended = canonical_into(url, &mut out).is_ok();
    assert_eq!(appended, found.is_ok(), "{url:?}");
    let form = found.unwrap_or_default();
    assert_eq!(out, format!("kept {form}"), "{url:?}");
    assert_eq!(appended, !form.is_empty(), "{url:?}");

    let Ok(parsed) = Url::parse(url) else { return };
    if !appended {
        return;
    }
    let scheme = format!("{}:", parsed.scheme());
    if !matches!(parsed.scheme(), "http" | "https") {
        // The parser itself does not always come back to the same file.
        if scheme != "file:" {
            assert_eq!(canonical(&form).as_ref(), Ok(&form), "{url:?} again");
        }
        let rest = form.strip_prefix(&scheme);
        let read_as_host = rest.is_none_or(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let as_http = canonical(&format!("http://{form}"));
        assert!(read_as_host || as_http.as_ref() != Ok(&form), "{url:?} is like http");
        return;
    }
    assert!(form.bytes().all(|byte| byte.is_ascii_graphic()), "{url:?}: {form:?}");
    let https_on_80 = parsed.scheme() == "https" && parsed.port() == Some(80);
    if !https_on_80 {
        assert_eq!(canonical(&format!("http://{form}")).as_ref(), Ok(&form), "{url:?} again");
    }
    let names = ["http:", "https:", "ftp:", "ws:", "wss:", "file:"];
    let like_a_scheme = names.iter().any(|name| form.starts_with(name));
    if !https_on_80 && !like_a_scheme {
        assert_eq!(canonical(&form).as_ref(), Ok(&form), "{url:?} again");
    }
    let same = same_page(&parsed);
    assert_eq!(canonical(&same).as_ref(), Ok(&form), "{url:?} and {same:?}");
}

/// The same page with all that is dropped written otherwise.
fn same_page(url: &Url) -> String {
    let (scheme, port) = match (url.port(), url.scheme()) {
        (None, "http") => ("HTTPS", 443),
        (None, _) => ("hTTp", 80),
        (Some(port), scheme) => (scheme, port),
    };
    let host = url.host_str().unwrap().to_uppercase();
    let query = url.query().map_or(String::new(), |query| format!("?{query}"));
    format!("{scheme}://u:p@{host}:{port}{}//{query}#f", url.path())
}

#[test]
fn invariants_hold_for_all_urls_and_their_mutations() {
    let urls = corpus();
    let mut random = Random(5);
    for url in &urls {
        check_invariants(url);
    }
    for url in urls.iter().cycle().take(100_000) {
        check_invariants(&random.mutation(url));
    }
}
