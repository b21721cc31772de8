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

/// Bytes as a page, by each of the kinds that are looked into: what is found is bounded by what there is.
#[cfg(any(fuzzing, test))]
pub fn fuzz(bytes: &[u8]) {
    for mime in ["text/html", "application/xml", "application/rss+xml", "text/plain", ""] {
        let page =
            webbase_storage::Page { url: "http://a.example/b", mime, body: bytes, ..Default::default() };
        let content = Content::of_page(&page);
        let _ = (title(&content), text(&content), dates(&content));
        assert!(links(&content).len() <= LINKS_MAX);
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &[u8] = b"<!doctype html><meta charset=utf-16><base href=/x/><title>a &amp; b</title><script>'<a href=c>'</script>\
        <a href='d?e#f'>g</a><time datetime=2020-01-02T03:04:05Z></time><img srcset='h 1x, i 2x'><link rel=canonical href=j>";

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_pages_harm_nobody(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz(&data);
        }

        #[test]
        fn damaged_pages_harm_nobody(at in any::<usize>(), mask in any::<u8>(), cut in 0..PAGE.len()) {
            let mut data = PAGE.to_vec();
            data[at % PAGE.len()] ^= mask;
            fuzz(&data);
            data.truncate(cut);
            fuzz(&data);
        }
    }
}
