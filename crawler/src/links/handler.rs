//! From pages of a stream to their links: a handler of the streaming API.

use std::sync::mpsc::SyncSender;

use webbase_storage::url::{canonical, canonical_of};
use webbase_stream::extract::{self, Content, Handler, LinkKind};

/// A page and the pages it links to, by canonical URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PageLinks {
    /// The page.
    pub url: String,
    /// Where its links lead, in its order.
    pub links: Vec<String>,
    /// Whether it is of interest.
    pub of_interest: bool,
}

/// Says which pages are of interest: the papers' XML pages, or any other domain.
type OfInterest = dyn Fn(&Content<'_>) -> bool + Send + Sync;

/// Takes the links of pages and hands them on, on as many threads as there are; whoever takes them is waited for.
pub struct LinkHandler {
    to: SyncSender<PageLinks>,
    of_interest: Box<OfInterest>,
    /// Whether links count that their page asks not to follow.
    nofollow: bool,
}

impl LinkHandler {
    /// Hands links on to `to`; pages for which `of_interest` holds are of interest. Links that are not to be followed don't count.
    pub fn new(
        to: SyncSender<PageLinks>,
        of_interest: impl Fn(&Content<'_>) -> bool + Send + Sync + 'static,
    ) -> LinkHandler {
        LinkHandler { to, of_interest: Box::new(of_interest), nofollow: false }
    }

    /// As [`LinkHandler::new`], XML pages being of interest, as in the papers.
    pub fn xml(to: SyncSender<PageLinks>) -> LinkHandler {
        LinkHandler::new(to, |page: &Content<'_>| page.is_xml())
    }

    /// Links that are not to be followed count, too.
    #[must_use]
    pub fn with_nofollow(self) -> LinkHandler {
        LinkHandler { nofollow: true, ..self }
    }
}

/// The links of a page that count: those that lead to pages. A page that names itself as its canonical URL does not link to
/// itself by that. None if its URL is none.
pub(super) fn page_links(page: &Content<'_>, of_interest: bool, nofollow: bool) -> Option<PageLinks> {
    let url = canonical(page.url()).ok()?;
    let mut targets = Vec::new();
    for link in extract::page_links(page) {
        if link.nofollow && !nofollow {
            continue;
        }
        let Ok(target) = canonical_of(&link.url) else { continue };
        if link.kind != LinkKind::Canonical || target != url {
            targets.push(target);
        }
    }
    Some(PageLinks { url, links: targets, of_interest })
}

impl Handler for LinkHandler {
    fn page(&self, page: &Content<'_>) {
        if let Some(page) = page_links(page, (self.of_interest)(page), self.nofollow) {
            // Whoever took them has ended, and says why.
            let _ = self.to.send(page);
        }
    }
}
