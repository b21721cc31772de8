//! `webbase cycle`: the batch update, now.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::Value;
use webbase::standing;

use crate::client::{Repository, Server};

/// Between two lines of progress, where there is no terminal.
const LINE: Duration = Duration::from_secs(5);
/// Between two looks at a running cycle.
const LOOK: Duration = Duration::from_millis(100);
/// How often a cycle is refused though none seems to run, before that is told.
const BEGIN_TRIES: u32 = 3;
/// A generation that is committed is served within this time, or something is wrong.
const SERVED_LIMIT: Duration = Duration::from_secs(60);

/// Run a cycle: everything added so far becomes visible, all at once.
///
/// Progress goes to stderr, and at the end what came of it; the new generation's number to stdout, when readers see it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase cycle
  webbase cycle --json | jq .pages")]
pub(crate) struct Cycle {
    /// What came of it, as JSON on stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Cycle {
    pub(crate) async fn run(self) -> Result<()> {
        let repository = self.server.connect().await?;
        let generation = run(&repository).await.context("no new generation")?;
        match self.json {
            true => println!("{:#}", repository.status().await?.get("outcome").unwrap_or(&Value::Null)),
            false => println!("{generation}"),
        }
        Ok(())
    }
}

/// How far a cycle is: a bar of pages on a terminal; elsewhere a line for each phase, and now and then between.
struct Shown {
    bar: Option<ProgressBar>,
    phase: Value,
    told: Instant,
}

impl Shown {
    fn new(status: &Value) -> Shown {
        let bar = console::user_attended_stderr().then(|| {
            let waiting = sum(status, |node| {
                let waits = node.get("role").and_then(Value::as_str) == Some("update");
                node.get("figures")?.get("pages")?.as_u64().filter(|_| waits)
            });
            let bar = ProgressBar::new(waiting);
            let style = "{prefix} {bar:30.cyan} {human_pos}/{human_len} pages {msg}, {per_sec}, {eta} left";
            ProgressStyle::with_template(style).map(|style| bar.set_style(style)).ok();
            bar
        });
        Shown { bar, phase: Value::Null, told: Instant::now() }
    }

    fn look(&mut self, status: &Value) {
        let phase = status.get("cycle").and_then(|cycle| cycle.get("phase")).unwrap_or(&Value::Null);
        let figure = |name: &'static str| sum(status, move |node| node.get("progress")?.get(name)?.as_u64());
        if let Some(bar) = &self.bar {
            bar.set_prefix(phase.as_str().unwrap_or_default().to_owned());
            bar.set_position(figure("pages"));
            bar.set_message(HumanBytes(figure("bytes")).to_string());
        } else if *phase != self.phase || self.told.elapsed() >= LINE {
            eprintln!("{}", standing::progress(status));
            self.told = Instant::now();
        }
        self.phase = phase.clone();
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The sum of something over all nodes that tell it.
fn sum(status: &Value, of: impl Fn(&Value) -> Option<u64>) -> u64 {
    status.get("nodes").and_then(Value::as_array).into_iter().flatten().filter_map(of).sum()
}

/// Begins a cycle, when none is running any more: a cycle that has begun does not take what was added since.
async fn begin(repository: &Repository) -> Result<Value> {
    let (mut told, mut tries) = (false, 0);
    loop {
        let refused = match repository.json(repository.post("/cycle", &[])).await {
            Ok(begun) => return Ok(begun),
            Err(e) => e,
        };
        let running = repository.status().await?.get("cycle").is_some_and(|cycle| !cycle.is_null());
        // One that was in the way may have ended in between.
        tries += u32::from(!running);
        if tries > BEGIN_TRIES {
            return Err(refused);
        }
        if !std::mem::replace(&mut told, true) {
            eprintln!("{refused:#}: waiting for it to end");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Runs a cycle to its end, and says which generation it made.
pub(crate) async fn run(repository: &Repository) -> Result<u64> {
    let begun = begin(repository).await?;
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64);
    let (Some(cycle), Some(before)) = (number(&begun, "cycle"), number(&begun, "committed_before")) else {
        bail!("the server does not say which cycle has begun: {begun}");
    };
    let (mut shown, mut ended_at) = (Shown::new(&repository.status().await?), None);
    loop {
        let status = repository.status().await?;
        let running = status.get("cycle").and_then(|running| number(running, "number"));
        if running != Some(cycle) && number(&status, "last_cycle") >= Some(cycle) {
            let committed = number(&status, "committed").unwrap_or(0);
            if committed <= before {
                let outcome = status.get("outcome").and_then(|o| o.get("text")).and_then(Value::as_str);
                bail!("{}; its pages stay for the next one", outcome.unwrap_or("the cycle was aborted"));
            }
            if number(&status, "serving") >= Some(committed) {
                drop(shown);
                eprintln!("{}", standing::progress(&status));
                return Ok(committed);
            }
            let since = ended_at.get_or_insert_with(Instant::now);
            if since.elapsed() > SERVED_LIMIT {
                bail!("generation {committed} is committed, but some ranges have no node that serves it yet");
            }
        } else {
            shown.look(&status);
        }
        tokio::time::sleep(LOOK).await;
    }
}
