//! `webbase stream`: pages of the current generation, or of those there are now.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Response;
use serde_json::Value;

use super::stream_warc::Watch;
use crate::client::Server;

/// Go through pages: all, or those that are asked for, of the current generation (with incremental update: as they are now).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase stream > pages.warc.gz
  webbase stream --format count --domain edu
  webbase stream --format jsonl --mime text/html --since 2026-01-01 > pages.jsonl
  webbase stream --format jsonl --order url --cursor place.txt >> pages.jsonl    run it again to go on
  webbase stream --format jsonl --part 1/4 > quarter.jsonl

Conditions of different kinds must all hold; of one that is repeated, one is enough. What orders cost: store is a sequential
read. id, fetched, modified, importance and url are sorted by the nodes first (within 64 MiB of memory each, beyond that on
their disks), then read page by page; stores of the organizations hash and hashed-log are in id order already.")]
pub(crate) struct Stream {
    /// warc: WARC/1.1, a gzip member for each page; jsonl: a line of JSON for each page; count: only how many pages and bytes
    /// there are.
    #[arg(long, value_name = "FORMAT", value_parser = ["warc", "jsonl", "count"], default_value = "warc")]
    format: String,
    /// Only pages of this domain and those in it.
    #[arg(long, value_name = "NAME")]
    domain: Vec<String>,
    /// Only pages of this host.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Only pages whose URL begins so.
    #[arg(long, value_name = "URL")]
    prefix: Vec<String>,
    /// Only pages of this MIME type; `text/*` means all that begin so.
    #[arg(long, value_name = "TYPE")]
    mime: Vec<String>,
    /// Only pages with this HTTP status: 200, 400-499 or 4xx.
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
    /// Only pages fetched at this time or later, such as 2026-01-31 or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only pages fetched before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only pages known to have changed at this time or later.
    #[arg(long, value_name = "TIME")]
    modified_since: Option<String>,
    /// Only pages known to have changed last before this time.
    #[arg(long, value_name = "TIME")]
    modified_until: Option<String>,
    /// Only pages whose body has at least so many bytes.
    #[arg(long, value_name = "BYTES")]
    min_size: Option<u64>,
    /// Only pages whose body has at most so many bytes.
    #[arg(long, value_name = "BYTES")]
    max_size: Option<u64>,
    /// Only pages known to be at least so important.
    #[arg(long, value_name = "NUMBER")]
    min_importance: Option<f32>,
    /// One in so many pages, always the same ones.
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// One of N equal parts, from 1: N workers that take one each get every page once.
    #[arg(long, value_name = "I/N")]
    part: Option<String>,
    /// In which order.
    #[arg(long, value_name = "ORDER", value_parser = ["store", "id", "fetched", "modified", "importance", "url"])]
    order: Option<String>,
    /// What of each page: everything, without-body or body-only.
    #[arg(long, value_name = "WHAT", value_parser = ["everything", "without-body", "body-only"])]
    what: Option<String>,
    /// Share scans of the disks with other streams; begins wherever a scan is.
    #[arg(long)]
    shared: bool,
    /// End after so many pages.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Keep the place in this file; if it is there, go on behind it.
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
    /// When the generation of the cursor is gone, go on in the current one: pages may be newer, none is skipped.
    #[arg(long, requires = "cursor")]
    go_on: bool,
    #[command(flatten)]
    server: Server,
}

impl Stream {
    fn parameters(&self) -> Result<Vec<(&'static str, String)>> {
        let mut all = vec![("format", self.format.clone())];
        let lists = [
            ("domain", &self.domain),
            ("host", &self.host),
            ("prefix", &self.prefix),
            ("mime", &self.mime),
            ("status", &self.status),
        ];
        all.extend(
            lists.into_iter().flat_map(|(name, values)| values.iter().map(move |v| (name, v.clone()))),
        );
        let text = |number: Option<u64>| number.map(|number| number.to_string());
        let single = [
            ("since", self.since.clone()),
            ("until", self.until.clone()),
            ("modified_since", self.modified_since.clone()),
            ("modified_until", self.modified_until.clone()),
            ("min_size", text(self.min_size)),
            ("max_size", text(self.max_size)),
            ("min_importance", self.min_importance.map(|least| least.to_string())),
            ("sample", text(self.sample)),
            ("part", self.part.clone()),
            ("order", self.order.clone()),
            ("what", self.what.clone()),
            ("shared", self.shared.then(|| "1".to_owned())),
            ("limit", text(self.limit)),
            ("go_on", self.go_on.then(|| "1".to_owned())),
        ];
        all.extend(single.into_iter().filter_map(|(name, value)| Some((name, value?))));
        if let Some(path) = &self.cursor {
            match std::fs::read_to_string(path) {
                Ok(cursor) => all.push(("cursor", cursor.trim().to_owned())),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
            }
        }
        Ok(all)
    }

    pub(crate) async fn run(self) -> Result<()> {
        let parameters = self.parameters()?;
        let parameters: Vec<(&str, &str)> = parameters.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let repository = self.server.connect().await?;
        let request = repository.get("/stream", &parameters);
        if self.format == "count" {
            ensure!(self.cursor.is_none(), "a count has no place to go on from: leave --cursor out");
            return count(&repository.json(request).await?);
        }
        let mut answer =
            repository.ask(request).await.map_err(|e| match self.cursor.is_some() && !self.go_on {
                true => e.context("cannot go on; --go-on goes on in the current generation if that is why"),
                false => e,
            })?;
        if self.format == "warc" {
            return warc(answer, self.cursor).await;
        }
        let mut lines =
            Lines { cursor: self.cursor, left: Vec::new(), progress: Progress::new(), ended: false };
        let mut out = std::io::stdout().lock();
        while let Some(piece) = answer.chunk().await.context("the stream was cut off")? {
            out.write_all(&piece).context("cannot write to stdout")?;
            lines.take(&piece, &mut out)?;
        }
        out.flush().context("cannot write to stdout")?;
        ensure!(lines.ended, "the stream was cut off");
        Ok(())
    }
}

/// Writes WARC to stdout, and keeps the places that are told on the way.
async fn warc(mut answer: Response, place: Option<PathBuf>) -> Result<()> {
    let (mut watch, mut progress, mut kept) = (Watch::start(), Progress::new(), None);
    while let Some(piece) = answer.chunk().await.context("the stream was cut off")? {
        let mut out = std::io::stdout().lock();
        out.write_all(&piece).and_then(|()| out.flush()).context("cannot write to stdout")?;
        drop(out);
        let bytes = piece.len() as u64;
        watch = watch.take(piece)?;
        let seen = watch.seen();
        progress.pages = seen.pages;
        progress.tell(bytes);
        if let (Some(path), Some(cursor)) = (&place, &seen.cursor)
            && kept != seen.cursor
        {
            keep(path, cursor)?;
            kept = seen.cursor;
        }
    }
    let seen = watch.end()?;
    ensure!(seen.ended, "the stream was cut off");
    match (&place, &seen.cursor) {
        (Some(path), Some(cursor)) => keep(path, cursor),
        _ => Ok(()),
    }
}

/// Looks at the lines that go by: the cursors among them, and the last.
struct Lines {
    cursor: Option<PathBuf>,
    left: Vec<u8>,
    progress: Progress,
    ended: bool,
}

impl Lines {
    fn take(&mut self, piece: &[u8], out: &mut impl Write) -> Result<()> {
        self.left.extend_from_slice(piece);
        let Some(end) = self.left.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.left.drain(..=end).collect();
        let mut cursor = None;
        for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let is_told = line.starts_with(b"{\"cursor\":") || line.starts_with(b"{\"end\":");
            let Some(value) = is_told.then(|| serde_json::from_slice::<Value>(line).ok()).flatten() else {
                self.progress.pages += 1;
                continue;
            };
            self.ended |= value.get("end").is_some();
            cursor = value.get("cursor").and_then(Value::as_str).map(str::to_owned).or(cursor);
        }
        self.progress.tell(piece.len() as u64);
        if let (Some(path), Some(cursor)) = (&self.cursor, cursor) {
            // What comes before the place must be out before it is kept.
            out.flush().context("cannot write to stdout")?;
            keep(path, &cursor)?;
        }
        Ok(())
    }
}

fn keep(path: &Path, cursor: &str) -> Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let kept = std::fs::write(&next, format!("{cursor}\n")).and_then(|()| std::fs::rename(&next, path));
    kept.with_context(|| format!("cannot write {}", path.display()))
}

/// Says now and then how far it is.
struct Progress {
    pages: u64,
    bytes: u64,
    began: Instant,
    told: Instant,
    is_seen: bool,
}

impl Progress {
    fn new() -> Progress {
        let now = Instant::now();
        Progress { pages: 0, bytes: 0, began: now, told: now, is_seen: std::io::stderr().is_terminal() }
    }

    fn tell(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.is_seen && self.told.elapsed() >= Duration::from_secs(1) {
            self.told = Instant::now();
            let seconds = self.began.elapsed().as_secs_f64();
            let (pages, megabytes) = (self.pages as f64 / seconds, self.bytes as f64 / 1e6 / seconds);
            eprintln!("{} pages, {pages:.0} pages/s, {megabytes:.1} MB/s", self.pages);
        }
    }
}

fn count(counted: &Value) -> Result<()> {
    let number = |name: &str| counted.get(name).and_then(Value::as_u64);
    let which = match number("generation") {
        None => "live".to_owned(),
        Some(generation) => format!("generation {generation}"),
    };
    let (pages, bytes) = (number("pages").unwrap_or(0), number("bytes").unwrap_or(0));
    println!("{which}: {pages} pages, {bytes} bytes");
    let damaged = number("damaged").unwrap_or(0);
    ensure!(damaged == 0, "{damaged} pages are damaged");
    Ok(())
}
