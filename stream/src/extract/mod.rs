//! One scan, many handlers: each page of a stream is unpacked and decoded once, and every handler that wants it sees it.
//!
//! ```text
//!   stream ─▶ batches of records ─▶ as many threads as there are cores ─▶ unpack, decode ─▶ handler, handler, …
//! ```
//!
//! 1. A page comes to each handler once, whole, on one of several threads, in no order.
//! 2. Pages are foreign: nothing here fails because a page is broken. What a page does not have it does not give.
//! 3. The stream waits for the handlers: what is read ahead is bounded.
//!
//! Provided are [`title()`], [`text()`], [`dates()`], [`links()`] and [`page_links()`]; a handler that wants them calls them:
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use webbase_stream::extract::{Content, Handler, Handlers, dates, title};
//!
//! let titles = Arc::new(Mutex::new(Vec::new()));
//! let gathered = titles.clone();
//! let handler = move |page: &Content<'_>| {
//!     gathered.lock().unwrap().push((page.url().to_owned(), title(page), dates(page).published_ms));
//! };
//! let handlers = Handlers::new().with(Arc::new(handler)); // and more of them
//! // handlers.run(stream, dictionaries).await?;
//! # let page = webbase_storage::Page { mime: "text/html", body: b"<title>t</title>", ..Default::default() };
//! # let handler = |page: &Content<'_>| assert_eq!(title(page).as_deref(), Some("t"));
//! # handler.page(&Content::of_page(&page));
//! # drop(handlers);
//! ```

mod charset;
mod content;
mod dates;
mod handlers;
mod html;
mod links;
mod text;
mod title;

use webbase_storage::RecordRef;

pub use self::content::Content;
pub use self::dates::{Dates, dates};
pub use self::handlers::{Handlers, Looked};
pub use self::links::{LINKS_MAX, Link, LinkKind, links, page_links};
pub use self::text::text;
pub use self::title::title;

/// Looks at pages. Threads share it, so what it gathers is behind a lock, an atomic or a channel of its own.
pub trait Handler: Send + Sync {
    /// Whether it wants a page, judged by the record alone: a page that no handler wants is not even unpacked.
    fn wants(&self, record: &RecordRef<'_>) -> bool {
        let _ = record;
        true
    }

    /// Looks at a page that it wants.
    fn page(&self, page: &Content<'_>);
}

impl<F: Fn(&Content<'_>) + Send + Sync> Handler for F {
    fn page(&self, page: &Content<'_>) {
        self(page);
    }
}
