//! A small repository in this process, so that the examples run without one: a management server, an update node, a read node.

use std::path::Path;
use std::time::Duration;

use webbase_mgmt_server::{ManagementServer, ServerOptions};
use webbase_node::{Host, HostOptions, Role};
use webbase_storage::Page;
use webbase_stream::Repository;

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A repository that ends with this.
pub(crate) struct Demo {
    pub(crate) repository: Repository,
    _nodes: Vec<Host>,
    _server: ManagementServer,
}

impl Demo {
    /// Starts one in a folder.
    pub(crate) async fn start(dir: &Path) -> Result<Demo, Failed> {
        let mut options = ServerOptions::new(dir.join("mgmt"), "127.0.0.1:0".parse()?);
        options.range_bits = 4;
        let server = ManagementServer::start(options).await?;
        let mut nodes = Vec::new();
        for (name, role) in [("update", Role::Update), ("read", Role::Read)] {
            let mut options =
                HostOptions::new(dir.join(name), "127.0.0.1:0".parse()?, server.address(), role);
            options.heartbeat = Duration::from_millis(100);
            nodes.push(Host::start(options).await?);
        }
        let repository = Repository::connect(server.address()).await?;
        while repository.cluster().status().await?.nodes.len() < nodes.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Demo { repository, _nodes: nodes, _server: server })
    }

    /// Adds some pages, and makes them visible.
    #[allow(dead_code, reason = "not every example fills a repository")]
    pub(crate) async fn fill(&self) -> Result<(), Failed> {
        let texts: Vec<(String, String)> = (0..200)
            .map(|n| {
                let body = format!(
                    "<title>Page {n}</title><p>The quick brown fox number {n} jumps over the lazy dog.</p>{}",
                    if n % 10 == 0 { "<p>Every tenth page has a zebra.</p>" } else { "" }
                );
                (format!("http://site{}.example/{n}.html", n % 7), body)
            })
            .collect();
        let pages: Vec<Page<'_>> = texts
            .iter()
            .map(|(url, body)| Page {
                url,
                body: body.as_bytes(),
                mime: "text/html",
                fetched_at_ms: 1_700_000_000_000,
                ..Page::default()
            })
            .collect();
        self.repository.cluster().add(&pages).await?.all()?;
        self.repository.cluster().cycle(|_| {}).await?;
        Ok(())
    }
}
