//! A repository for consumers: pages by URL, streams, adds.
//!
//! `webbase_node::Cluster` finds the nodes, holds leases, fails over and merges; it speaks of keys, records and generations.
//! Here is what a program wants that has URLs and reads pages: lookups that give pages, streams that are `futures` streams,
//! adds that gather batches by themselves.

use std::net::SocketAddr;

use webbase_node::wire::spec::StreamSpec;
use webbase_node::{Cluster, ClusterSettings, How, Result, StreamCursor};

use crate::add::PageAdder;
use crate::page::StoredPage;
use crate::page_stream::RecordStream;

/// A repository. Clones share everything.
#[derive(Clone)]
pub struct Repository {
    cluster: Cluster,
}

impl From<Cluster> for Repository {
    fn from(cluster: Cluster) -> Repository {
        Repository { cluster }
    }
}

impl Repository {
    /// Connects to a repository's management server, with the usual settings. For others make a [`Cluster`] first.
    ///
    /// # Errors
    /// When the management server cannot be reached.
    pub async fn connect(management: SocketAddr) -> Result<Repository> {
        Ok(Cluster::connect(management, ClusterSettings::default()).await?.into())
    }

    /// What it stands on, for whatever is not said here.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The page of a URL, however that is spelled.
    ///
    /// # Errors
    /// When it is no URL, no node of its range answers within the limit, or the page is damaged at all of them.
    pub async fn lookup(&self, url: &str) -> Result<Option<StoredPage>> {
        let found = self.cluster.lookup_url(url).await?.pages;
        found.map(|record| self.unpack(&record)).transpose()
    }

    /// The pages of many URLs, in their order, all of one generation. What is no URL, or cannot be read, fails by itself.
    ///
    /// # Errors
    /// When nothing can be read at all.
    pub async fn lookup_many(&self, urls: &[&str]) -> Result<Vec<Result<Option<StoredPage>>>> {
        let keys: Vec<_> = urls.iter().map(|url| self.cluster.page_key(url)).collect();
        let good: Vec<_> = keys.iter().filter_map(|key| key.as_ref().ok().copied()).collect();
        let mut found = self.cluster.lookup_many(&good).await?.pages.into_iter();
        let page = |key: Result<_>| {
            key?;
            let record = found.next().unwrap_or(Ok(None))?;
            record.map(|record| self.unpack(&record)).transpose()
        };
        Ok(keys.into_iter().map(page).collect())
    }

    /// Streams what a specification names, as records: as they are stored, which is fastest. [`RecordStream::pages`] unpacks
    /// them, [`RecordStream::batches`] gives many at a time.
    ///
    /// # Errors
    /// As [`Cluster::select`].
    pub async fn stream(&self, spec: StreamSpec) -> Result<RecordStream> {
        self.stream_how(spec, How::default()).await
    }

    /// As [`Repository::stream`], sharing scans with others or reading past the nodes' page caches.
    ///
    /// # Errors
    /// As [`Cluster::select`].
    pub async fn stream_how(&self, spec: StreamSpec, how: How) -> Result<RecordStream> {
        Ok(RecordStream::new(self.cluster.select(spec, how).await?, self.cluster.dictionaries().clone()))
    }

    /// Goes on behind a cursor: exactly the pages that were not taken follow.
    ///
    /// # Errors
    /// As [`Cluster::resume`]: when the generation is gone it says so, and [`Repository::go_on`] is the choice that is left.
    pub async fn resume(&self, cursor: &StreamCursor) -> Result<RecordStream> {
        Ok(RecordStream::new(self.cluster.resume(cursor).await?, self.cluster.dictionaries().clone()))
    }

    /// As [`Repository::resume`], in the current generation if the cursor's is gone.
    ///
    /// # Errors
    /// As [`Cluster::go_on`].
    pub async fn go_on(&self, cursor: &StreamCursor) -> Result<RecordStream> {
        Ok(RecordStream::new(self.cluster.go_on(cursor).await?, self.cluster.dictionaries().clone()))
    }

    /// Takes pages, for crawlers and copies.
    pub fn adder(&self) -> PageAdder {
        PageAdder::new(self.cluster.clone())
    }

    fn unpack(&self, record: &webbase_storage::Record) -> Result<StoredPage> {
        Ok(StoredPage::unpack(record, self.cluster.dictionaries())?)
    }
}
