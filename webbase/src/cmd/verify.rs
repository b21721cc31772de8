//! `webbase verify` and `webbase repair`: is what lies on this disk whole, and if not, keep what is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use webbase_storage::{Options, Verified};

use super::bytes_progress::Progress;
use crate::exit::Failure;

/// How deep stores lie under a folder: that of `webbase up` has nodes, a node has stores.
const DEPTH: usize = 3;
/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(50);
/// Damaged places that are listed.
const LISTED: usize = 20;

/// Read every page of a node, a store, a backup or a whole folder of `webbase up`, and list what is damaged.
///
/// The node has to be stopped; one that runs checks itself all the time (`webbase node --scrub`), and `webbase status` has what it
/// found. Exit code 0: all is whole; 3: something is damaged.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase verify webbase-data
  webbase verify --json /srv/r1")]
pub(crate) struct Verify {
    /// The folder.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// As JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Drop what is damaged in the stores of a node that is stopped, and keep what is good.
///
/// Where there are replicas nothing needs it: a node gets damaged pages back from the others by itself. Exit code 0: everything that
/// is left is whole; 3: it is not.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase verify /srv/r1 || webbase repair /srv/r1")]
pub(crate) struct Repair {
    /// The folder.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// As JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) async fn run(self) -> Result<()> {
        let (all, damage) = each(&self.dir, "checked", |store| store.verify())?;
        tell(&all, self.json);
        match damage {
            0 => Ok(()),
            count => {
                let text =
                    format!("{count} places are damaged; with replicas the node repairs them when it runs");
                Err(Failure::Damaged(text).into())
            }
        }
    }
}

impl Repair {
    pub(crate) async fn run(self) -> Result<()> {
        let (all, dropped) = each(&self.dir, "repaired", |store| store.repair())?;
        tell(&all, self.json);
        let (_, left) = each(&self.dir, "checked", |store| store.verify())?;
        if left > 0 {
            return Err(Failure::Damaged(format!("{left} places are still damaged")).into());
        }
        eprintln!("{dropped} damaged places were dropped; what is left is whole");
        Ok(())
    }
}

type Store = dyn webbase_storage::PageStore;

fn each(
    dir: &Path,
    done: &str,
    work: impl Fn(&Store) -> webbase_storage::Result<Verified> + Sync,
) -> Result<(Vec<Value>, usize)> {
    ensure!(dir.is_dir(), "{} is no folder", dir.display());
    let mut stores = Vec::new();
    find(dir, DEPTH, &mut stores)?;
    if stores.is_empty() {
        bail!("there are no stores in {}", dir.display());
    }
    let (mut all, mut damage) = (Vec::new(), 0);
    for path in stores {
        let shown = path.display().to_string();
        let options = Options::default();
        let opening = webbase_storage::open(&path, &options);
        let store = opening
            .with_context(|| format!("{shown} cannot be opened; a node that runs has to be stopped"))?;
        let progress = Progress::new(store.stats().used_bytes);
        progress.begin(&shown);
        let found = watched(&options.checked_bytes, &progress, || work(&*store));
        let found = found.with_context(|| format!("{shown} cannot be read"))?;
        store.close().with_context(|| format!("{shown} cannot be closed"))?;
        progress.end();
        eprintln!(
            "{done} {shown}: {} records, {}, {} places damaged",
            found.good_records,
            HumanBytes(found.checked_bytes),
            found.damage.len()
        );
        damage += found.damage.len();
        all.push(json!({
            "store": shown,
            "good_records": found.good_records,
            "checked_bytes": found.checked_bytes,
            "damaged": found.damage.len(),
            "damage": found.damage.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>(),
        }));
    }
    Ok((all, damage))
}

/// Does the work, and shows how many bytes it has come through meanwhile.
fn watched<T: Send>(checked: &AtomicU64, progress: &Progress, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        let mut before = 0;
        while !working.is_finished() {
            std::thread::sleep(LOOK);
            let now = checked.load(Ordering::Relaxed);
            progress.done(now - before);
            before = now;
        }
        working.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

fn tell(all: &[Value], as_json: bool) {
    if as_json {
        println!("{:#}", Value::from(all.to_vec()));
        return;
    }
    for place in all.iter().filter_map(|store| store.get("damage")?.as_array()).flatten() {
        println!("{}", place.as_str().unwrap_or_default());
    }
}

/// A store is where `open` would look for one.
fn find(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) -> Result<()> {
    if dir.join("STORE").is_file() || dir.join("STORE.copy").is_file() {
        out.push(dir.to_owned());
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders.iter().try_for_each(|folder| find(folder, depth - 1, out))
}
