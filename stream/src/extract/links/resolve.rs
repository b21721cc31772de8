//! From what stands in a page to URLs: resolved, each once, bounded.

use std::borrow::Cow;
use std::collections::HashMap;

use encoding_rs::Encoding;
use url::Url;

use super::{LINKS_MAX, Link, LinkKind};
use crate::extract::Content;

/// A longer URL is a trap.
const URL_BYTES_MAX: usize = 2048;

/// Room for so many links of a page is made at once, at most.
const ROOM_MAX: usize = 256;

/// Takes links as they are met.
pub(super) struct Resolver {
    base: Url,
    /// What queries are written in, where that is not UTF-8.
    encoding: Option<&'static Encoding>,
    links: Vec<Link>,
    /// Whether only links to pages are taken.
    pages_only: bool,
    /// Where among the links a URL is.
    places: HashMap<Box<str>, usize>,
    /// Where among them something is that stood in the page; most of what stands there stands there twice.
    met: HashMap<Box<str>, Option<usize>>,
}

impl Resolver {
    pub(super) fn new(url: Url, page: &Content<'_>, pages_only: bool) -> Resolver {
        let encoding = page.encoding().output_encoding();
        let encoding = Some(encoding).filter(|encoding| *encoding != encoding_rs::UTF_8);
        let (places, met) = (HashMap::new(), HashMap::new());
        Resolver { base: url, encoding, links: Vec::new(), pages_only, places, met }
    }

    /// Whether only links to pages are taken.
    pub(super) fn pages_only(&self) -> bool {
        self.pages_only
    }

    /// What links are relative to from now on.
    pub(super) fn set_base(&mut self, base: Url) {
        self.base = base;
        self.met.clear();
    }

    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    /// The URL that `href` is relative to the base.
    pub(super) fn join(&self, href: &str) -> Option<Url> {
        let options = Url::options().base_url(Some(&self.base));
        match self.encoding {
            None => options.parse(href).ok(),
            Some(encoding) => options.encoding_override(Some(&encoder(encoding))).parse(href).ok(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.links.len() >= LINKS_MAX
    }

    /// Takes a link.
    pub(super) fn add(&mut self, href: &str, kind: LinkKind, nofollow: bool) {
        let Some(href) = self.usable(href, kind) else { return };
        match self.met.get(href).copied() {
            Some(place) => self.meet_again(place, nofollow),
            None => {
                let place = self.place(href, kind, nofollow);
                self.met.insert(href.into(), place);
            }
        }
    }

    /// Takes many links. They outlive the call, so that remembering them takes no copies.
    pub(super) fn add_all<'p>(&mut self, all: impl ExactSizeIterator<Item = (&'p str, LinkKind, bool)>) {
        let room = all.len().min(ROOM_MAX);
        self.links.reserve(room);
        self.places.reserve(room);
        let mut met = HashMap::with_capacity(room);
        for (href, kind, nofollow) in all {
            let Some(href) = self.usable(href, kind) else { continue };
            match met.get(href).copied() {
                Some(place) => self.meet_again(place, nofollow),
                None => {
                    met.insert(href, self.place(href, kind, nofollow));
                }
            }
        }
    }

    /// What there is to resolve of something, if it may be a link.
    fn usable<'p>(&self, href: &'p str, kind: LinkKind) -> Option<&'p str> {
        let href = href.trim_matches(|c: char| c <= ' ');
        let href = href.split('#').next().unwrap_or(href);
        // A place in the page is no link, and what is much too long is never one.
        let may_be = !self.is_full() && !href.is_empty() && href.len() <= 4 * URL_BYTES_MAX;
        Some(href).filter(|_| may_be && (kind.is_page() || !self.pages_only))
    }

    /// What was met before stands in the page once more.
    fn meet_again(&mut self, place: Option<usize>, nofollow: bool) {
        if let Some(link) = place.and_then(|place| self.links.get_mut(place)) {
            link.nofollow &= nofollow;
        }
    }

    /// Where among the links something is that was not met before; none where it is no link.
    fn place(&mut self, href: &str, kind: LinkKind, nofollow: bool) -> Option<usize> {
        let url = self.join(href)?;
        if !matches!(url.scheme(), "http" | "https") || url.as_str().len() > URL_BYTES_MAX {
            return None;
        }
        if let Some(place) = self.places.get(url.as_str()).copied() {
            self.meet_again(Some(place), nofollow);
            return Some(place);
        }
        let place = self.links.len();
        self.places.insert(url.as_str().into(), place);
        self.links.push(Link { url, kind, nofollow });
        Some(place)
    }

    /// All links; `nofollow` is what the page says of all of them.
    pub(super) fn finish(mut self, nofollow: bool) -> Vec<Link> {
        self.links.iter_mut().for_each(|link| link.nofollow |= nofollow);
        self.links
    }

    /// The page asks not to follow any of its links.
    pub(super) fn follow_none(&mut self) {
        self.links.iter_mut().for_each(|link| link.nofollow = true);
    }
}

/// Writes text in a character set, as a URL's parser wants it done.
fn encoder(encoding: &'static Encoding) -> impl Fn(&str) -> Cow<'_, [u8]> {
    move |text| encoding.encode(text).0
}
