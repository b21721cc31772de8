//! WARC in and out: importing a gzipped file, against warcio reading it, gunzip alone and the store's add alone; exporting, against
//! warcio writing the same pages.
//!
//! `warc [--corpus FILE --pages N [--body-bytes-max N] | --data DIR --copies N] [--rounds N] [--dir DIR] [--python PATH] [--threads N]
//! [--only import,export] [--ways NAME,…]`.
//! The pages are those of a corpus, without the larger ones if that is asked for, or those of the WARC files in `DIR` (`../shared/data/pages`), each several times under URLs of
//! its own. `.ci/clients` installs warcio for `PATH` (`target/clients/bin/python`). warcio measures itself, without the time that
//! Python takes to start. `POST /pages` goes to a whole repository in this process: management server, update node, gateway.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use webbase::embedded::{Embedded, Options as Embedding};
use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::runtime;
use webbase_benches::corpus::{Corpus, repository_key};
use webbase_benches::measure::{Cost, Samples, Work, alternate, print_setting, print_table, timed};
use webbase_storage::digests::sha1_of_each;
use webbase_storage::{
    Compression, Dictionaries, Options, Organization, Page, PageStore, Record, StreamSpec, create, open,
    pack_page,
};
use webbase_stream::warc::{Capture, Form, Importer, Originals, Reader, Writer, read_ahead};

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The ways to import, and its parts.
const WAYS: [&str; 9] = [
    "warcio reads",
    "gunzip",
    "SHA-1",
    "webbase reads",
    "the store's add",
    "webbase imports",
    "webbase imports, packing anew",
    "POST /pages",
    "POST /pages, packing anew",
];
/// Unpacking, checking digests and packing: whoever imports does all of them.
const PARTS: [&str; 3] = ["gunzip", "SHA-1", "the store's add"];

/// Bodies do not stay as they are packed in the file.
const REPACKED: &str = "packing anew";

/// Bodies whose digests are computed at once, as of a lot of a file.
const LOT: usize = 10;

const ALLOWED: &str = "what the parts allow";

/// Reads every record and its payload; prints records, seconds, seconds of CPU.
const READ: &str = r"
import sys, time
from warcio.archiveiterator import ArchiveIterator
began, cpu, pages = time.perf_counter(), time.process_time(), 0
with open(sys.argv[1], 'rb') as file:
    for record in ArchiveIterator(file):
        if record.rec_type == 'response':
            record.raw_stream.read()
            pages += 1
print(pages, time.perf_counter() - began, time.process_time() - cpu)
";

/// Writes every response of a file again, from memory; prints records, seconds, seconds of CPU.
const WRITE: &str = r"
import sys, time, io
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter
pages = []
with open(sys.argv[1], 'rb') as file:
    for record in ArchiveIterator(file):
        if record.rec_type == 'response':
            headers = record.http_headers
            uri, date = record.rec_headers.get_header('WARC-Target-URI'), record.rec_headers.get_header('WARC-Date')
            pages.append((uri, date, headers, record.raw_stream.read()))
began, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[2], 'wb') as out:
    writer = WARCWriter(out, gzip=True)
    for uri, date, headers, body in pages:
        record = writer.create_warc_record(uri, 'response', payload=io.BytesIO(body), length=len(body),
            http_headers=headers, warc_headers_dict={'WARC-Date': date})
        writer.write_record(record)
print(len(pages), time.perf_counter() - began, time.process_time() - cpu)
";

struct Bench {
    dir: PathBuf,
    file: PathBuf,
    python: String,
    threads: usize,
    captures: Vec<Capture>,
}

fn main() {
    let arguments = Arguments::from_env();
    let data = PathBuf::from(arguments.value("--data").unwrap_or("../shared/data/pages"));
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/warc"));
    let (copies, rounds) = (arguments.number("--copies", 8), arguments.number("--rounds", 5));
    fs::create_dir_all(&dir).expect("a folder");
    let captures = match arguments.value("--corpus") {
        Some(corpus) => {
            let bytes_max = arguments.number("--body-bytes-max", usize::MAX);
            of_corpus(Path::new(corpus), arguments.number("--pages", 8000), bytes_max)
        }
        None => captures(&data, copies),
    };
    let file = dir.join("pages.warc.gz");
    write_file(&captures, &file);
    let work = Work { pages: captures.len() as u64, bytes: captures.iter().map(|c| c.bytes() as u64).sum() };
    print_setting(work, rounds);
    println!("- file: {} bytes gzipped", fs::metadata(&file).expect("a file").len());
    let python = arguments.value("--python").unwrap_or("target/clients/bin/python").to_owned();
    let bench = Bench { dir, file, python, threads: arguments.number("--threads", 2), captures };
    if arguments.lists("--only", "import") {
        let ways: Vec<&str> = WAYS.into_iter().filter(|way| arguments.lists("--ways", way)).collect();
        bench.import(rounds, work, &ways);
    }
    if arguments.lists("--only", "export") {
        bench.export(rounds, work);
    }
}

fn of_corpus(corpus: &Path, pages: usize, bytes_max: usize) -> Vec<Capture> {
    let corpus = Corpus::read(corpus, pages).expect("benches/corpus.sh makes it");
    let capture = |page: &webbase_benches::corpus::CorpusPage| Capture {
        url: page.url.to_owned(),
        fetched_at_ms: page.fetched_at_ms,
        modified_at_ms: None,
        status: 200,
        mime: "text/html".to_owned(),
        head: page.head.into(),
        body: page.body.into(),
        payload_digest: <sha1::Sha1 as sha1::Digest>::digest(page.body).into(),
        kept: None,
    };
    corpus.pages.iter().filter(|page| page.body.len() <= bytes_max).map(capture).collect()
}

fn captures(data: &Path, copies: usize) -> Vec<Capture> {
    let mut all = Vec::new();
    let mut files: Vec<_> =
        fs::read_dir(data).expect("the data").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.to_string_lossy().ends_with(".warc.gz")) {
        all.extend(read(file));
    }
    (0..copies).flat_map(|copy| with_urls(&all, copy)).collect()
}

fn with_urls(captures: &[Capture], copy: usize) -> Vec<Capture> {
    let named = |capture: &Capture| Capture {
        url: format!("{}#{copy}", capture.url).replace('#', "?copy="),
        ..capture.clone()
    };
    captures.iter().map(named).collect()
}

fn read(file: &Path) -> Vec<Capture> {
    let mut reader = Reader::new(File::open(file).expect("a file")).expect("a file");
    let mut importer = Importer::new(Originals::new(128 << 20));
    let mut captures = Vec::new();
    while let Some(item) = reader.next().expect("a file") {
        captures.extend(importer.take(item));
    }
    captures
}

/// As [`read`], each capture forgotten when it was made.
fn count(file: &Path) -> u64 {
    let mut reader = Reader::new(File::open(file).expect("a file")).expect("a file");
    let mut importer = Importer::new(Originals::new(128 << 20));
    std::iter::from_fn(|| reader.next().expect("a file")).filter_map(|item| importer.take(item)).count()
        as u64
}

fn are_of_digests(captures: &[Capture]) -> bool {
    let bodies: Vec<&[u8]> = captures.iter().map(|capture| &capture.body[..]).collect();
    sha1_of_each(&bodies).iter().zip(captures).all(|(digest, capture)| *digest == capture.payload_digest)
}

/// What an import could do if it were nothing but its parts, and kept all cores busy with them.
fn allowed(samples: &[Samples]) -> Option<Samples> {
    let parts: Option<Vec<&Samples>> =
        PARTS.iter().map(|name| samples.iter().find(|row| row.name == *name)).collect();
    let (parts, cores) = (parts?, std::thread::available_parallelism().map_or(1, usize::from));
    let round = |n: usize| {
        let cpu_s = parts.iter().map(|part| part.costs[n].cpu_s).sum::<f64>();
        Cost { wall_s: cpu_s / cores as f64, cpu_s }
    };
    let costs = (0..parts[0].costs.len()).map(round).collect();
    Some(Samples { name: ALLOWED.to_owned(), costs })
}

fn records(captures: &[Capture]) -> Vec<Record> {
    let pack = |capture: &Capture| pack_page(&repository_key(), &capture.page(), Compression::Zstd(1), None);
    captures.iter().map(|capture| pack(capture).expect("a record")).collect()
}

fn write_file(captures: &[Capture], file: &Path) {
    let (mut writer, mut out) = (Writer::new(Form::Gzip), Vec::new());
    writer.warcinfo(0, &[("software", "a benchmark")], &mut out);
    for record in records(captures) {
        writer.page(&record, &Dictionaries::default(), &mut out).expect("a page");
    }
    fs::write(file, out).expect("a file");
}

impl Bench {
    fn import(&self, rounds: usize, work: Work, ways: &[&str]) {
        let mut samples = alternate(ways, rounds, |n| match ways[n] {
            "warcio reads" => self.warcio(READ, &[]),
            "gunzip" => timed(|| self.gunzip()).1,
            "SHA-1" => timed(|| assert!(self.captures.chunks(LOT).all(are_of_digests))).1,
            "webbase reads" => timed(|| assert_eq!(count(&self.file), work.pages)).1,
            "the store's add" => {
                let store = self.store("added");
                timed(|| self.captures.chunks(BATCH).for_each(|some| add(&*store, some))).1
            }
            way if way.starts_with("webbase imports") => {
                let store = self.store("imported");
                let repack = way.ends_with(REPACKED);
                timed(|| assert_eq!(self.import_into(&*store, repack), work.pages)).1
            }
            way => {
                let repository = Repository::start(&self.dir.join("posted"));
                timed(|| repository.post(&self.file, way.ends_with(REPACKED), work.pages)).1
            }
        });
        samples.extend(allowed(&samples));
        for baseline in ["warcio reads", "gunzip", "the store's add", ALLOWED] {
            print_table(&format!("Import, against: {baseline}"), &samples, baseline, work);
        }
    }

    fn export(&self, rounds: usize, work: Work) {
        let store = self.store("exported");
        self.captures.chunks(BATCH).for_each(|some| add(&*store, some));
        let all = format!("webbase exports, {} threads", self.threads);
        let names = ["warcio writes", "webbase exports, 1 thread", &all[..]];
        let samples = alternate(&names, rounds, |n| match n {
            0 => self.warcio(WRITE, &[self.dir.join("warcio.warc.gz")]),
            1 => timed(|| assert_eq!(self.export_from(&store, 1), work.pages)).1,
            _ => timed(|| assert_eq!(self.export_from(&store, self.threads), work.pages)).1,
        });
        print_table("Export", &samples, "warcio writes", work);
        for name in ["warcio.warc.gz", "exported.warc.gz"] {
            println!("\n{name}: {} bytes", fs::metadata(self.dir.join(name)).expect("a file").len());
        }
    }

    fn warcio(&self, script: &str, more: &[PathBuf]) -> Cost {
        let output = Command::new(&self.python).args(["-c", script]).arg(&self.file).args(more).output();
        let output = output.expect("python with warcio; .ci/clients installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<f64> = text.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        assert_eq!(numbers[0] as usize, self.captures.len());
        Cost { wall_s: numbers[1], cpu_s: numbers[2] }
    }

    fn gunzip(&self) {
        let mut decoder = flate2::read::MultiGzDecoder::new(File::open(&self.file).expect("a file"));
        let mut buffer = vec![0; 256 << 10];
        while decoder.read(&mut buffer).expect("gzip") > 0 {}
    }

    fn store(&self, name: &str) -> std::sync::Arc<dyn PageStore> {
        let dir = self.dir.join(name);
        // There is none in the first round.
        let _none = fs::remove_dir_all(&dir);
        create(&dir, Organization::Log, repository_key(), &Options::default()).expect("a store");
        open(&dir, &Options::default()).expect("a store")
    }

    /// Threads unpack and hash, one makes captures, and the store packs on all cores; while a batch is made durable the next one
    /// is packed.
    fn import_into(&self, store: &dyn PageStore, repack: bool) -> u64 {
        let (sender, batches) = sync_channel::<Vec<Capture>>(1);
        let batches = Mutex::new(batches);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut importer = Importer::new(Originals::new(128 << 20)).keeping_gzip(!repack);
                let mut batch = Vec::new();
                let file = File::open(&self.file).expect("a file");
                let (_, taken) = read_ahead(file, &mut importer, |capture| {
                    batch.push(capture);
                    if batch.len() < BATCH { Ok(()) } else { sender.send(std::mem::take(&mut batch)) }
                });
                taken.expect("somebody stores");
                sender.send(batch).expect("somebody stores");
            });
            let adding = || {
                let next = || batches.lock().expect("nobody panics").recv().ok();
                let added = |batch: Vec<Capture>| {
                    add(store, &batch);
                    batch.len() as u64
                };
                std::iter::from_fn(next).map(added).sum::<u64>()
            };
            let adders: Vec<_> = (0..ADDERS).map(|_| scope.spawn(adding)).collect();
            adders.into_iter().map(|adder| adder.join().expect("an adder")).sum()
        })
    }

    /// Batches are packed by threads, and written in their order.
    fn export_from(&self, store: &std::sync::Arc<dyn PageStore>, threads: usize) -> u64 {
        let mut out = File::create(self.dir.join("exported.warc.gz")).expect("a file");
        let stream = store.stream(&StreamSpec::default()).expect("a stream");
        let mut pages = 0;
        std::thread::scope(|scope| {
            let mut lanes = Vec::new();
            for _ in 0..threads {
                let (sender, work) = sync_channel::<Vec<Record>>(2);
                let (done, packed) = sync_channel::<Vec<u8>>(2);
                scope.spawn(move || {
                    let mut writer = Writer::new(Form::Gzip);
                    for records in work {
                        let mut out = Vec::new();
                        for record in &records {
                            writer.page(record, store.dictionaries(), &mut out).expect("a page");
                        }
                        done.send(out).expect("somebody writes");
                    }
                });
                lanes.push((sender, packed));
            }
            let (mut sent, mut written) = (0_usize, 0_usize);
            let mut batch = Vec::new();
            let mut take = |written: &mut usize, lanes: &[Lane]| {
                out.write_all(&lanes[*written % threads].1.recv().expect("a batch")).expect("a file");
                *written += 1;
            };
            for record in stream {
                batch.push(record.expect("a record"));
                pages += 1;
                if batch.len() == 16 {
                    lanes[sent % threads].0.send(std::mem::take(&mut batch)).expect("somebody packs");
                    sent += 1;
                    if sent - written > threads {
                        take(&mut written, &lanes);
                    }
                }
            }
            lanes[sent % threads].0.send(batch).expect("somebody packs");
            while written <= sent {
                take(&mut written, &lanes);
            }
        });
        out.sync_all().expect("a file");
        pages
    }
}

/// A repository to send files to.
struct Repository {
    embedded: Option<Embedded>,
    runtime: tokio::runtime::Runtime,
}

impl Repository {
    fn start(dir: &Path) -> Repository {
        // There is none in the first round.
        let _none = fs::remove_dir_all(dir);
        let runtime = runtime(2, "repository");
        let embedded = runtime.block_on(Embedded::start(Embedding::new(dir))).expect("a repository");
        Repository { embedded: Some(embedded), runtime }
    }

    fn post(&self, file: &Path, repack: bool, pages: u64) {
        let address = self.embedded.as_ref().expect("a running repository").http();
        let mut socket = TcpStream::connect(address).expect("a connection");
        let mut file = File::open(file).expect("a file");
        let len = file.metadata().expect("a file").len();
        let head = format!(
            "POST /pages?repack={repack} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/warc\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).expect("a connection");
        std::io::copy(&mut file, &mut socket).expect("a connection");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains(&format!("\"acknowledged\": {pages}")), "{answer}");
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        if let Some(embedded) = self.embedded.take() {
            self.runtime.block_on(embedded.shutdown()).expect("a good end");
        }
    }
}

type Lane = (std::sync::mpsc::SyncSender<Vec<Record>>, std::sync::mpsc::Receiver<Vec<u8>>);

/// Pages that are added, and made durable, at once.
const BATCH: usize = 100;
/// Batches that are being added.
const ADDERS: usize = 3;

fn add(store: &dyn PageStore, captures: &[Capture]) {
    let pages: Vec<Page<'_>> = captures.iter().map(Capture::page).collect();
    let added = store.add(&pages).expect("a store that takes pages");
    assert_eq!(added.new, pages.len() as u64);
    store.commit().expect("a store that commits");
}
