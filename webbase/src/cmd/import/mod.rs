//! `webbase import`: WARC files, or folders of pages, into a repository.

mod files;
mod send;
mod summary;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use reqwest::Url;
use serde_json::{Value, json};

use self::files::Input;
use self::summary::Summary;
use super::bytes_progress::Progress;
use super::cycle;
use crate::client::Server;
use crate::exit::Failure;

/// Import WARC files, or folders of them, or of pages.
///
/// WARC and ARC files may be plain, .gz or .zst. Of several captures of a URL the newest is kept. Ends with a cycle, so that
/// readers see the pages; the new generation's number goes to stdout, messages to stderr. What is damaged is passed over and
/// named with its place in the file.
///
/// Exit code 0: everything that was read is durable (and, unless --no-cycle is given, visible). 1: it is not. 3: it is, but
/// some of the input was damaged or not taken.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase import crawl.warc.gz
  webbase import --no-cycle /crawls/2026-11/
  webbase import --repack /crawls/*.warc.gz
  webbase import --base https://docs.example.org/ ./site/
  webbase import --json *.warc.zst > report.json")]
pub(crate) struct Import {
    /// WARC files, or folders: every .warc*, .arc* below, or, with --base, every file.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The folders hold pages as files, which were at this URL.
    #[arg(long, value_name = "URL")]
    base: Option<Url>,
    /// Pack the bodies of gzipped files anew, instead of keeping them as they are packed: half as fast, a fifth smaller on disk.
    #[arg(long)]
    repack: bool,
    /// Run no cycle: the pages stay invisible until the next one.
    #[arg(long)]
    no_cycle: bool,
    /// Write a report as JSON to stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Import {
    pub(crate) async fn run(self) -> Result<()> {
        let inputs = files::find(&self.paths, self.base.as_ref())?;
        let repository = self.server.connect().await?;
        let progress = Progress::new(inputs.iter().map(Input::bytes).sum());
        let mut summary = Summary::default();
        for input in &inputs {
            let name = input.name();
            progress.begin(&name);
            let answer = send::send(&repository, input, self.repack, &progress).await;
            let report = answer.with_context(|| format!("{name} is not imported"))?;
            for line in summary.add(&name, report) {
                progress.say(&line);
            }
        }
        progress.end();
        eprintln!("{}", summary.text());
        let generation = match self.no_cycle || summary.number("acknowledged") == 0 {
            true => None,
            false => Some(
                cycle::run(&repository)
                    .await
                    .context("the pages are durable, but there is no new generation")?,
            ),
        };
        match (self.json, generation) {
            (true, generation) => println!("{:#}", report(&summary, generation)),
            (false, Some(generation)) => println!("{generation}"),
            (false, None) => {}
        }
        if let Some(what) = summary.incomplete() {
            bail!(Failure::Damaged(what));
        }
        Ok(())
    }
}

fn report(summary: &Summary, generation: Option<u64>) -> Value {
    json!({"files": summary.files(), "total": summary.total(), "generation": generation})
}
