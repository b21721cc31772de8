//! A whole repository as one client: it knows the management server's address and finds the nodes by itself.
//!
//! ```text
//!   add     ─▶ add plan  ─▶ each page to all update nodes of its range; acknowledged when durable on all of them
//!   lookup  ─▶ read plan ─▶ one read node of the page's range; another one when it fails
//!   stream  ─▶ lease     ─▶ each range from exactly one read node, all at once, into one bounded queue
//! ```
//!
//! 1. All answers of one request are of one generation, and that is told. With incremental update there are no
//!    generations for readers: plans name `LIVE`, and nodes show what they have, acknowledged a moment ago or long ago.
//! 2. A page that was acknowledged is durable on every update node that its plan names. One that was not is named.
//! 3. A node that fails is asked last for a while; nothing waits for it as long as another one has the same. Before it come
//!    those that are busy.
//! 4. Everything ends within a time limit, with an error that says what is missing.

mod add;
mod connections;
mod cursor;
mod cycle;
mod everywhere;
mod expiry;
mod importance;
mod lookup;
mod near;
mod ordered;
mod packing;
mod plans;
mod progress;
mod share;
mod stream;
mod urls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use webbase_storage::{Compression, Dictionaries, PageKey, RepositoryKey};

pub use self::add::Adds;
pub use self::cursor::{How, StreamCursor};
pub use self::importance::PublishImportance;
pub use self::lookup::Found;
pub use self::near::NearNode;
pub use self::stream::ClusterStream;
pub use self::urls::{UrlCount, UrlReader};

use self::connections::Connections;
use self::near::Near;
use self::packing::Packing;
use self::plans::Plans;
use crate::client::ClientSettings;
use crate::cycle::message::{NodeId, Removal, SeenAgain};
use crate::error::Result;
use crate::management::Management;
use crate::plan::{Repository, Status, Update};

/// Settings of a repository's client.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// For every connection, to nodes and to the management server.
    pub client: ClientSettings,
    /// One try of a lookup, before another node is asked.
    pub attempt: Duration,
    /// A lookup with all its tries; a stream without any node for a part of it.
    pub read_limit: Duration,
    /// An add with all its tries.
    pub add_limit: Duration,
    /// How often a new read plan is fetched.
    pub refresh: Duration,
    /// How long a node that failed is asked last.
    pub avoid: Duration,
    /// How pages are packed before they are sent.
    pub compression: Compression,
    /// Bytes of pages of a stream that wait to be taken.
    pub queue_bytes: usize,
    /// Pages of which a stream remembers that it delivered them, so that another node can go on where one failed, 16 bytes
    /// and some each. It is needed only between nodes whose pages are in different orders, such as a log and a hash store.
    /// With more pages the part of a failed node goes on at one of the same order, or ends with an error.
    pub remembered_max: usize,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        ClusterSettings {
            client: ClientSettings { answer: Duration::from_secs(10), ..ClientSettings::default() },
            attempt: Duration::from_secs(2),
            read_limit: Duration::from_secs(20),
            add_limit: Duration::from_secs(60),
            refresh: Duration::from_secs(1),
            avoid: Duration::from_secs(3),
            compression: Compression::default(),
            queue_bytes: 16 << 20,
            remembered_max: 4 << 20,
        }
    }
}

struct Inner {
    settings: ClusterSettings,
    management: Management,
    repository: Repository,
    key: RepositoryKey,
    connections: Arc<Connections>,
    plans: Arc<Plans>,
    near: Near,
    packing: Packing,
    /// Counts pages that may go to any update nodes.
    turn: AtomicUsize,
}

/// A repository. Clones share everything.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

impl Cluster {
    /// Connects to the management server and asks what the repository is. Nodes are connected to when they are needed.
    ///
    /// # Errors
    /// When the management server cannot be reached.
    pub async fn connect(management: SocketAddr, settings: ClusterSettings) -> Result<Cluster> {
        let management = Management::connect(management, settings.client.clone()).await?;
        let repository = management.repository().await?;
        let key = repository.repository_key();
        let mut to_nodes = settings.client.clone();
        to_nodes.repository = Some(key.fingerprint());
        let connections = Arc::new(Connections::new(to_nodes, settings.avoid));
        let plans = Plans::start(management.clone(), connections.clone(), settings.refresh);
        let (near, packing, turn) = (Near::default(), Packing::default(), AtomicUsize::new(0));
        let inner = Inner { settings, management, repository, key, connections, plans, near, packing, turn };
        Ok(Cluster { inner: Arc::new(inner) })
    }

    /// What the repository is.
    pub fn repository(&self) -> &Repository {
        &self.inner.repository
    }

    fn is_incremental(&self) -> bool {
        self.inner.repository.update == Update::Incremental
    }

    /// The dictionaries that records need.
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.inner.settings.client.dictionaries
    }

    /// The management server, for what has no shape of its own here.
    pub fn management(&self) -> &Management {
        &self.inner.management
    }

    /// The name of a URL's page.
    ///
    /// # Errors
    /// When it is no URL.
    pub fn page_key(&self, url: &str) -> Result<PageKey> {
        Ok(self.inner.key.page_key(url).map_err(webbase_storage::StorageError::from)?)
    }

    /// Reads with a new plan from now on. With incremental update whatever was acknowledged before this is found after it,
    /// whoever added it; what this client added is found without it.
    ///
    /// # Errors
    /// When the management server does not answer.
    pub async fn refresh(&self) -> Result<()> {
        self.inner.plans.newer_than(tokio::time::Instant::now()).await.map(drop)
    }

    /// How things stand.
    ///
    /// # Errors
    /// When the management server does not answer.
    pub async fn status(&self) -> Result<Status> {
        self.inner.management.status().await
    }

    /// Removes pages in the next cycle.
    ///
    /// # Errors
    /// When the management server refuses or does not answer.
    pub async fn remove(&self, pages: &[Removal]) -> Result<()> {
        self.inner.management.remove(pages).await
    }

    /// Says that the crawler was given these pages to look at.
    ///
    /// # Errors
    /// As for [`Cluster::remove`].
    pub async fn due(&self, pages: &[Removal]) -> Result<()> {
        self.inner.management.due(pages).await
    }

    /// Says that the crawler saw these pages again, or could not verify them. For those that a running cycle removes
    /// already this comes too late, which is no error: whoever wants them back adds them, see [`Cluster::seen_late`].
    ///
    /// # Errors
    /// As for [`Cluster::remove`].
    pub async fn seen(&self, pages: &[SeenAgain]) -> Result<()> {
        self.seen_late(pages).await.map(drop)
    }

    /// As [`Cluster::seen`]; returns the pages for which it came too late.
    ///
    /// # Errors
    /// As for [`Cluster::remove`].
    pub async fn seen_late(&self, pages: &[SeenAgain]) -> Result<Vec<PageKey>> {
        self.inner.management.seen(pages).await
    }

    /// Has everything moved off a node, which then leaves.
    ///
    /// # Errors
    /// As for [`Cluster::remove`].
    pub async fn drain(&self, node: NodeId) -> Result<()> {
        self.inner.management.drain(node).await
    }

    /// Gives up a node that is down and will not return.
    ///
    /// # Errors
    /// As for [`Cluster::remove`].
    pub async fn remove_lost(&self, node: NodeId) -> Result<()> {
        self.inner.management.remove_lost(node).await
    }
}
