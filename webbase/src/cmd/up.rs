//! `webbase up`: a whole repository in one process.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use webbase::demo::{self, Demo};
use webbase::embedded::{Embedded, Options};
use webbase::gateway;
use webbase::keys::Keys;

use super::told_to_stop;
use crate::config::ConfigFile;

/// Where the commands look for a repository.
const USUAL_PORT: u16 = 7700;
/// The console answers in this time, or something is wrong.
const CONSOLE_LIMIT: Duration = Duration::from_secs(30);

/// Run a whole repository in one process: management server, update and read nodes, and HTTP.
///
/// Prints where it is when it can be used; ends in good order on SIGTERM and SIGINT (Ctrl-C). Started again in the same folder
/// it goes on where it was.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase up                           in ./webbase-data, at http://127.0.0.1:7700
  webbase up --demo                    with pages to look at
  webbase up --dir /srv/pages --read-nodes 2 --replicas 2 --update-nodes 2")]
pub(crate) struct Up {
    /// Its folder; a new repository is made in an empty one.
    #[arg(long, value_name = "DIR", default_value = "webbase-data")]
    dir: PathBuf,
    /// How many update nodes there are: 1 if not said, 2 with --demo.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    update_nodes: Option<u32>,
    /// How many read nodes there are: 1 if not said, 2 with --demo.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    read_nodes: Option<u32>,
    /// On how many nodes of each role a page lies. Counts when the repository is made.
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// Where to serve HTTP; with port 0 the system chooses.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7700")]
    http: SocketAddr,
    /// Where the management server listens, for `webbase drain` and for more nodes; with port 0 the system chooses.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Crawl a small invented web, whose pages go on changing, for ever; and have readers.
    #[arg(long)]
    demo: bool,
    /// Sites whose scripts may read lists and WARC files in a browser where no token is asked for, with commas between: as
    /// `https://replayweb.page`. Sites on this machine may anyway.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    allow_origin: Vec<String>,
    /// Names that it may be called by where no token is asked for, with commas between, beside localhost and its address: what a
    /// proxy in front of it calls it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    _config: ConfigFile,
}

impl Up {
    pub(crate) async fn run(self) -> Result<()> {
        let mut options = Options::new(&self.dir);
        let nodes = if self.demo { 2 } else { 1 };
        options.update_nodes = self.update_nodes.unwrap_or(nodes);
        options.read_nodes = self.read_nodes.unwrap_or(nodes);
        options.replicas = self.replicas;
        options.listen = self.listen;
        options.gateway = gateway::Settings::on(self.http);
        self.keys.gateway(&mut options.gateway)?;
        options.gateway.doors.origins.clone_from(&self.allow_origin);
        options.gateway.doors.hosts.clone_from(&self.allow_host);
        let scheme = if options.gateway.tls.is_some() { "https" } else { "http" };
        let protected = options.gateway.doors.token.is_some();
        let crawling = demo::Crawling::default();
        options.gateway.crawl = self.demo.then(|| crawling.figures());
        let stop = told_to_stop();
        tokio::pin!(stop);
        let mut running = tokio::select! {
            stopped = &mut stop => return stopped,
            running = Embedded::start(options) => running?,
        };
        if scheme == "http" {
            answers(running.http()).await.context("the console does not answer")?;
        }
        self.welcome(scheme, &running)?;
        // Readers of the demo have no token.
        let open_to_all = (scheme == "http" && !protected).then(|| running.http());
        let demo = match self.demo {
            true => Some(Demo::start(running.cluster().clone(), &self.dir, open_to_all, crawling).await?),
            false => None,
        };
        let ended = tokio::select! {
            stopped = &mut stop => stopped.map(|()| None),
            ended = running.ended() => Ok(Some(ended)),
        };
        if let Some(demo) = demo {
            demo.stop().await;
        }
        if let Some(ended) = ended? {
            return ended;
        }
        eprintln!("webbase: stopping; the same command goes on where it was");
        running.shutdown().await
    }

    /// Where it is, and what to try.
    fn welcome(&self, scheme: &str, running: &Embedded) -> Result<()> {
        let address = running.http();
        let usual = address == SocketAddr::from(([127, 0, 0, 1], USUAL_PORT)) && scheme == "http";
        let server = if usual { String::new() } else { format!(" --server {scheme}://{address}") };
        let program = program();
        let example = match self.demo {
            true => format!("{program} get {}{server}", demo::world().0.url(0)),
            false => format!("{program} import FILE.warc.gz{server}"),
        };
        let text = format!(
            "webbase: the console is at {scheme}://{address}/ (folder {}, management server at {})\n  \
             {program} status{server}\n  \
             {example}\n  \
             {program} stream --format count{server}\n",
            self.dir.display(),
            running.management(),
        );
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to stdout")
    }
}

/// Waits until the console is there: who is told where it is may look at once.
async fn answers(address: SocketAddr) -> Result<()> {
    let asking = async {
        let mut socket = TcpStream::connect(address).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(CONSOLE_LIMIT, asking).await.context("it takes too long")??;
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    ensure!(line == b"HTTP/1.1 200 OK", "it says {:?}", String::from_utf8_lossy(line));
    Ok(())
}

/// The program as whoever started it can start it again: `cargo run` has it in a folder that is in no path.
fn program() -> String {
    let own = std::env::args().next().filter(|own| own.contains('/') && !own.contains(char::is_whitespace));
    own.unwrap_or_else(|| "webbase".into())
}
