//! `webbase crawl`: pages of the web into the repository.

pub(crate) mod control;

use std::io::{IsTerminal, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use parking_lot::Mutex;
use reqwest::Url;
use tokio::signal::unix::{SignalKind, signal};
use webbase_crawler::crawl::{self, Control, Ended, Progress, Scope, Settings, Shard, Within};
use webbase_crawler::fetcher::{By, Dns, Reach, Resolve};
use webbase_crawler::links::{Extent, Links, WithLinks};
use webbase_crawler::scheduler::Settings as Schedule;

use self::control::Answering;
use super::schedule::settings;
use crate::client::Server;

/// How often progress is shown: on a terminal, and as lines.
const SHOWN_EVERY: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Memory for links, where they are kept.
const LINKS_BYTES: usize = 128 << 20;

/// Read pages from the web, follow their links, and add them to the repository.
///
/// Every site's robots file is obeyed, and no site is asked twice within a delay. The crawl's state is kept in its folder: killed at any
/// time and started again it goes on, and fetches nothing again that it has. Ctrl-C ends it in good order, a second one at once;
/// SIGUSR1 pauses it and lets it go on. Progress goes to stderr: one line that moves on a terminal, JSON lines otherwise.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase crawl --contact https://example.org/bot https://www.debian.org/
  webbase crawl --contact https://example.org/bot --seeds seeds.txt --scope domain --depth 5 --limit 100000
  webbase crawl --allow-loopback http://localhost:8080/          one's own site, on this machine
  webbase crawl --recrawl 1d --dir webbase-crawl                 again what was read over a day ago, if it changed
  webbase crawl --bandwidth 20/s --cycle-every 1h --seeds seeds.txt    for ever, what is worth it most")]
pub(crate) struct Crawl {
    /// Where to start.
    #[arg(value_name = "URL")]
    urls: Vec<Url>,
    /// A file with a URL a line; `-` is stdin.
    #[arg(long, value_name = "FILE", alias = "seed-file")]
    seeds: Option<PathBuf>,
    /// The crawl's own folder: what it knows and what waits.
    #[arg(long, value_name = "DIR", default_value = "webbase-crawl")]
    dir: PathBuf,
    /// A page that says who crawls, for the sites' operators; needed for sites that are not on this machine.
    #[arg(long, value_name = "URL", env = "WEBBASE_CONTACT")]
    contact: Option<Url>,
    /// How far from the seeds to go.
    #[arg(long, value_name = "SCOPE", default_value = "host", alias = "scope-type", value_parser = within)]
    scope: Within,
    /// How many links from a seed to go, at most.
    #[arg(long, value_name = "N")]
    depth: Option<u16>,
    /// Read only URLs that begin so (and the seeds); may be given several times.
    #[arg(long, value_name = "PREFIX")]
    include: Vec<String>,
    /// Read no URLs that begin so; may be given several times.
    #[arg(long, value_name = "PREFIX")]
    exclude: Vec<String>,
    /// Ask for no paths that end so, such as .zip; may be given several times.
    #[arg(long, value_name = "SUFFIX")]
    exclude_suffix: Vec<String>,
    /// Keep only pages of these MIME types, such as text/html; may be given several times.
    #[arg(long, value_name = "TYPE")]
    mime: Vec<String>,
    /// End after this many pages.
    #[arg(long, value_name = "PAGES")]
    limit: Option<u64>,
    /// End after so many bytes, such as 10GB.
    #[arg(long, value_name = "BYTES")]
    size_limit: Option<ByteSize>,
    /// End after this long, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    time_limit: Option<Duration>,
    /// The time between an answer of a site and the next request to it.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    delay: Duration,
    /// The same for an address with several sites.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    address_delay: Duration,
    /// The longest `Crawl-delay` of a robots file that is kept; a site that asks for more is read this often.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    crawl_delay_max: Duration,
    /// How many requests are made at a time.
    #[arg(long, short = 'w', value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    workers: u32,
    /// Bodies are cut at this length.
    #[arg(long, value_name = "BYTES", default_value = "16MiB")]
    page_size: ByteSize,
    /// Read sites on this machine, too.
    #[arg(long)]
    allow_loopback: bool,
    /// Read sites in private networks, too.
    #[arg(long)]
    allow_private: bool,
    /// Connect to this address, whatever host a URL names: for sites that are not there yet.
    #[arg(long, value_name = "ADDR")]
    connect_to: Option<SocketAddr>,
    /// Do not read sitemaps.
    #[arg(long)]
    no_sitemaps: bool,
    /// Keep the links of what is read in this folder, for `webbase rank --dir DIR --no-read`.
    #[arg(long, value_name = "DIR")]
    links: Option<PathBuf>,
    /// Read pages again that were read longer ago than this, if they changed.
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    recrawl: Option<Duration>,
    /// Keep on: read so many pages (100/s, 5000/h, …), those that are worth it most, for the first time or again. Without this
    /// pages are read as they are found, once.
    #[arg(long, value_name = "READS", value_parser = settings::reads_a_day)]
    bandwidth: Option<f64>,
    /// How the bandwidth is shared out, such as policy=lambda, chi=4, cycle=1h; may be given several times, and changed while it
    /// runs (`webbase schedule --help`). It is kept in the crawl's folder: what is not said again stays as it was.
    #[arg(long, value_name = "NAME=VALUE", requires = "bandwidth")]
    set: Vec<String>,
    /// How long pages stay in the repository unless they are seen again.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lifetime: Option<Duration>,
    /// Be one of several crawlers, each with hosts of its own: 0/2 and 1/2. Each has its own --dir, all the same --shared.
    #[arg(long, value_name = "I/N", value_parser = shard, requires = "shared")]
    shard: Option<(u32, u32)>,
    /// A folder that all crawlers reach, for the links they hand over.
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Make the pages visible so often.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    cycle_every: Option<Duration>,
    /// Make the pages visible after so many of them.
    #[arg(long, value_name = "PAGES")]
    cycle_pages: Option<u64>,
    /// Leave the last pages for the next cycle.
    #[arg(long)]
    no_cycle: bool,
    /// At the end, what was done as JSON to stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

fn within(text: &str) -> Result<Within, String> {
    match text {
        "page" => Ok(Within::Page),
        "prefix" => Ok(Within::Prefix),
        "host" => Ok(Within::Host),
        "domain" => Ok(Within::Domain),
        "any" => Ok(Within::Anywhere),
        _ => Err("one of page, prefix, host, domain, any".to_owned()),
    }
}

fn shard(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('/').and_then(|(own, count)| Some((own.parse().ok()?, count.parse().ok()?)));
    parts.filter(|(own, count)| own < count).ok_or_else(|| "such as 0/2 or 1/2".to_owned())
}

impl Crawl {
    pub(crate) async fn run(self) -> Result<()> {
        let seeds = self.seeds()?;
        if seeds.is_empty() && !self.dir.join("frontier.redb").exists() {
            bail!("nothing to crawl: name a URL, or a file of them with --seeds");
        }
        let settings = self.settings(seeds)?;
        let resolver: Arc<dyn Resolve> = match self.connect_to {
            Some(address) => Arc::new(By(move |_: &str, _| Some(address))),
            None => Arc::new(Dns::of_system().map_err(anyhow::Error::msg)?),
        };
        let cluster = self.server.cluster().await?;
        let control = Control::default();
        let answering = Answering::start(&self.dir, control.clone())?;
        let watching = tokio::spawn(watch(control.clone()));
        let signals = tokio::spawn(obey(control.clone()));
        let ended = match &self.links {
            None => crawl::crawl(settings, resolver, cluster, control.clone()).await,
            Some(dir) => {
                let links = Arc::new(Mutex::new(Links::open(dir, LINKS_BYTES)?));
                let sink = WithLinks::new(cluster, links.clone());
                let ended = crawl::crawl(settings, resolver, sink, control.clone()).await;
                // What came after the last cycle.
                links.lock().commit(Extent::Changes)?;
                ended
            }
        };
        drop(answering);
        watching.abort();
        signals.abort();
        let progress = control.progress();
        eprintln!("{}", summary(&progress, ended.as_ref().ok()));
        if self.json {
            let text = serde_json::to_string(&progress).context("cannot write JSON")?;
            writeln!(std::io::stdout().lock(), "{text}").context("cannot write to stdout")?;
        }
        ended?;
        Ok(())
    }

    fn seeds(&self) -> Result<Vec<Url>> {
        let mut seeds = self.urls.clone();
        if let Some(path) = &self.seeds {
            let mut text = String::new();
            if path.as_os_str() == "-" {
                std::io::stdin().lock().read_to_string(&mut text).context("cannot read seeds from stdin")?;
            } else {
                text = std::fs::read_to_string(path)
                    .with_context(|| format!("no seeds in {}", path.display()))?;
            }
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let url = Url::parse(line).or_else(|_| Url::parse(&format!("http://{line}")));
                seeds.push(url.with_context(|| {
                    format!("line {} of {} is no URL: {line}", number + 1, path.display())
                })?);
            }
        }
        for seed in &seeds {
            if !matches!(seed.scheme(), "http" | "https") || seed.host_str().is_none() {
                bail!("{seed} is no page of the web: http:// and https:// URLs are");
            }
        }
        Ok(seeds)
    }

    fn settings(&self, seeds: Vec<Url>) -> Result<Settings> {
        let mut settings = Settings::new(&self.dir, seeds);
        settings.scope = Scope::new(self.scope);
        settings.scope.depth_max = self.depth;
        settings.scope.include = self.include.clone();
        settings.scope.exclude = self.exclude.clone();
        settings.scope.exclude_suffixes =
            self.exclude_suffix.iter().map(|suffix| suffix.to_ascii_lowercase()).collect();
        settings.fetch.contact = self.contact.clone();
        settings.fetch.reach = match (self.allow_private, self.allow_loopback) {
            (true, _) => Reach::Anywhere,
            (false, true) => Reach::Loopback,
            (false, false) => Reach::Public,
        };
        settings.fetch.connections = self.workers as usize;
        settings.fetch.politeness.delay = self.delay;
        settings.fetch.politeness.crawl_delay_max = self.crawl_delay_max;
        settings.fetch.politeness.address_delay =
            (!self.address_delay.is_zero()).then_some(self.address_delay);
        settings.fetch.limits.body_bytes_max = usize::try_from(self.page_size.as_u64()).unwrap_or(usize::MAX);
        if !self.mime.is_empty() {
            let wanted: Vec<String> = self.mime.iter().map(|mime| mime.to_ascii_lowercase()).collect();
            settings.fetch.wants = Arc::new(move |mime| wanted.iter().any(|one| one == mime));
        }
        settings.pages_max = self.limit;
        settings.bytes_max = self.size_limit.map(|size| size.as_u64());
        settings.time_max = self.time_limit;
        settings.cycle_every = self.cycle_every;
        settings.cycle_pages = self.cycle_pages;
        settings.cycle_at_end = !self.no_cycle;
        settings.sitemaps = !self.no_sitemaps;
        settings.recrawl = self.recrawl;
        settings.lifetime = self.lifetime;
        if let Some(bandwidth) = self.bandwidth {
            // What was set while the last run ran still holds, unless the command line says otherwise.
            let saved = crawl::saved_schedule(&self.dir)?.unwrap_or_default();
            let mut schedule = Schedule { bandwidth, ..saved };
            for change in &self.set {
                settings::set(&mut schedule, change)?;
            }
            schedule.check()?;
            settings.schedule = Some(schedule);
        }
        if let (Some((own, count)), Some(folder)) = (self.shard, self.shared.clone()) {
            settings.shard = Some(Shard { own, count, folder });
        }
        Ok(settings)
    }
}

/// Shows how it goes.
async fn watch(control: Control) {
    let on_terminal = std::io::stderr().is_terminal();
    let every = if on_terminal { SHOWN_EVERY } else { LINE_EVERY };
    let line = on_terminal.then(indicatif::ProgressBar::new_spinner);
    loop {
        tokio::time::sleep(every).await;
        let progress = control.progress();
        match &line {
            Some(line) => line.set_message(in_one_line(&progress)),
            None => {
                if let Ok(text) = serde_json::to_string(&progress) {
                    eprintln!("{text}");
                }
            }
        }
    }
}

fn in_one_line(progress: &Progress) -> String {
    let errors: u64 = progress.errors.values().sum();
    let paused = if progress.paused { "paused · " } else { "" };
    let fresh =
        progress.freshness.map_or_else(String::new, |share| format!(" · {:.1} % fresh", share * 100.0));
    format!(
        "{paused}{} pages · {:.0}/s · {} · {} unchanged · frontier {} on {} hosts · buffer {} · {} requests · {errors} errors{fresh}",
        progress.pages,
        progress.pages_per_second,
        ByteSize::b(progress.bytes),
        progress.unchanged,
        progress.frontier,
        progress.hosts,
        progress.buffer,
        progress.requests,
    )
}

fn summary(progress: &Progress, ended: Option<&Ended>) -> String {
    let how = match ended {
        Some(Ended::Done) => "done",
        Some(Ended::Limit) => "at its limit",
        Some(Ended::Stopped) => "stopped; the same command goes on",
        None => "failed; the same command goes on",
    };
    let mut text = format!(
        "{how}: {} pages and {} unchanged in {:.1} s ({:.0} pages/s), {}; {} URLs known, {} wait",
        progress.pages,
        progress.unchanged,
        progress.seconds,
        progress.pages as f64 / progress.seconds.max(0.001),
        ByteSize::b(progress.bytes),
        progress.known,
        progress.frontier,
    );
    for (kind, count) in &progress.errors {
        text.push_str(&format!("\n  {count} {kind}"));
    }
    if let Some(generation) = progress.generation {
        text.push_str(&format!("\nvisible in generation {generation}"));
    }
    text
}

/// Ends the crawl at the first Ctrl-C and the program at the second; SIGUSR1 pauses and resumes.
async fn obey(control: Control) {
    let signals = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::user_defined1()),
    );
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut user)) = signals else { return };
    let (mut stopping, mut paused) = (false, false);
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = user.recv() => {
                paused = !paused;
                control.pause(paused);
                eprintln!("{}", if paused { "paused; SIGUSR1 again lets it go on" } else { "goes on" });
                continue;
            }
        }
        if stopping {
            std::process::exit(130);
        }
        stopping = true;
        eprintln!("ending: what is being fetched is still taken; Ctrl-C again ends at once");
        control.stop();
    }
}
