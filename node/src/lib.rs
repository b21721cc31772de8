//! One page store as a server: the wire protocol, the node server and the node client.
//!
//! [`Server`] serves a [`Service`] (the pages of a store, or whatever implements [`Pages`], and control calls) on one TCP
//! port; [`Client`] asks over one connection, many requests at once. `PROTOCOL.md` has the protocol.
//!
//! ```
//! use webbase_node::{Client, ClientSettings, Server, Service, Settings};
//! use webbase_storage::{Options, Organization, Page, RepositoryKey, create, open};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path();
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! create(dir, Organization::Log, RepositoryKey::random()?, &Options::default())?;
//! let store = open(dir, &Options::default())?;
//! let server = Server::start("127.0.0.1:0".parse()?, Service::of_store(store), Settings::default()).await?;
//!
//! let client = Client::connect(server.address(), ClientSettings::default()).await?;
//! let mut add = client.add_pages()?;
//! add.page(&Page { url: "http://example.org/", body: b"<p>hello", ..Page::default() }).await?;
//! assert_eq!(add.finish().await?.added.new, 1); // durable from here on
//! let record = client.lookup_url(0, "http://example.org/").await?.expect("it was just added");
//! assert_eq!(&record.body(client.dictionaries())?[..], b"<p>hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok(())
//! # }
//! ```

mod background;
mod client;
mod cluster;
mod connection_threads;
mod control;
pub mod cycle;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod host;
mod importance;
pub mod link;
mod management;
pub mod plan;
mod security;
mod server;
mod sort;
pub mod wire;

pub use client::{
    Acknowledged, AddPages, AddRecords, Client, ClientSettings, Listing, PageReader, Select, StreamRequest,
};
pub use cluster::{
    Adds, Cluster, ClusterSettings, ClusterStream, Found, How, NearNode, PublishImportance, StreamCursor,
    UrlCount, UrlReader,
};
pub use connection_threads::ConnectionThreads;
pub use control::{Control, ControlReceiver, ControlSender, MESSAGE_BYTES_MAX};
pub use error::{NodeError, Result, Retry};
pub use host::{EPOCH, Host, HostOptions, Role, Scrub};
pub use importance::{Importance, Importances};
pub use management::{LIST_MAX, Management};
#[cfg(feature = "tls")]
pub use security::{ClientTls, ServerTls};
pub use security::{Token, check_listen};
pub use server::{
    AcceptControl, Answer, Load, NotAdded, Pages, Places, Server, Service, Settings, StorePages,
};
pub use wire::Limits;
