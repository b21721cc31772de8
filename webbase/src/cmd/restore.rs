//! `webbase restore`: a backup into a repository.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use webbase_storage::{Options, Page, PageStore, Record, StreamSpec};

use super::backup::{MARK, PAGES};
use super::progress::Progress;
use crate::client::Server;

/// Pages that are added at once.
const BATCH: usize = 500;
/// Or bytes.
const BATCH_BYTES: usize = 16 << 20;

/// Add the pages of a backup to a repository, and run a cycle.
///
/// Checks every page of the backup before the first one is added. Pages that are newer in the repository stay as they are, so that
/// it can be run again after it was interrupted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase restore /backup/monday
  webbase restore /backup/monday --check        only look whether it could be restored")]
pub(crate) struct Restore {
    /// The folder that `webbase backup` made.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Check the backup, and restore nothing.
    #[arg(long)]
    check: bool,
    /// Leave the cycle, which makes the pages visible, to somebody else.
    #[arg(long)]
    no_cycle: bool,
    /// What was done, as JSON on stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Restore {
    pub(crate) async fn run(self) -> Result<()> {
        let dir = self.dir.display().to_string();
        let mark = std::fs::read_to_string(self.dir.join(MARK))
            .with_context(|| format!("{dir} is no whole backup: it has no {MARK}"))?;
        let mark: Value = serde_json::from_str(&mark).with_context(|| format!("{dir}: {MARK} is damaged"))?;
        let field = |name: &str| mark.get(name).and_then(Value::as_u64);
        ensure!(
            field("webbase_backup") == Some(1),
            "{dir} is of a version of webbase that this one does not know"
        );
        let opening = webbase_storage::open(&self.dir.join(PAGES), &Options::default());
        let store = opening.with_context(|| format!("the backup in {dir} cannot be opened"))?;
        let checked = store.verify().with_context(|| format!("the backup in {dir} cannot be read"))?;
        if let Some(damage) = checked.damage.first() {
            let count = checked.damage.len();
            anyhow::bail!("the backup is damaged in {count} places, the first is {damage}");
        }
        let pages = store.stats().pages;
        let expected = field("pages").unwrap_or(0);
        ensure!(expected == pages, "the backup has {pages} pages, and should have {expected}");
        eprintln!("{dir}: {pages} pages, all of them whole");
        let mut made = None;
        if !self.check {
            self.add(&*store, pages).await?;
            if !self.no_cycle {
                let generation = super::cycle::run(&self.server.connect().await?).await;
                made = Some(generation.context("the pages are added, but not visible yet")?);
            }
        }
        if self.json {
            println!("{}", json!({"pages": pages, "generation": made}));
        }
        Ok(())
    }

    async fn add(&self, store: &dyn PageStore, pages: u64) -> Result<()> {
        let cluster = self.server.cluster().await?;
        let mut progress = Progress::new("restore", Some(pages));
        let mut stream = store.stream(&StreamSpec::default())?;
        let (mut done, mut bytes) = (0_u64, 0_u64);
        loop {
            let (mut batch, mut batch_bytes): (Vec<Record>, usize) = (Vec::new(), 0);
            while batch.len() < BATCH && batch_bytes < BATCH_BYTES {
                let Some(record) = stream.next() else { break };
                let record = record?.unpacked(store.dictionaries())?;
                batch_bytes += record.bytes().len();
                batch.push(record);
            }
            if batch.is_empty() {
                break;
            }
            let mut unpacked = Vec::with_capacity(batch.len());
            for record in &batch {
                unpacked.push((record.head(store.dictionaries())?, record.body(store.dictionaries())?));
            }
            let pages: Vec<Page<'_>> = batch.iter().zip(&unpacked).map(page).collect();
            let added = cluster.add(&pages).await.context("the pages are not taken")?.all()?;
            (done, bytes) = (done + added, bytes + batch_bytes as u64);
            progress.at(done, bytes);
        }
        progress.done(done, bytes);
        Ok(())
    }
}

fn page<'a>((record, (head, body)): (&'a Record, &'a (bytes::Bytes, bytes::Bytes))) -> Page<'a> {
    let record = record.get();
    Page {
        url: record.url(),
        fetched_at_ms: record.fetched_at_ms(),
        modified_at_ms: record.modified_at_ms(),
        status: record.status(),
        mime: record.mime(),
        head,
        body,
        lifetime_s: record.lifetime_s(),
        payload_digest: record.payload_digest(),
        ..Page::default()
    }
}
