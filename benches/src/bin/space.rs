//! What pages take on the disk of a repository that they came to through its client, against the same pages in a store of
//! their own and, with the feature `most-peers`, in a WARC gzipped record by record.
//!
//! `space [--corpus FILE] [--pages N] [--dir DIR]`

use std::path::{Path, PathBuf};

use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::{ClusterOptions, TestCluster, add_all, run_cycle, runtime};
use webbase_benches::contestant::{self, Add, AddOptions, PeerConfig};
use webbase_benches::corpus::{Corpus, repository_key};
use webbase_benches::measure::{Work, disk_bytes, print_setting};
use webbase_benches::ours::page;
use webbase_storage::{Compression, Organization, Page, pack_page};

fn main() {
    let arguments = Arguments::from_env();
    let corpus = Path::new(arguments.value("--corpus").unwrap_or("benches/work/pages.corpus"));
    let corpus = Corpus::read(corpus, arguments.number("--pages", 20_000)).expect("a corpus");
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/space"));
    let _ = std::fs::remove_dir_all(&dir); // not there the first time
    let logical = corpus.len_bytes();
    print_setting(Work { pages: corpus.pages.len() as u64, bytes: logical }, 1);
    // In random order, as a crawler brings them: a dictionary is learned from the first.
    let order = corpus.shuffled(1);
    let mixed = || order.iter().map(|&n| &corpus.pages[n as usize]);
    let pages: Vec<Page<'static>> = mixed().map(page).collect();

    let mut rows = Vec::new();
    for contestant in contestant::all() {
        if ["webbase-zstd", "warc-gz"].contains(&contestant.name) {
            let dir = dir.join(contestant.name);
            std::fs::create_dir_all(&dir).expect("a folder");
            let adds: Vec<Add> = mixed().map(|page| Add { key: page.key(), page: *page }).collect();
            let mut store = (contestant.open)(&dir, &PeerConfig { cache_bytes: 0 });
            store.add_all(&adds, AddOptions::default());
            store.settle();
            drop(store);
            rows.push((contestant.name.to_owned(), disk_bytes(&dir)));
        }
    }
    let bare = |page: &Page<'_>| pack_page(&repository_key(), page, Compression::default(), None);
    let bare: usize = pages.iter().map(|page| bare(page).expect("a record").bytes().len()).sum();
    rows.push(("records packed without a dictionary".to_owned(), bare as u64));

    let options = ClusterOptions {
        update_nodes: 1,
        read_nodes: 1,
        replicas: 1,
        update_organization: Organization::Log,
        read_organization: Organization::Log,
        compression: Compression::default(),
    };
    let folder = dir.join("repository");
    let cluster = TestCluster::start(&folder, options);
    runtime(2, "client").block_on(async {
        let client = cluster.client().await;
        add_all(&client, &pages).await;
        rows.push((
            "repository, update node before the cycle".to_owned(),
            disk_bytes(&folder.join("update-0")),
        ));
        run_cycle(&client).await;
        rows.push(("repository, read node after it".to_owned(), disk_bytes(&folder.join("read-1"))));
    });

    let bytes_of = |name: &str| rows.iter().find(|(of, _)| of == name).map(|(_, bytes)| *bytes);
    let (own, warc) = (bytes_of("webbase-zstd"), bytes_of("warc-gz"));
    println!("\n| what | MB | bytes per logical byte | of a store of its own | of WARC.gz |");
    println!("|---|---:|---:|---:|---:|");
    for (name, bytes) in &rows {
        let of =
            |other: Option<u64>| other.map_or("–".into(), |o| format!("{:.3}", *bytes as f64 / o as f64));
        let (mb, share) = (*bytes as f64 / 1e6, *bytes as f64 / logical as f64);
        println!("| {name} | {mb:.1} | {share:.4} | {} | {} |", of(own), of(warc));
    }
    drop(cluster);
    let _ = std::fs::remove_dir_all(&dir); // left-overs hurt nobody
}
