//! `webbase cycle`: the batch update, now.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use webbase::standing;

use crate::client::{Repository, Server};

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
#[command(after_help = "Example:
  webbase cycle")]
pub(crate) struct Cycle {
    #[command(flatten)]
    server: Server,
}

impl Cycle {
    pub(crate) async fn run(self) -> Result<()> {
        let repository = self.server.connect().await?;
        println!("{}", run(&repository).await.context("no new generation")?);
        Ok(())
    }
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
    let (mut shown, mut ended_at) = (String::new(), None);
    loop {
        let status = repository.status().await?;
        let line = standing::progress(&status);
        if line != shown {
            eprintln!("{line}");
            shown = line;
        }
        let running = status.get("cycle").and_then(|running| number(running, "number"));
        if running != Some(cycle) && number(&status, "last_cycle") >= Some(cycle) {
            let committed = number(&status, "committed").unwrap_or(0);
            if committed <= before {
                let outcome = status.get("outcome").and_then(|o| o.get("text")).and_then(Value::as_str);
                bail!("{}; its pages stay for the next one", outcome.unwrap_or("the cycle was aborted"));
            }
            if number(&status, "serving") >= Some(committed) {
                return Ok(committed);
            }
            let since = ended_at.get_or_insert_with(std::time::Instant::now);
            if since.elapsed() > SERVED_LIMIT {
                bail!("generation {committed} is committed, but some ranges have no node that serves it yet");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
