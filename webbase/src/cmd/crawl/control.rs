//! A running crawl is asked and steered through a socket in its folder, one line of JSON for a question and one for its answer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use webbase_crawler::crawl::{Control, Wish};
use webbase_crawler::scheduler::Publication;

use crate::cmd::schedule::settings;

/// The socket's name.
const SOCKET: &str = "control";

/// What a running crawl is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    /// The pages that are due soonest.
    Due(usize),
    /// Why a page is due when.
    Why(String),
    /// Settings of the schedule, as NAME=VALUE.
    Set(Vec<String>),
    /// A page is wanted now.
    Now(String),
    /// Something is published about a page.
    Publish(String, Publication),
    /// Whether to pause.
    Pause(bool),
    /// How it goes.
    Progress,
}

/// Answers questions until it is dropped. The socket lies in the crawl's folder.
pub(crate) struct Answering {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Answering {
    pub(crate) fn start(dir: &Path, control: Control) -> Result<Answering> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join(SOCKET);
        // What a killed crawl left behind; that no other runs here, the frontier's lock sees to.
        if path.exists() && std::os::unix::net::UnixStream::connect(&path).is_err() {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let task = tokio::spawn(async move {
            loop {
                // A connection that ended before it was taken: the next one may do.
                let Ok((connection, _)) = listener.accept().await else { continue };
                tokio::spawn(answer(connection, control.clone()));
            }
        });
        Ok(Answering { path, task })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
        // It is no harm where it stays: the next crawl removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers the questions of one connection. Who hangs up has his answer, or does not want it.
async fn answer(connection: UnixStream, control: Control) {
    let (from, mut to) = connection.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match serde_json::from_str(&line) {
            Ok(question) => {
                said(question, &control).await.unwrap_or_else(|e| json!({ "error": format!("{e:#}") }))
            }
            Err(e) => json!({ "error": e.to_string() }),
        };
        if to.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn said(question: Question, control: &Control) -> Result<Value> {
    let ended = "the crawl is ending";
    Ok(match question {
        Question::Due(count) => json!(control.due(count).await.context(ended)?),
        Question::Why(url) => json!(control.why(&url).await.context(ended)?),
        Question::Set(changes) => {
            let mut schedule = control.schedule().context("this crawl has no bandwidth to share out")?;
            for change in &changes {
                settings::set(&mut schedule, change)?;
            }
            control.set_schedule(schedule)?;
            json!({ "set": changes })
        }
        Question::Now(url) => {
            control.wish(url.parse()?, Wish::Now).await.context(ended)?;
            json!({ "now": url })
        }
        Question::Publish(url, publication) => {
            control.wish(url.parse()?, Wish::Publish(publication)).await.context(ended)?;
            json!({ "published": url })
        }
        Question::Pause(paused) => {
            control.pause(paused);
            json!({ "paused": paused })
        }
        Question::Progress => json!(control.progress()),
    })
}

/// Asks the crawl that runs in a folder; `None` where none does.
pub(crate) async fn ask(dir: &Path, question: &Question) -> Result<Option<Value>> {
    let Ok(connection) = UnixStream::connect(dir.join(SOCKET)).await else { return Ok(None) };
    let (from, mut to) = connection.into_split();
    to.write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes()).await?;
    let line = BufReader::new(from).lines().next_line().await?;
    let answer: Value = serde_json::from_str(&line.context("the crawl ended before it answered")?)?;
    match answer.get("error").and_then(Value::as_str) {
        Some(e) => anyhow::bail!("{e}"),
        None => Ok(Some(answer)),
    }
}
