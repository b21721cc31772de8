//! `webbase node`: one node.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use webbase::keys::Keys;
use webbase_node::{ConnectionThreads, Host, HostOptions, Role};
use webbase_storage::Organization;

use crate::config::ConfigFile;

use super::{ready, set, told_to_stop};

/// How long requests under way may take when the node is told to end.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Run a node: it keeps pages of the repository that the management server knows.
///
/// Prints "listening on ADDR" when it can be used; ends in good order on SIGTERM and SIGINT. It waits for a management
/// server that is not there yet.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase node --dir /srv/u1 --mgmt 127.0.0.1:7701 --role update
  webbase node --dir /srv/r1 --mgmt 127.0.0.1:7701 --role read --organization hash --capacity 500GB")]
pub(crate) struct Node {
    /// Its folder; an empty one makes a new node.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen; with port 0 the system chooses, anew at each start.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where others reach it, if that is another address than the one it listens on (0.0.0.0, say).
    #[arg(long, value_name = "ADDR")]
    advertise: Option<SocketAddr>,
    /// Where the management server listens.
    #[arg(long, value_name = "ADDR", env = "WEBBASE_MGMT", default_value = "127.0.0.1:7701")]
    mgmt: SocketAddr,
    /// update takes new pages, read serves them, both does both in stores of their own. Fixed with the first start.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Role,
    /// How pages lie on disk: log, hash or hashed-log. Fixed with the first start.
    #[arg(long, value_name = "ORGANIZATION", default_value = "log")]
    organization: Organization,
    /// What a store may occupy on disk, such as 500GB; without it the whole disk.
    #[arg(long, value_name = "BYTES")]
    capacity: Option<bytesize::ByteSize>,
    /// Threads that serve connections; half of the cores by default. More pay where clients have machines of their own.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    _config: ConfigFile,
    /// How often it gives a sign of life.
    #[arg(long, hide = true)]
    heartbeat_ms: Option<u64>,
    /// How long it waits for other nodes.
    #[arg(long, hide = true)]
    answer_ms: Option<u64>,
    /// How fast it reads its pages through, again and again, to find damage; 0 for not at all.
    #[arg(long, value_name = "BYTES_PER_S")]
    scrub: Option<u64>,
    /// How long it rests when it has read them all.
    #[arg(long, hide = true)]
    scrub_pause_ms: Option<u64>,
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "update" => Ok(Role::Update),
        "read" => Ok(Role::Read),
        "both" => Ok(Role::Both),
        _ => Err("a role is update, read or both".into()),
    }
}

impl Node {
    pub(crate) async fn run(self) -> Result<()> {
        let dir = self.dir.display().to_string();
        let mut options = HostOptions::new(self.dir, self.listen, self.mgmt, self.role);
        options.organization = self.organization;
        options.storage.capacity_bytes = self.capacity.map(|size| size.as_u64());
        options.advertise = self.advertise;
        // Lookups are small: whoever reads a request answers it.
        options.server.connection_threads =
            self.threads.map_or_else(ConnectionThreads::advised, NonZeroUsize::get);
        self.keys.server(&mut options.server)?;
        self.keys.client(&mut options.client)?;
        set(&mut options.heartbeat, self.heartbeat_ms.map(Duration::from_millis));
        set(&mut options.client.answer, self.answer_ms.map(Duration::from_millis));
        set(&mut options.scrub.bytes_per_s, self.scrub);
        set(&mut options.scrub.pause, self.scrub_pause_ms.map(Duration::from_millis));
        let stop = told_to_stop();
        tokio::pin!(stop);
        let host = tokio::select! {
            stopped = &mut stop => return stopped,
            host = Host::start(options) => host.with_context(|| format!("cannot run in {dir}"))?,
        };
        ready(host.address().context("the node does not listen")?)?;
        stop.await?;
        ensure!(host.shutdown(SHUTDOWN).await, "requests were cut off, or the stores in {dir} are not tidy");
        Ok(())
    }
}
