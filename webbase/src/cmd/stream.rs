//! `webbase stream`: pages of the current generation, or of those there are now.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Response;
use serde_json::Value;

use super::progress::Progress;
use super::stream_warc::Watch;
use crate::client::{Repository, Server};
use crate::exit::Failure;

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
their disks), then read page by page; stores of the organizations hash and hashed-log are in id order already. Pages that are
damaged on every node that has them are left out: the exit code is then 3, and stderr says how many.")]
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

    /// How many pages will come, if that is known: of conditions, of a part and behind a cursor it is not.
    async fn total(&self, repository: &Repository) -> Option<u64> {
        let lists = [&self.domain, &self.host, &self.prefix, &self.mime, &self.status];
        let texts = [&self.since, &self.until, &self.modified_since, &self.modified_until, &self.part];
        let is_all = lists.into_iter().all(Vec::is_empty)
            && texts.into_iter().all(Option::is_none)
            && [self.min_size, self.max_size, self.sample].iter().all(Option::is_none)
            && self.min_importance.is_none()
            && !self.cursor.as_ref().is_some_and(|place| place.exists());
        let status =
            if is_all && self.format != "count" { repository.status().await.ok()? } else { return None };
        let pages = status.get("pages")?.as_u64().filter(|pages| *pages > 0)?;
        Some(self.limit.map_or(pages, |limit| pages.min(limit)))
    }

    pub(crate) async fn run(self) -> Result<()> {
        let parameters = self.parameters()?;
        let parameters: Vec<(&str, &str)> = parameters.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let repository = self.server.connect().await?;
        let total = self.total(&repository).await;
        let request = repository.get_long("/stream", &parameters);
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
            return warc(answer, self.cursor, total).await;
        }
        let mut lines = Lines::new(self.cursor, total);
        let mut out = std::io::stdout().lock();
        while let Some(piece) = answer.chunk().await.context("the stream was cut off")? {
            out.write_all(&piece).context("cannot write to stdout")?;
            lines.take(&piece, &mut out)?;
        }
        out.flush().context("cannot write to stdout")?;
        let damaged = lines.ended.context("the stream was cut off")?;
        lines.progress.end();
        say_if_placeless(lines.cursor.as_deref(), lines.placed);
        whole(damaged)
    }
}

/// Writes WARC to stdout, and keeps the places that are told on the way.
async fn warc(mut answer: Response, place: Option<PathBuf>, total: Option<u64>) -> Result<()> {
    let (mut watch, mut progress, mut kept) = (Watch::start(), Shown::new(total), None);
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
    let damaged = seen.ended.context("the stream was cut off")?;
    progress.end();
    if let (Some(path), Some(cursor)) = (&place, &seen.cursor) {
        keep(path, cursor)?;
    }
    say_if_placeless(place.as_deref(), seen.cursor.is_some());
    whole(damaged)
}

/// Who asked for a place and got none learns it before relying on it.
fn say_if_placeless(place: Option<&Path>, placed: bool) {
    if let Some(path) = place.filter(|_| !placed) {
        let path = path.display();
        eprintln!(
            "webbase: the stream told no place to go on from, {path} is as it was: a node was lost on the way and another one, with \
             its pages in another order, went on"
        );
    }
}

/// A stream that came to its end is whole if no page had to be left out of it.
fn whole(damaged: u64) -> Result<()> {
    if damaged == 0 {
        return Ok(());
    }
    let pages = if damaged == 1 { "1 page is".to_owned() } else { format!("{damaged} pages are") };
    bail!(Failure::Damaged(format!(
        "{pages} damaged on every node that has them and left out; the others are all there. `webbase status` names the nodes: \
         `webbase verify` their folders, bring a replica back or fetch the pages again"
    )))
}

/// Looks at the lines that go by: the cursors among them, and the last.
struct Lines {
    cursor: Option<PathBuf>,
    left: Vec<u8>,
    progress: Shown,
    /// A place was told, and kept.
    placed: bool,
    /// The last line was there, and so many pages were left out because they are damaged.
    ended: Option<u64>,
}

impl Lines {
    fn new(cursor: Option<PathBuf>, total: Option<u64>) -> Lines {
        Lines { cursor, left: Vec::new(), progress: Shown::new(total), placed: false, ended: None }
    }

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
            if value.get("end").is_some() {
                self.ended = Some(value.get("damaged").and_then(Value::as_u64).unwrap_or(0));
            }
            cursor = value.get("cursor").and_then(Value::as_str).map(str::to_owned).or(cursor);
        }
        self.progress.tell(piece.len() as u64);
        if let (Some(path), Some(cursor)) = (&self.cursor, cursor) {
            // What comes before the place must be out before it is kept.
            out.flush().context("cannot write to stdout")?;
            keep(path, &cursor)?;
            self.placed = true;
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

/// How far it is, for people who have the pages go elsewhere: beside pages on a terminal it would be in the way.
struct Shown {
    pages: u64,
    bytes: u64,
    progress: Option<Progress>,
}

impl Shown {
    fn new(total: Option<u64>) -> Shown {
        let progress = (!console::user_attended()).then(|| Progress::new("stream", total));
        Shown { pages: 0, bytes: 0, progress }
    }

    fn tell(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(progress) = &mut self.progress {
            progress.at(self.pages, self.bytes);
        }
    }

    fn end(self) {
        if let Some(progress) = self.progress {
            progress.done(self.pages, self.bytes);
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
    whole(number("damaged").unwrap_or(0))
}
