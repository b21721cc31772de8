//! What consumers of a repository use: pages in, pages out, and what can be made of them.
//!
//! | | |
//! |---|---|
//! | [`Repository`] | lookups by URL, streams, adds |
//! | [`RecordStream`], [`PageStream`], [`BatchStream`] | many pages, as `futures` streams: records, unpacked, or many at a time |
//! | [`PageAdder`] | batched, acknowledged |
//! | [`extract`] | one scan, many handlers: titles, text, dates, links |
//! | [`http`] | stored HTTP answers: fields of their heads, bodies without codings |
//! | [`warc`] | the format in which the web-archive world hands pages over |
//!
//! What a stream sends is a [`StreamSpec`]; nodes select before they send. `examples/` has programs to begin with: counting
//! words, an inverted index, a copy of a repository.
//!
//! ```no_run
//! use webbase_stream::{Repository, StreamOrder, StreamSpec};
//!
//! # async fn run() -> webbase_node::Result<()> {
//! let repository = Repository::connect("127.0.0.1:7701".parse().expect("an address")).await?;
//! let spec = StreamSpec::all().domain("edu").mime("text/html").ordered(StreamOrder::Url);
//! let mut pages = repository.stream(spec).await?.pages();
//! while let Some(page) = pages.next().await {
//!     println!("{}", page?.url);
//! }
//! let cursor = pages.cursor()?.to_string(); // a line of text, to go on from some other day
//! # Ok(())
//! # }
//! ```

mod add;
pub mod extract;
pub mod http;
mod page;
mod page_stream;
mod repository;
pub mod warc;

pub use webbase_node::wire::message::StreamOrder;
pub use webbase_node::wire::spec::{Condition, Projection, StreamSpec};
pub use webbase_node::{How, NodeError, Result, StreamCursor};

pub use self::add::{PageAdder, PagesAdded};
pub use self::page::StoredPage;
pub use self::page_stream::{BatchStream, PageStream, RecordStream};
pub use self::repository::Repository;
