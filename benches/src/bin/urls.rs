//! The URL index: bytes against the CDXJ text of the same pages, pages a second to build it, and the time to the first rows of a
//! prefix, host or domain question.
//!
//! `urls [--urls 10000000] [--dir DIR] [--questions 2000]`. URLs are made: hosts with a few to many thousand pages, paths of words,
//! numbers and dates, one in eight with a query. Half of them come in a random order, as pages do that are hashed.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use webbase_benches::arguments::Arguments;
use webbase_storage::disk::OsDisk;
use webbase_storage::surt::{KeyRange, Match};
use webbase_storage::urls::{UrlFiles, UrlQuery, UrlRow, Urls};
use webbase_storage::{Page, RepositoryKey};

/// As the program has it.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Memory for rows that wait to be sorted, as nodes have it.
const BUDGET_BYTES: usize = 32 << 20;
/// First rows of an answer.
const FIRST_ROWS: usize = 10;

const WORDS: [&str; 24] = [
    "about", "archive", "article", "blog", "category", "contact", "data", "docs", "download", "events",
    "forum", "gallery", "help", "images", "index", "library", "news", "pages", "people", "products",
    "research", "search", "support", "wiki",
];
const TOP: [&str; 8] = ["com", "org", "net", "edu", "de", "fr", "co.uk", "info"];

/// A number that looks random and is always the same.
fn mixed(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491_4f6c_dd1d);
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x.wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
}

fn host(n: u64) -> String {
    let seed = mixed(n ^ 0x5555);
    let word = |shift: u32| WORDS[(seed >> shift) as usize % WORDS.len()];
    let www = if seed.is_multiple_of(3) { "www." } else { "" };
    format!("{www}{}-{}{n}.{}", word(8), word(16), TOP[(seed >> 24) as usize % TOP.len()])
}

/// Page `n` of so many.
fn url(n: u64, all: u64) -> String {
    let seed = mixed(n);
    // Few hosts have most pages.
    let hosts = (all / 50).max(1) as f64;
    let at = ((seed >> 11) as f64 / (1_u64 << 53) as f64).powi(3) * hosts;
    let word = |shift: u32| WORDS[(seed >> shift) as usize % WORDS.len()];
    let scheme = if seed.is_multiple_of(4) { "http" } else { "https" };
    let path = match seed % 5 {
        0 => format!("{}/{}/{n}", word(3), word(9)),
        1 => format!("{}/20{:02}/{:02}/{}-{n}.html", word(3), seed % 25, seed % 12 + 1, word(9)),
        2 => format!("{}/{}_{}/{}{n}", word(3), word(9), word(15), word(21)),
        3 => format!("{}{n}.html", word(3)),
        _ => format!("{}/{}/{}/{n}/", word(3), word(9), word(15)),
    };
    let query =
        if seed % 8 == 7 { format!("?id={}&view={}", seed % 100_000, word(30)) } else { String::new() };
    format!("{scheme}://{}/{path}{query}", host(at as u64))
}

fn row(n: u64, all: u64, repository: &RepositoryKey) -> (webbase_storage::PageKey, UrlRow) {
    let (url, seed) = (url(n, all), mixed(n ^ 0x77));
    let mut digest = [0; 20];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = mixed(seed.wrapping_add(at as u64)) as u8;
    }
    let page = Page {
        url: &url,
        fetched_at_ms: 1_700_000_000_000 + seed % 2_000_000_000,
        status: if seed.is_multiple_of(20) { 404 } else { 200 },
        mime: ["text/html", "text/html", "text/html", "application/pdf", "image/jpeg"][(seed % 5) as usize],
        payload_digest: Some(digest),
        ..Page::default()
    };
    let key = repository.page_key(&url).expect("a URL");
    let mut row = UrlRow::of_page(&page, key).expect("a URL");
    (row.head_len, row.body_len) = (300 + (seed % 200) as u32, (seed % 60_000) as u32);
    (key, row)
}

/// The bytes of the row as a CDXJ line, with the file names and lengths that an ordinary archive has.
fn cdxj(row: &UrlRow, out: &mut Vec<u8>) {
    let (length, offset, file) = (row.body_len / 4 + 400, u64::from(row.body_len) * 7919, row.epoch);
    let _ = writeln!(
        out,
        "{} 20231114221320 {{\"url\": \"{}\", \"mime\": \"{}\", \"status\": \"{}\", \"digest\": \"A4DQOBYHA4DQOBYHA4DQOBYHA4DQOBYH\", \
         \"length\": \"{length}\", \"offset\": \"{offset}\", \"filename\": \"crawl-20231114221320-{file:05}-host.warc.gz\"}}",
        row.surt, row.url, row.mime, row.status
    );
}

fn median(mut times: Vec<Duration>) -> (Duration, Duration, Duration) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    (at(0.5), at(0.99), at(1.0))
}

fn main() {
    let arguments = Arguments::from_env();
    let count = arguments.number("--urls", 10_000_000) as u64;
    let questions = arguments.number("--questions", 2000) as u64;
    let folder = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/urls"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let repository = RepositoryKey::new([5; 32]);
    let files = UrlFiles::open(Arc::new(OsDisk::new()), &folder, repository).expect("a folder");

    // Rows are made apart, so that only the index is timed.
    let mut builder = files.builder(BUDGET_BYTES);
    let (mut adding, mut text) = (Duration::ZERO, 0_u64);
    let mut line = Vec::new();
    for start in (0..count).step_by(100_000) {
        let rows: Vec<_> = (start..(start + 100_000).min(count))
            .map(|n| row(mixed(n) % (count * 4), count, &repository))
            .collect();
        for (_, row) in &rows {
            line.clear();
            cdxj(row, &mut line);
            text += line.len() as u64;
        }
        let began = Instant::now();
        for (key, row) in rows {
            builder.add(key, row).expect("written");
        }
        adding += began.elapsed();
        if start % 1_000_000 == 0 {
            eprintln!("{start} URLs");
        }
    }
    let began = Instant::now();
    let urls = builder.finish(&Urls::empty(repository), None).expect("built");
    files.save(1, &urls).expect("saved");
    let took = adding + began.elapsed();
    let pages = urls.pages();
    // Some URLs came twice: the text counts them once, too.
    let text = text * pages / count;
    let share = urls.disk_bytes() as f64 / text as f64;
    println!("pages                 {pages}");
    println!("built                 {:.0} URLs/s, of rows in any order", count as f64 / took.as_secs_f64());
    println!(
        "index                 {:.1} bytes a page, {:.3} of the CDXJ text ({:.1} a page)",
        urls.disk_bytes() as f64 / pages as f64,
        share,
        text as f64 / pages as f64
    );
    let memory: u64 = urls.runs().iter().map(|run| run.memory_bytes()).sum();
    println!("in memory             {:.2} bytes a page", memory as f64 / pages as f64);

    for kind in ["exact", "prefix", "host", "domain", "count"] {
        let mut times = Vec::new();
        let mut found = 0;
        // The second round is the warm one.
        for round in 0..2 {
            times.clear();
            for n in 0..questions {
                let (_, row) = row(mixed(n) % (count * 4), count, &repository);
                let (turned, path) = row.surt.split_once(')').expect("a host");
                let range = match kind {
                    "exact" => KeyRange::of(&row.surt, Match::Exact),
                    "prefix" => {
                        KeyRange::of(&format!("{turned}){}", &path[..path.len().min(6)]), Match::Prefix)
                    }
                    "host" => KeyRange::of(turned, Match::Host),
                    _ => KeyRange::of(turned.split_once(',').map_or(turned, |(top, _)| top), Match::Domain),
                };
                let began = Instant::now();
                if kind == "count" {
                    found += urls.count(&range.start, Some(&range.end)).expect("counted");
                } else {
                    let query = UrlQuery { start: range.start, end: Some(range.end), ..UrlQuery::default() };
                    for row in urls.query(&query).expect("read").take(FIRST_ROWS) {
                        row.expect("read");
                        found += 1;
                    }
                }
                times.push(began.elapsed());
            }
            let (half, most, worst) = median(times.clone());
            let warm = if round == 1 { "warm" } else { "first" };
            println!(
                "{kind:8} {warm:6} {questions} questions: median {half:?}, 99 % {most:?}, worst {worst:?} ({found} rows)"
            );
        }
    }
    drop(urls);
    let _ = std::fs::remove_dir_all(&folder);
}
