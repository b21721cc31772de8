//! Worker processes: this program once more, as often as was asked for.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use webbase_crawler::importance::workers::{Pace, Problem, Worked, Worker, solve};
use webbase_crawler::importance::{Graph, Interest, Personalisation, Solution};

use super::Rank;

/// A worker has come up by then, or won't.
const COMES_UP_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of what a worker says first, at most.
const LINE_BYTES_MAX: u64 = 256;

/// Compute slices of importance and usefulness for `webbase rank --workers`; ends with its standard input.
#[derive(clap::Args)]
pub(crate) struct RankWorker {
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    listen: SocketAddr,
}

impl RankWorker {
    pub(crate) async fn run(self) -> Result<()> {
        let worker = Worker::start(self.listen).await?;
        super::super::ready(worker.address())?;
        // Whoever started it holds the other end, also when it is killed.
        let input =
            tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        input.await.context("nobody reads stdin")?.context("cannot read from stdin")?;
        Ok(())
    }
}

/// A worker process, which ends when this is dropped.
struct Process {
    _child: Child,
    address: SocketAddr,
}

async fn start() -> Result<Process> {
    let program = std::env::current_exe().context("this program is not found")?;
    let mut child = Command::new(program)
        .arg("rank-worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("a worker cannot be started")?;
    let out = child.stdout.take().context("a worker without output")?;
    let mut lines = BufReader::new(out.take(LINE_BYTES_MAX)).lines();
    let line = tokio::time::timeout(COMES_UP_WITHIN, lines.next_line()).await;
    let line = line.context("a worker did not come up in time")?.context("a worker says nothing")?;
    let address = line.as_deref().and_then(|line| line.strip_prefix("listening on ")?.parse().ok());
    match address {
        Some(address) => Ok(Process { _child: child, address }),
        None => bail!("a worker did not come up"),
    }
}

impl Rank {
    /// Importance and usefulness by worker processes.
    pub(super) async fn by_workers(
        &self,
        graph: &Graph,
        interest: &Interest,
        workers: u32,
    ) -> Result<(Solution, Solution)> {
        let mut processes = Vec::new();
        for _ in 0..workers {
            processes.push(start().await?);
        }
        let addresses: Vec<SocketAddr> = processes.iter().map(|process| process.address).collect();
        let settings = self.settings();
        let pace = if self.chaotic { Pace::Chaotic } else { Pace::LockStep };
        let e = Personalisation::uniform(graph.pages());
        let problem = Problem::Importance { e: &e };
        let found = solve(&addresses, graph, problem, None, pace, &settings).await?;
        let importance = said("importance", found);
        let problem = Problem::Usefulness { importance: &importance.values, interest, kind: self.kind() };
        let found = solve(&addresses, graph, problem, None, pace, &settings).await?;
        Ok((importance, said("usefulness", found)))
    }
}

/// Says how often each worker has swept in its own time; how many rounds there were is said of every method.
fn said(what: &str, worked: Worked) -> Solution {
    if !worked.sweeps.is_empty() {
        let sweeps: Vec<String> = worked.sweeps.iter().map(u32::to_string).collect();
        eprintln!("{what}: {} sweeps of the workers in their own time, then in lock-step", sweeps.join(", "));
    }
    worked.solution
}
