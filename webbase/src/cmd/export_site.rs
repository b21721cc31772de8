//! `webbase export-site`: metadata of one's own site, for crawlers that read only what changed.

use std::path::PathBuf;

use anyhow::{Context, Result};
use webbase_crawler::site_metadata::export_site;

/// Describe the site in a folder for crawlers: metadata archives, sitemaps, and the lines of robots.txt that name them.
///
/// Writes metadata/, sitemap.xml (and sitemap-N.xml.gz for large sites) and robots.txt into the folder; other lines of
/// robots.txt stay as they are. Run it again whenever the site has changed, once a day for instance.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase export-site /var/www/html --base https://example.org/")]
pub(crate) struct ExportSite {
    /// The folder that the web server serves.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Where it is on the web.
    #[arg(long, value_name = "URL")]
    base: String,
}

impl ExportSite {
    pub(crate) fn run(self) -> Result<()> {
        let done = export_site(&self.folder, &self.base)
            .with_context(|| format!("cannot export {}", self.folder.display()))?;
        for skipped in &done.skipped {
            eprintln!("left out {skipped}");
        }
        println!(
            "{} pages in {} archives ({} bytes) and {} sitemaps",
            done.pages, done.archives, done.archive_bytes, done.sitemaps
        );
        Ok(())
    }
}
