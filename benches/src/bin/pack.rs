//! Packs HTML files and WARCs into a corpus; `corpus.sh` calls it.
//!
//! `pack OUT PER_SITE [WARC ...] < LIST`, where each line of LIST is site, path in the URL, and file, between tabs.
//! Bodies under 512 bytes or over 4 MiB are dropped, and so is every body seen before. From a site with more than
//! PER_SITE pages a sample is taken, chosen by the hash of the path, so that a second run takes the same.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::{self, BufRead, BufWriter, Seek, SeekFrom, Write},
    path::PathBuf,
};

use webbase_benches::{corpus, http_head, warc};

const BODY_BYTES_MIN: usize = 512;
const BODY_BYTES_MAX: usize = 4 << 20;

struct Page {
    url: String,
    head: Vec<u8>,
    body: Vec<u8>,
    fetched_at_ms: u64,
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: pack OUT PER_SITE [WARC ...] < LIST";
    let out = PathBuf::from(args.next().expect(usage));
    let per_site: usize = args.next().and_then(|n| n.parse().ok()).expect(usage);

    let mut packer = Packer::create(&out)?;
    for (site, files) in sites_from_list()? {
        packer.add_site(&site, files, per_site)?;
    }
    for path in args {
        warc::read_responses(path.as_ref(), |response| {
            packer.add(&Page {
                url: response.url,
                head: response.head,
                body: response.body,
                fetched_at_ms: response.fetched_at_ms,
            })
        })?;
    }
    packer.finish()
}

/// Files by site: (path in the URL, file).
fn sites_from_list() -> io::Result<BTreeMap<String, Vec<(String, PathBuf)>>> {
    let mut sites: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for line in io::stdin().lock().split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        let mut fields = line.splitn(3, '\t');
        if let (Some(site), Some(path), Some(file)) = (fields.next(), fields.next(), fields.next()) {
            sites.entry(host(site)).or_default().push((path.to_owned(), file.into()));
        }
    }
    Ok(sites)
}

struct Packer {
    out: BufWriter<File>,
    /// Hashes of bodies, and of URLs from WARCs.
    seen: HashSet<blake3::Hash>,
    sizes: Vec<usize>,
}

impl Packer {
    fn create(path: &std::path::Path) -> io::Result<Packer> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        out.write_all(corpus::MAGIC)?;
        out.write_all(&0u64.to_le_bytes())?;
        Ok(Packer { out, seen: HashSet::new(), sizes: Vec::new() })
    }

    fn add_site(
        &mut self,
        host: &str,
        mut files: Vec<(String, PathBuf)>,
        page_count_max: usize,
    ) -> io::Result<()> {
        files.sort_by_cached_key(|(path, _)| *blake3::hash(path.as_bytes()).as_bytes());
        let mut kept = Vec::new();
        for (path, file) in files {
            if kept.len() == page_count_max {
                break;
            }
            // A file that is gone or unreadable is one page less.
            let Ok(body) = fs::read(&file) else { continue };
            if self.is_wanted(&body) {
                kept.push((path, body));
            }
        }
        kept.sort();
        // A file on this machine and one from its package can have one path.
        kept.dedup_by(|(path, _), (before, _)| path == before);
        for (path, body) in kept {
            let url = format!("http://{host}.docs.example/{}", escape(&path));
            let fetched_at_ms = http_head::fetched_at_ms(&url);
            let head = http_head::synthesise(&url, body.len(), fetched_at_ms);
            self.write(&Page { url, head, body, fetched_at_ms })?;
        }
        Ok(())
    }

    fn add(&mut self, page: &Page) -> io::Result<()> {
        let is_new = self.seen.insert(blake3::hash(page.url.as_bytes()));
        if is_new && self.is_wanted(&page.body) { self.write(page) } else { Ok(()) }
    }

    fn is_wanted(&mut self, body: &[u8]) -> bool {
        (BODY_BYTES_MIN..=BODY_BYTES_MAX).contains(&body.len()) && self.seen.insert(blake3::hash(body))
    }

    fn write(&mut self, page: &Page) -> io::Result<()> {
        corpus::write_frame(&mut self.out, &page.url, &page.head, &page.body, page.fetched_at_ms)?;
        self.sizes.push(page.body.len());
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.seek(SeekFrom::Start(8))?;
        self.out.write_all(&(self.sizes.len() as u64).to_le_bytes())?;
        self.out.flush()?;
        self.sizes.sort_unstable();
        let sum: usize = self.sizes.iter().sum();
        let at = |percent: usize| self.sizes.get(self.sizes.len() * percent / 100).copied().unwrap_or(0);
        println!(
            "{} pages, bodies {:.2} GB, mean {}, p50 {}, p90 {}, p99 {}",
            self.sizes.len(),
            sum as f64 / 1e9,
            sum / self.sizes.len().max(1),
            at(50),
            at(90),
            at(99)
        );
        Ok(())
    }
}

/// A package's name as a host name.
fn host(site: &str) -> String {
    let site = site.to_ascii_lowercase().replace('+', "p");
    let host: String = site.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    host.trim_matches('-').to_owned()
}

/// A file's path as a URL's path.
fn escape(path: &str) -> String {
    let path = path.trim_start_matches("usr/share/");
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            escaped.push(byte as char);
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
