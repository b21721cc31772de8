//! Proves that packed pages come back byte for byte, head and body, from every organization, across a restart and in
//! another store; and that a store learns a dictionary from its own pages and has it on disk before it needs it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use webbase_storage::{
    Codec, Compression, Deflated, Options, Organization, Page, PageStream, Record, RepositoryKey,
    StorageError, StreamSpec, create, open,
};

const PAGES: usize = 1500;

fn url(n: usize) -> String {
    format!("http://site{}.example/article/{n}", n % 13)
}

fn head(n: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nServer: box\r\nETag: \"{n:x}\"\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
    )
}

fn body(n: usize) -> String {
    let words = ["page", "store", "disk", "crawl", "index", "stream", "record", "bucket"];
    let text: String =
        (0..n % 400).map(|i| format!("<p>{} {}</p>", words[(n * 7 + i * 3) % 8], n * i)).collect();
    format!(
        "<!doctype html><html><head><title>Article {n}</title></head><body class=\"article\">{text}</body></html>"
    )
}

/// A body as it lies in a file that somebody packed: with something before it and behind it. Of every third page.
fn came_packed(n: usize) -> Option<Vec<u8>> {
    let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    let around = format!("{BEFORE}{}\r\n\r\n", body(n));
    std::io::Write::write_all(&mut packer, around.as_bytes()).unwrap();
    n.is_multiple_of(3).then(|| packer.finish().unwrap())
}

const BEFORE: &str = "WARC/1.1\r\nWARC-Type: response\r\n\r\n";

#[test]
fn packed_pages_come_back_whole_from_everywhere() {
    for organization in Organization::ALL {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3)] {
            let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let options = Options { compression, buffer_bytes: 1 << 20, ..Options::default() };
            let key = RepositoryKey::new([9; 32]);
            create(folder.path(), organization, key, &options).unwrap();
            let store = open(folder.path(), &options).unwrap();
            for start in (0..PAGES).step_by(100) {
                let texts: Vec<_> =
                    (start..start + 100).map(|n| (url(n), head(n), body(n), came_packed(n))).collect();
                let page = |t: &'static (String, String, String, Option<Vec<u8>>)| Page {
                    url: &t.0,
                    head: t.1.as_bytes(),
                    // Not there twice.
                    body: if t.3.is_some() { b"" } else { t.2.as_bytes() },
                    deflated: t.3.as_ref().map(|stream| Deflated {
                        stream,
                        before: BEFORE.len() as u32,
                        behind: 4,
                        len: t.2.len() as u32,
                    }),
                    ..Page::default()
                };
                let texts: &'static [_] = texts.leak();
                store.add(&texts.iter().map(page).collect::<Vec<_>>()).unwrap();
                store.commit().unwrap();
            }
            let learned = matches!(compression, Compression::Zstd(_));
            assert_eq!(
                store.dictionaries().all().len(),
                usize::from(learned),
                "{organization} {compression:?}"
            );
            drop(store); // no close: as after a kill

            let store = open(folder.path(), &options).unwrap();
            let records: Vec<Record> =
                store.stream(&StreamSpec::default()).unwrap().map(Result::unwrap).collect();
            assert_eq!(records.len(), PAGES);
            assert_eq!(records.iter().any(|r| r.get().dictionary() != 0), learned);
            for n in 0..PAGES {
                let record = store.lookup_url(&url(n)).unwrap().unwrap();
                assert_eq!(record.get().head(store.dictionaries()).unwrap(), head(n).as_bytes());
                assert_eq!(record.body(store.dictionaries()).unwrap(), body(n).as_bytes());
            }
            // What came packed stayed so, where that is smaller and stores pack at all.
            let kept = records.iter().filter(|record| record.get().codec() == Codec::Deflate).count();
            assert_eq!(
                kept > PAGES / 4,
                compression != Compression::None,
                "{organization} {compression:?}: {kept}"
            );

            // Elsewhere the dictionary has to arrive first.
            create(other.path(), Organization::Log, key, &options).unwrap();
            let copy = open(other.path(), &options).unwrap();
            if learned {
                let refused = copy.add_records(&records).unwrap_err();
                assert!(matches!(refused, StorageError::UnknownDictionary { .. }), "{refused}");
            }
            for dictionary in store.dictionaries().all() {
                assert_eq!(copy.add_dictionary(dictionary.content()).unwrap(), dictionary.digest());
            }
            copy.add_records(&records).unwrap();
            copy.commit().unwrap();
            let mut stream: Box<dyn PageStream> = copy.stream(&StreamSpec::default()).unwrap();
            for before in &records {
                assert_eq!(
                    stream.next().unwrap().unwrap().bytes(),
                    before.bytes(),
                    "records travel as they are"
                );
            }
        }
    }
}
