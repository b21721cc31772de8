//! `webbase backup`: everything readers see now, in a folder.
//!
//! ```text
//!   DIR/pages/       a store (organization log) with the records as they are in the repository
//!   DIR/BACKUP.json  written last: generation, pages, bytes. Without it the backup is not whole
//! ```
//!
//! The pages are those of one generation, which is held while it is copied, so that readers, adds and cycles go on and nothing of
//! them gets in. Each record is checked when it comes and when it is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use webbase::coverage::Coverage;
use webbase_node::Cluster;
use webbase_storage::{Options, Organization, PageStore, Record};

use super::progress::Progress;
use crate::client::Server;

/// What says that a backup is whole.
pub(super) const MARK: &str = "BACKUP.json";
/// The store.
pub(super) const PAGES: &str = "pages";
/// Records are written when there are so many bytes of them.
const BATCH_BYTES: usize = 8 << 20;

/// Copy all pages that readers see into a folder, while the repository serves.
///
/// What was added since the last cycle is not among them. Ends with exit code 0 only when every page is in the folder and durable
/// there; a folder that a kill has left half made is refused by `webbase restore`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase backup /backup/monday
  webbase cycle && webbase backup /backup/monday --server http://10.0.0.1:7700")]
pub(crate) struct Backup {
    /// The folder to make.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// What was copied, as JSON on stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Backup {
    pub(crate) async fn run(self) -> Result<()> {
        let dir = self.dir.display().to_string();
        if std::fs::read_dir(&self.dir).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{dir} is not empty: a backup is made in a folder of its own");
        }
        let cluster = self.server.cluster().await?;
        let pages = self.dir.join(PAGES);
        std::fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {dir}"))?;
        let options = Options { train_dictionary: false, ..Options::default() };
        let key = cluster.repository().repository_key();
        let store = webbase_storage::create(&pages, Organization::Log, key, &options)
            .and_then(|()| webbase_storage::open(&pages, &options))
            .with_context(|| format!("cannot make a store in {dir}"))?;
        let told = copy(&cluster, store, &self.dir).await?;
        if self.json {
            println!("{told}");
        }
        Ok(())
    }
}

async fn copy(cluster: &Cluster, store: Arc<dyn PageStore>, dir: &Path) -> Result<Value> {
    let total = match cluster.status().await {
        Ok(status) => Coverage::of(cluster).await.ok().and_then(|coverage| coverage.pages(&status)),
        Err(_) => None,
    };
    let mut progress = Progress::new("backup", total);
    let mut stream = cluster.stream().await.context("the pages cannot be streamed")?;
    let generation = stream.generation();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    let (mut pages, mut bytes) = (0_u64, 0_u64);
    while let Some(record) = stream.next().await {
        let record = record.context("the backup is not whole: a page cannot be read")?;
        batch_bytes += record.bytes().len();
        (pages, bytes) = (pages + 1, bytes + record.bytes().len() as u64);
        let digest = record.get().dictionary();
        if digest != 0 && store.dictionaries().get(digest).is_none() {
            let known = cluster.dictionaries().get(digest);
            let known = known.with_context(|| format!("dictionary {digest:016x} is nowhere"))?;
            store.add_dictionary(known.content())?;
        }
        batch.push(record);
        if batch_bytes >= BATCH_BYTES {
            write(&store, std::mem::take(&mut batch)).await?;
            batch_bytes = 0;
        }
        progress.at(pages, bytes);
    }
    write(&store, batch).await?;
    let written = store.stats().pages;
    ensure!(written == pages, "{pages} pages came, but {written} are in the backup");
    store.close().context("the backup's store cannot be closed")?;
    let told = json!({"webbase_backup": 1, "generation": generation, "pages": pages, "bytes": bytes});
    mark(dir, &told)?;
    progress.done(pages, bytes);
    Ok(told)
}

async fn write(store: &Arc<dyn PageStore>, records: Vec<Record>) -> Result<()> {
    let store = store.clone();
    let writing =
        tokio::task::spawn_blocking(move || store.add_records(&records).and_then(|_| store.commit()));
    writing.await.context("the writer was cut off")?.context("the backup cannot be written")
}

/// Says durably that it is whole.
fn mark(dir: &Path, told: &Value) -> Result<()> {
    let path = dir.join(MARK);
    let written = std::fs::write(&path, format!("{told:#}\n"))
        .and_then(|()| std::fs::File::open(&path)?.sync_all())
        .and_then(|()| std::fs::File::open(dir)?.sync_all());
    written.with_context(|| format!("cannot write {}", path.display()))
}
