//! `webbase get`: one page.

use std::io::Write;

use anyhow::{Context, Result, bail};
use webbase_node::Cluster;
use webbase_storage::{PageId, Record};

use super::Repository;

/// Write one page to stdout, as it was received.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase get http://example.org/
  webbase get --headers 00abcdef01234567")]
pub(crate) struct Get {
    /// The page's URL, or its id of 16 hexadecimal digits.
    #[arg(value_name = "URL|ID")]
    page: String,
    /// Write the HTTP head before the body.
    #[arg(long)]
    headers: bool,
    #[command(flatten)]
    repository: Repository,
}

impl Get {
    pub(crate) async fn run(self) -> Result<()> {
        let cluster = self.repository.connect().await?;
        let records = find(&cluster, &self.page).await?;
        if records.is_empty() {
            bail!("{} is not in the repository", self.page);
        }
        let mut out = std::io::stdout().lock();
        for record in records {
            if self.headers {
                out.write_all(&record.head(cluster.dictionaries())?).context("cannot write to stdout")?;
            }
            out.write_all(&record.body(cluster.dictionaries())?).context("cannot write to stdout")?;
        }
        out.flush().context("cannot write to stdout")
    }
}

async fn find(cluster: &Cluster, page: &str) -> Result<Vec<Record>> {
    Ok(match page.parse::<PageId>() {
        Ok(id) => cluster.lookup_id(id).await?.pages,
        Err(_) => cluster.lookup_url(page).await?.pages.into_iter().collect(),
    })
}
