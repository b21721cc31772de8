//! `webbase mgmt`: the management server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use webbase::gateway;
use webbase::keys::Keys;
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions, Update};
use webbase_node::{Cluster, ClusterSettings};

use crate::config::ConfigFile;

use super::{ready, set, told_to_stop};

/// Run the management server: it knows all nodes, and runs the cycles. Pages never pass through it.
///
/// Prints "listening on ADDR" when it can be used, and with --http also "http on ADDR"; ends in good order on SIGTERM and SIGINT.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase mgmt --dir /srv/mgmt --listen 127.0.0.1:7701 --http 127.0.0.1:7700 --replicas 2")]
pub(crate) struct Mgmt {
    /// Its folder; a new repository is made in an empty one.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen; with port 0 the system chooses.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7701")]
    listen: SocketAddr,
    /// Where to serve HTTP, if at all; with port 0 the system chooses.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// On how many nodes of each role a page lies. Counts when the repository is made.
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// The pages are cut into 2^B ranges, which are given to nodes. Counts when the repository is made.
    #[arg(long, value_name = "B", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=16))]
    range_bits: u8,
    /// How pages come to nodes: "hash", by their ids, which every client can compute; or "uniform", to any node that has room and
    /// little to do, which this server notes in an index. Counts when the repository is made.
    #[arg(long, value_name = "hash|uniform", default_value = "hash", value_parser = distribution)]
    distribution: Distribution,
    /// How pages come to update nodes, if not as to read nodes: "hash", all versions of a page to the same; or "uniform", each to any
    /// that are up and have little to do. Not with incremental update. Counts when the repository is made.
    #[arg(long, value_name = "hash|uniform", value_parser = distribution)]
    update_distribution: Option<Distribution>,
    /// How pages get to readers: by cycles (batch), or at once (incremental; all nodes have the role both). Counts when the
    /// repository is made.
    #[arg(long, value_name = "batch|incremental", default_value_t = Update::Batch)]
    update: Update,
    /// Sites whose scripts may read lists and WARC files in a browser where no token is asked for, with commas between: as
    /// `https://replayweb.page`. Sites on this machine may anyway.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    allow_origin: Vec<String>,
    /// Names that the gateway may be called by where no token is asked for, with commas between, beside localhost and its address:
    /// what a proxy in front of it calls it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    _config: ConfigFile,
    #[command(flatten)]
    times: Times,
}

/// Times of the cycle, for tests.
#[derive(clap::Args)]
struct Times {
    #[arg(long, hide = true)]
    down_after_ms: Option<u64>,
    #[arg(long, hide = true)]
    resend_ms: Option<u64>,
    #[arg(long, hide = true)]
    lease_ms: Option<u64>,
    #[arg(long, hide = true)]
    seal_limit_ms: Option<u64>,
    #[arg(long, hide = true)]
    prepare_limit_ms: Option<u64>,
    #[arg(long, hide = true)]
    switch_limit_ms: Option<u64>,
    #[arg(long, hide = true)]
    begin_limit_ms: Option<u64>,
    #[arg(long, hide = true)]
    fold_bytes: Option<u64>,
    #[arg(long, hide = true)]
    fold_ms: Option<u64>,
    #[arg(long, hide = true)]
    add_limit_ms: Option<u64>,
}

fn distribution(text: &str) -> Result<Distribution, String> {
    match text {
        "hash" => Ok(Distribution::Hash),
        "uniform" => Ok(Distribution::Uniform),
        _ => Err("it is hash or uniform".into()),
    }
}

impl Mgmt {
    pub(crate) async fn run(self) -> Result<()> {
        let mut options = ServerOptions::new(&self.dir, self.listen);
        options.replicas = self.replicas;
        options.range_bits = self.range_bits;
        options.update = self.update;
        options.distribution = self.distribution;
        options.update_distribution = self.update_distribution;
        self.keys.server(&mut options.wire)?;
        self.keys.client(&mut options.client)?;
        set(&mut options.add_limit, self.times.add_limit_ms.map(Duration::from_millis));
        let settings = &mut options.settings;
        set(&mut settings.down_after_ms, self.times.down_after_ms);
        set(&mut settings.resend_ms, self.times.resend_ms);
        set(&mut settings.lease_ms, self.times.lease_ms);
        set(&mut settings.seal_limit_ms, self.times.seal_limit_ms);
        set(&mut settings.prepare_limit_ms, self.times.prepare_limit_ms);
        set(&mut settings.switch_limit_ms, self.times.switch_limit_ms);
        set(&mut settings.begin_limit_ms, self.times.begin_limit_ms);
        set(&mut settings.fold_bytes, self.times.fold_bytes);
        set(&mut settings.fold_ms, self.times.fold_ms);
        let dir = self.dir.display();
        let starting = ManagementServer::start(options);
        let mut server = starting.await.with_context(|| format!("cannot run in {dir}"))?;
        ready(server.address())?;
        let gateway = match self.http {
            None => None,
            Some(address) => {
                let mut settings = gateway::Settings::on(address);
                settings.doors.origins.clone_from(&self.allow_origin);
                settings.doors.hosts.clone_from(&self.allow_host);
                Some(serve_http(settings, &server, &self.keys).await?)
            }
        };
        tokio::select! {
            stop = told_to_stop() => stop?,
            ended = server.ended() => return ended.with_context(|| format!("cannot go on in {dir}")),
        }
        if let Some(gateway) = gateway {
            gateway.shutdown().await;
        }
        server.shutdown().await.with_context(|| format!("did not end in good order in {dir}"))
    }
}

/// Serves the repository over HTTP, as a client of its own server.
async fn serve_http(
    mut settings: gateway::Settings,
    server: &ManagementServer,
    keys: &Keys,
) -> Result<gateway::Running> {
    let mut reached = server.address();
    if reached.ip().is_unspecified() {
        reached.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let mut client = ClusterSettings::default();
    keys.client(&mut client.client)?;
    let cluster = Cluster::connect(reached, client).await?;
    keys.gateway(&mut settings)?;
    let running = gateway::start(cluster, settings).await?;
    println!("http on {}", running.address());
    Ok(running)
}
