//! The shortest useful program: create a store, add pages, look one up, stream them all, stop half-way and resume.
//!
//! ```text
//! cargo run --release -p webbase-storage --example quickstart [-- FOLDER [log|hash|hashed-log]]
//! ```
//!
//! Without a folder it works in a temporary one. With a folder the store stays there, and a second run finds it.

use std::path::PathBuf;

use webbase_storage::{Options, Organization, Page, RepositoryKey, StorageError, StreamSpec, create, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let temporary = tempfile::tempdir()?;
    let dir = args.next().map_or(temporary.path().join("store"), PathBuf::from);
    let organization: Organization = args.next().as_deref().unwrap_or("log").parse()?;
    let options = Options::default();

    match create(&dir, organization, RepositoryKey::random()?, &options) {
        Ok(()) => println!("created a {organization} store in {}", dir.display()),
        Err(StorageError::NotAStore { .. }) => println!("there is something in {} already", dir.display()),
        Err(e) => return Err(e.into()),
    }
    let store = open(&dir, &options)?;

    // Add a thousand pages. They are durable and visible when `commit` returns, not before.
    let urls: Vec<String> = (0..1000).map(|n| format!("http://site{}.example/page/{n}", n % 10)).collect();
    let bodies: Vec<String> =
        (0..1000).map(|n| format!("<title>Page {n}</title><p>{}", "hello ".repeat(n % 50))).collect();
    let pages: Vec<Page<'_>> = urls
        .iter()
        .zip(&bodies)
        .map(|(url, body)| Page {
            url,
            body: body.as_bytes(),
            head: b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
            fetched_at_ms: 1_700_000_000_000,
            ..Page::default()
        })
        .collect();
    let added = store.add(&pages)?;
    store.commit()?;
    println!("added: {} new, {} superseding, {} already there", added.new, added.superseding, added.stale);

    // Look one up, however its URL is spelled.
    let record = store.lookup_url("https://SITE7.example:443/page/7/")?.ok_or("the page is gone")?;
    println!("{} is page {}", record.get().url(), record.get().key().id);
    println!("  {}", String::from_utf8_lossy(&record.body(store.dictionaries())?));

    // Stream half of it, keep the cursor, and go on later.
    let stream = store.stream(&StreamSpec::default())?;
    let first: Result<Vec<_>, _> = stream.take(500).collect();
    let cursor = store.stream(&StreamSpec::default()).map(|mut again| {
        again.by_ref().take(500).for_each(drop);
        again.cursor()
    })?;
    let rest = store.stream(&StreamSpec { from: cursor, ..StreamSpec::default() })?.count();
    println!("streamed {} pages, and {rest} more from cursor {cursor}", first?.len());

    let stats = store.stats();
    println!(
        "{} pages in {} bytes on disk ({:.0} % of it live), {} bytes of memory",
        stats.pages,
        stats.used_bytes,
        stats.utilisation() * 100.0,
        stats.memory_bytes
    );
    let report = store.verify()?;
    println!("verified {} records: {} damaged", report.good_records, report.damage.len());
    store.close()?;
    Ok(())
}
