//! `kill -9` of `webbase up` at many moments of an import, of a cycle and of a stream: what a command said was done is there afterwards, byte
//! for byte, and nothing else than what was imported. What was cut off is done again, and then it is all there.
//!
//! The moments are spread over the time that the work takes without a kill; where exactly a kill hits is up to the machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "support/up.rs"]
mod up;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use webbase_stream::warc::{Form, Writer};
use webbase_web_in_a_box::Random;

use up::{Up, done, program};

const SEED: u64 = 20_261_117;
const FILES: u64 = 8;
const PAGES: u64 = 250;
const WORDS: u64 = 900;

/// One file of the set: where it is, and its pages.
struct File {
    path: PathBuf,
    pages: BTreeMap<String, String>,
}

fn set(folder: &Path) -> Vec<File> {
    let mut random = Random::new(SEED);
    let mut file = |number: u64| {
        let (mut writer, mut bytes, mut pages) = (Writer::new(Form::Gzip), Vec::new(), BTreeMap::new());
        for page in 0..PAGES {
            let url = format!("http://site-{}.example/{number}/{page}", page % 17);
            let words = (0..1 + random.below(WORDS)).map(|_| format!("word{} ", random.below(5000)));
            let body = format!("<title>{page}</title>{}", words.collect::<String>());
            writer.resource(&url, 1_770_000_000_000 + page, "text/html", body.as_bytes(), &mut bytes);
            pages.insert(url, body);
        }
        let path = folder.join(format!("set-{number}.warc.gz"));
        std::fs::write(&path, bytes).unwrap();
        File { path, pages }
    };
    (0..FILES).map(&mut file).collect()
}

/// All pages that readers see.
fn read(up: &Up) -> BTreeMap<String, String> {
    let lines = done(&["stream", "--format", "jsonl", "--server", &up.server]);
    let pages = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    pages
        .filter_map(|page| Some((page["url"].as_str()?.to_owned(), page["body"].as_str()?.to_owned())))
        .collect()
}

/// Runs a command against a server that is killed after a time; whether the command said that it was done.
fn cut_off(up: Up, args: &[&str], after: Duration) -> bool {
    let mut command = program(args);
    command.args(["--server", &up.server]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while began.elapsed() < after && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    up.kill();
    child.wait().unwrap().success()
}

/// Checks what readers see after a cycle: everything that was acknowledged, and nothing that is not in the set.
#[track_caller]
fn check(up: &Up, files: &[File]) {
    done(&["cycle", "--server", &up.server]);
    let mut there = read(up);
    for (url, body) in files.iter().flat_map(|file| &file.pages) {
        assert_eq!(there.remove(url).as_ref(), Some(body), "{url} was acknowledged");
    }
    assert_eq!(there, BTreeMap::new(), "these were never imported");
}

fn time(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

#[test]
fn nothing_acknowledged_is_lost_wherever_a_kill_hits() {
    println!("seed {SEED}");
    let folder = tempfile::tempdir().unwrap();
    let files = set(folder.path());
    let path = |file: &File| file.path.to_str().unwrap().to_owned();
    // How long things take without a kill.
    let calm = Up::start(&folder.path().join("calm"), &[]);
    let import = time(|| {
        done(&["import", "--no-cycle", &path(&files[0]), "--server", &calm.server]);
    });
    let cycle = time(|| {
        done(&["cycle", "--server", &calm.server]);
    });
    drop(calm);

    let dir = folder.path().join("data");
    let mut cut = 0;
    for (number, file) in files.iter().enumerate() {
        // A little further into the import with each file; what was cut off is done again, from the beginning.
        let after = import * number as u32 / (FILES as u32 - 2);
        let args = ["import", "--no-cycle", &path(file)];
        if !cut_off(Up::start(&dir, &[]), &args, after) {
            cut += 1;
            let up = Up::start(&dir, &[]);
            done(&[&args[..], &["--server", &up.server]].concat());
            up.kill(); // as soon as it was acknowledged
        }
    }
    // Into the cycle that makes all of it visible. No more than one: after a start old generations are held for a minute, and cycles wait.
    cut += u32::from(!cut_off(Up::start(&dir, &[]), &["cycle"], cycle / 2));
    let up = Up::start(&dir, &[]);
    check(&up, &files);
    up.kill();
    assert!(cut > 0, "every command was done before its kill");
    // And into a stream: it ends with an error, not as if that were all.
    let up = Up::start(&dir, &[]);
    let whole = cut_off(up, &["stream", "--format", "jsonl"], Duration::from_millis(30));
    println!("{cut} commands were cut off; the stream was {}", if whole { "faster" } else { "cut off" });
    let up = Up::start(&dir, &[]);
    assert_eq!(read(&up).len() as u64, FILES * PAGES);
}
