//! `GET /page` by wrk, against nginx serving the same bodies as files: requests a second and CPU time a request.
//!
//! `http [--corpus FILE] [--pages N] [--rounds N] [--seconds N] [--connections N] [--dir DIR] [--only plain,packed]`; `nginx.sh` installs
//! nginx and wrk and runs it. Everybody shares this machine's cores with wrk. nginx has as many workers as there are cores, sendfile
//! and a cache of open files; webbase is the program's embedded repository. In each round every contestant has its turn. The pages fit
//! into memory: a store's own cache has 64 MiB, and pages that are asked for in a circle have no use for one that is too small.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use webbase::embedded::{Embedded, Options};
use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::runtime;
use webbase_benches::corpus::{Corpus, CorpusPage, shuffled};
use webbase_benches::measure::{Work, median, print_setting};
use webbase_storage::{Compression, Page};

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Asks for the paths of a file, one after the other, each thread from another place on.
const SCRIPT: &str = r#"
local threads = 0
function setup(thread) thread:set("first", threads * 7919); threads = threads + 1 end
function init(args)
    requests, at = {}, first
    for path in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", path) end
end
function request()
    at = at + 1
    return requests[at % #requests + 1]
end
"#;

/// Pages that are added at once.
const BATCH_PAGES: usize = 200;

fn main() {
    let arguments = Arguments::from_env();
    let corpus = PathBuf::from(arguments.value("--corpus").unwrap_or("benches/work/pages.corpus"));
    let rounds = arguments.number("--rounds", 5);
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/http"));
    let _none = fs::remove_dir_all(&dir); // not there the first time
    fs::create_dir_all(&dir).expect("a folder");
    let dir = dir.canonicalize().expect("a folder");
    let corpus =
        Corpus::read(&corpus, arguments.number("--pages", 1000)).expect("benches/corpus.sh makes it");
    let work = Work { pages: corpus.pages.len() as u64, bytes: corpus.len_bytes() };
    print_setting(work, rounds);
    let wrk = Wrk {
        script: dir.join("paths.lua"),
        seconds: arguments.number("--seconds", 5),
        connections: arguments.number("--connections", 64),
    };
    fs::write(&wrk.script, SCRIPT).expect("a file");

    let mut servers: Vec<Box<dyn Server>> = vec![Box::new(Nginx::start(&dir.join("files"), &corpus.pages))];
    for (short, name, compression) in [
        ("plain", "webbase, stored as they are", Compression::None),
        ("packed", "webbase, unpacked", Compression::default()),
    ] {
        if arguments.lists("--only", short) {
            servers.push(Box::new(Webbase::start(name, &dir, compression, &corpus.pages)));
        }
    }
    let mut measured: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for n in shuffled(servers.len(), round as u64) {
            let one = wrk.run(&*servers[n]);
            eprintln!(
                "  round {round} {:30} {:9.0} requests/s {:6.1} µs",
                servers[n].name(),
                one.rate,
                one.cpu_us
            );
            if round > 0 {
                measured[n].push(one);
            }
        }
    }
    println!(
        "\n| server | requests/s | min – max | of nginx | CPU µs a request | of nginx's |\n|---|---:|---:|---:|---:|---:|"
    );
    for (server, rows) in servers.iter().zip(&measured) {
        let middle = |of: &dyn Fn(&Measured, &Measured) -> f64| {
            median(rows.iter().zip(&measured[0]).map(|(own, nginx)| of(own, nginx)))
        };
        let (least, most) = rows.iter().fold((f64::MAX, 0_f64), |(a, b), m| (a.min(m.rate), b.max(m.rate)));
        println!(
            "| {} | {:.0} | {least:.0} – {most:.0} | {:.2} | {:.1} | {:.2} |",
            server.name(),
            middle(&|own, _| own.rate),
            middle(&|own, nginx| own.rate / nginx.rate),
            middle(&|own, _| own.cpu_us),
            middle(&|own, nginx| own.cpu_us / nginx.cpu_us),
        );
    }
    drop(servers);
    let _left = fs::remove_dir_all(&dir); // the next run removes it
}

/// One turn of a contestant.
struct Measured {
    rate: f64,
    cpu_us: f64,
}

trait Server {
    fn name(&self) -> &str;
    fn address(&self) -> String;
    /// A file with a path a line.
    fn paths(&self) -> &Path;
    /// Seconds of CPU that it has used.
    fn cpu_s(&self) -> f64;
}

struct Wrk {
    script: PathBuf,
    seconds: usize,
    connections: usize,
}

impl Wrk {
    fn run(&self, server: &dyn Server) -> Measured {
        let before = server.cpu_s();
        let output = Command::new("wrk")
            .args(["-t", "2", "-c", &self.connections.to_string(), "-d", &format!("{}s", self.seconds), "-s"])
            .arg(&self.script)
            .arg(format!("http://{}", server.address()))
            .arg("--")
            .arg(server.paths())
            .output();
        let used = server.cpu_s() - before;
        let output = output.expect("wrk; benches/nginx.sh installs it");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next()).expect("a figure of wrk");
            word.parse::<f64>().expect("a number")
        };
        let requests = text.lines().find(|line| line.contains(" requests in ")).expect("wrk counts");
        let requests: f64 =
            requests.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
        Measured { rate: number("Requests/sec:"), cpu_us: used * 1e6 / requests }
    }
}

struct Nginx {
    address: String,
    paths: PathBuf,
    process: Child,
}

impl Nginx {
    fn start(dir: &Path, pages: &[CorpusPage]) -> Nginx {
        fs::create_dir_all(dir.join("logs")).expect("a folder");
        let paths = dir.join("paths");
        let mut list = fs::File::create(&paths).expect("a file");
        for (n, page) in pages.iter().enumerate() {
            fs::write(dir.join(format!("{n}.html")), page.body).expect("a file");
            writeln!(list, "/{n}.html").expect("a file");
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let root = dir.display();
        let settings = format!(
            "daemon off; user root; worker_processes auto; pid {root}/pid; error_log {root}/logs/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;\n\
             types {{ text/html html; }} open_file_cache max=100000 inactive=1h;\n\
             server {{ listen {address} reuseport; root {root}; }} }}\n"
        );
        fs::write(dir.join("nginx.conf"), settings).expect("a file");
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).stderr(Stdio::null());
        let process = nginx.spawn().expect("nginx; benches/nginx.sh installs it");
        let until = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < until, "nginx does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Nginx { address, paths, process }
    }
}

impl Server for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn paths(&self) -> &Path {
        &self.paths
    }

    fn cpu_s(&self) -> f64 {
        let id = self.process.id();
        let workers = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        workers.split_whitespace().map(|worker| cpu_s(&format!("/proc/{worker}/stat"))).sum()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, so that it ends its workers.
        let _gone = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ended = self.process.wait();
    }
}

/// User and system time of a process, in seconds; the clock of these files ticks a hundred times a second.
fn cpu_s(stat: &str) -> f64 {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let behind_name = text.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

struct Webbase {
    name: &'static str,
    paths: PathBuf,
    embedded: Option<Embedded>,
    runtime: tokio::runtime::Runtime,
}

impl Webbase {
    fn start(name: &'static str, dir: &Path, compression: Compression, pages: &[CorpusPage]) -> Webbase {
        let folder = dir.join(name.replace([' ', ','], "-"));
        fs::create_dir_all(&folder).expect("a folder");
        let paths = folder.join("paths");
        let list: Vec<String> =
            pages.iter().map(|page| format!("/page?url={}\n", encoded(page.url))).collect();
        fs::write(&paths, list.concat()).expect("a file");
        let runtime = runtime(std::thread::available_parallelism().map_or(2, usize::from), "webbase");
        let mut options = Options::new(folder.join("repository"));
        options.compression = compression;
        let embedded = runtime.block_on(async {
            let embedded = Embedded::start(options).await.expect("a repository");
            for some in pages.chunks(BATCH_PAGES) {
                let some: Vec<Page<'_>> = some.iter().map(page).collect();
                let added = embedded.cluster().add(&some).await.expect("pages are taken");
                assert_eq!(added.all().expect("all of them"), some.len() as u64);
            }
            embedded.cluster().cycle(|_| {}).await.expect("a cycle");
            embedded
        });
        Webbase { name, paths, embedded: Some(embedded), runtime }
    }
}

fn page<'a>(page: &CorpusPage) -> Page<'a> {
    Page {
        url: page.url,
        head: page.head,
        body: page.body,
        fetched_at_ms: page.fetched_at_ms,
        mime: "text/html",
        ..Page::default()
    }
}

fn encoded(url: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let mut out = String::new();
    for byte in url.bytes() {
        match plain(byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Server for Webbase {
    fn name(&self) -> &str {
        self.name
    }

    fn address(&self) -> String {
        self.embedded.as_ref().expect("a running repository").http().to_string()
    }

    fn paths(&self) -> &Path {
        &self.paths
    }

    fn cpu_s(&self) -> f64 {
        cpu_s("/proc/self/stat")
    }
}

impl Drop for Webbase {
    fn drop(&mut self) {
        if let Some(embedded) = self.embedded.take() {
            self.runtime.block_on(embedded.shutdown()).expect("a good end");
        }
    }
}
