//! One file a subcommand, and what they share: how to reach a repository, how to serve until told to stop.

pub(crate) mod backup;
mod bytes_progress;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod crawl;
pub(crate) mod cycle;
pub(crate) mod drain;
pub(crate) mod export_site;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod keys;
pub(crate) mod mgmt;
pub(crate) mod node;
pub(crate) mod progress;
pub(crate) mod rank;
pub(crate) mod remove_lost;
pub(crate) mod restore;
pub(crate) mod schedule;
pub(crate) mod status;
pub(crate) mod stream;
mod stream_warc;
pub(crate) mod up;
pub(crate) mod verify;

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use webbase::keys::Keys;
use webbase_node::cycle::message::NodeId;
use webbase_node::{Cluster, ClusterSettings};

/// Where a repository is.
#[derive(clap::Args)]
pub(crate) struct Repository {
    /// Where the management server listens.
    #[arg(long, value_name = "ADDR", env = "WEBBASE_MGMT", default_value = "127.0.0.1:7701")]
    mgmt: SocketAddr,
    #[command(flatten)]
    keys: Keys,
}

impl Repository {
    pub(crate) async fn connect(&self) -> Result<Cluster> {
        let mut settings = ClusterSettings::default();
        self.keys.client(&mut settings.client)?;
        let connecting = Cluster::connect(self.mgmt, settings);
        connecting.await.with_context(|| format!("no repository at {}", self.mgmt))
    }
}

/// A node's name as `status` prints it.
pub(crate) fn node_id(text: &str) -> Result<NodeId, String> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let id = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    id.map(NodeId)
        .ok_or_else(|| "a node is named by 16 hexadecimal digits, as `webbase status` prints them".into())
}

/// Says on stdout, in one line, that the service can be used: whoever started it waits for this.
pub(crate) fn ready(address: SocketAddr) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {address}").and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Waits until somebody wants the program to end.
pub(crate) async fn told_to_stop() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// A value given by a flag, in place of the default.
pub(crate) fn set<T>(setting: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *setting = value;
    }
}
