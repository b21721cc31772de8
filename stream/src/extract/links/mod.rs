//! The links of a page, whatever it is: HTML, XML, a feed, a redirect.
//!
//! ```text
//!   HTML   a, area, frames, meta refresh, link rel=canonical, alternate, next, …; images, srcset, scripts, styles as resources
//!   XML    XLink and any other href, RSS and Atom, XInclude, stylesheets, DTDs, external entities and schemas, and URLs that
//!          stand as text where feeds, sitemaps and the like have them
//!   HTTP   the target of a redirect
//! ```
//!
//! 1. Nothing fails: what is broken gives the links that can still be made out.
//! 2. A link is resolved against the page's `base` (or the nearest `xml:base`), its query written in the page's character set as
//!    browsers do, its fragment dropped. Links within the page, and what is not fetched by HTTP, are none.
//! 3. Each URL comes once, in the order of the page, and at most [`LINKS_MAX`] of them: the link matrix has room for no more.
//! 4. That somebody asks not to follow a link is noted: on the link (`rel=nofollow`, `ugc`, `sponsored`), in the page (`meta
//!    name=robots`) or by its server (`X-Robots-Tag`). What that means is for others to say.

mod html;
mod plain;
mod resolve;
#[cfg(test)]
mod tests;
mod xml;

use url::Url;

use self::resolve::Resolver;
use super::Content;

/// More links of one page are not looked at.
pub const LINKS_MAX: usize = 65_534;

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// To another page, by itself.
    Page,
    /// Something shown or included in the page: a frame, an XInclude.
    Frame,
    /// Where the page, or its server, sends its readers.
    Redirect,
    /// The name that the page prefers for itself.
    Canonical,
    /// A relative of the page: its feed, its translation, the next of a series.
    Related,
    /// What describes the page's form: a DTD, a schema, an external entity.
    Dtd,
    /// An image, a script, a stylesheet: part of the page, and none itself.
    Resource,
}

impl LinkKind {
    /// Whether it leads to a page, which may have links itself.
    pub fn is_page(self) -> bool {
        self != LinkKind::Resource
    }
}

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it leads, without fragment.
    pub url: Url,
    /// What it is, where it is met first.
    pub kind: LinkKind,
    /// Whether the page asks not to follow it, wherever it is met.
    pub nofollow: bool,
}

/// The links of a page, in its order, each once.
pub fn links(page: &Content<'_>) -> Vec<Link> {
    gather(page, false)
}

/// The links of a page that lead to pages ([`LinkKind::is_page`]), in its order, each once. What the page is made of is not even looked
/// at, which is why this takes less time than leaving it out of [`links()`].
pub fn page_links(page: &Content<'_>) -> Vec<Link> {
    gather(page, true)
}

fn gather(page: &Content<'_>, pages_only: bool) -> Vec<Link> {
    let Ok(url) = Url::parse(page.url()) else { return Vec::new() };
    let mut found = Resolver::new(url, page, pages_only);
    if (300..400).contains(&page.status())
        && let Some(to) = page.header("location")
    {
        found.add(to, LinkKind::Redirect, false);
    }
    if page.is_html() {
        html::gather(page.text(), &mut found);
    } else if page.is_xml() {
        xml::gather(page.text(), &mut found);
    }
    let asks = page.header("x-robots-tag").is_some_and(says_nofollow);
    found.finish(asks)
}

/// Whether the value of a robots tag says that links are not to be followed.
fn says_nofollow(robots: &str) -> bool {
    let mut words = robots.split(|c: char| !c.is_ascii_alphabetic());
    words.any(|word| word.eq_ignore_ascii_case("nofollow") || word.eq_ignore_ascii_case("none"))
}
