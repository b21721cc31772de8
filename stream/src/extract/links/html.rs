//! Links of HTML. Tags are tokenized as browsers do; only those that can have links are looked into, so the rest costs little.

use std::cell::RefCell;

use lol_html::html_content::{Element, TextChunk};
use lol_html::{HtmlRewriter, Settings, element, text};

use super::resolve::Resolver;
use super::{LinkKind, says_nofollow};

/// Relations of a page to pages; what other relations name is part of the page, or nothing that is read.
const RELATED: [&str; 26] = [
    "alternate",
    "amphtml",
    "appendix",
    "archives",
    "author",
    "bookmark",
    "chapter",
    "contents",
    "copyright",
    "first",
    "glossary",
    "help",
    "home",
    "index",
    "last",
    "license",
    "me",
    "next",
    "prev",
    "previous",
    "search",
    "section",
    "shortlink",
    "start",
    "subsection",
    "up",
];
/// Relations that name hosts, not documents.
const HOSTS: [&str; 3] = ["dns-prefetch", "preconnect", "pingback"];
/// `noscript` is text to a browser that runs scripts; what is in it is gone through once more.
const NESTED_MAX: u32 = 2;
/// Links are kept as they stand until the whole page was seen, because `base` may come late; so many of them at most.
const RAW_MAX: usize = 4 * super::LINKS_MAX;

/// A link as it stands in the page.
struct Raw {
    href: String,
    kind: LinkKind,
    nofollow: bool,
}

#[derive(Default)]
struct Gathered {
    links: Vec<Raw>,
    base: Option<String>,
    nofollow: bool,
    /// What stands in `noscript` elements; the last is still growing.
    noscript: Vec<String>,
}

impl Gathered {
    fn add(&mut self, href: Option<String>, kind: LinkKind, nofollow: bool) {
        if let Some(href) = href.filter(|_| self.links.len() < RAW_MAX) {
            self.links.push(Raw { href: decoded(href), kind, nofollow });
        }
    }

    /// The first one counts, and only if it has an address.
    fn base(&mut self, element: &Element<'_, '_>) {
        if self.base.is_none() {
            self.base = element.get_attribute("href").map(decoded);
        }
    }

    fn anchor(&mut self, element: &Element<'_, '_>) {
        let href = element.get_attribute("href").or_else(|| element.get_attribute("xlink:href"));
        if href.is_some() {
            let nofollow = element.get_attribute("rel").is_some_and(|rel| {
                let asks = |word: &str| {
                    ["nofollow", "ugc", "sponsored"].iter().any(|it| it.eq_ignore_ascii_case(word))
                };
                rel.split_ascii_whitespace().any(asks)
            });
            self.add(href, LinkKind::Page, nofollow);
        }
    }

    fn link(&mut self, element: &Element<'_, '_>) {
        let Some(rel) = element.get_attribute("rel") else { return };
        let rel = rel.to_ascii_lowercase();
        let has = |names: &[&str]| rel.split_ascii_whitespace().any(|word| names.contains(&word));
        let kind = if has(&["canonical"]) {
            LinkKind::Canonical
        } else if has(&["stylesheet"]) || !has(&RELATED) {
            LinkKind::Resource
        } else {
            LinkKind::Related
        };
        if !has(&HOSTS) {
            self.add(element.get_attribute("href"), kind, has(&["nofollow"]));
        }
    }

    fn meta(&mut self, element: &Element<'_, '_>) {
        let is = |name: &str, value: &str| {
            element.get_attribute(name).is_some_and(|found| found.trim().eq_ignore_ascii_case(value))
        };
        let Some(content) = element.get_attribute("content") else { return };
        if is("http-equiv", "refresh") {
            let content = decoded(content);
            self.add(refresh_target(&content).map(str::to_owned), LinkKind::Redirect, false);
        } else if is("name", "robots") {
            self.nofollow |= says_nofollow(&content);
        }
    }

    fn resource(&mut self, element: &Element<'_, '_>) {
        for name in ["src", "poster", "data"] {
            self.add(element.get_attribute(name), LinkKind::Resource, false);
        }
        if let Some(set) = element.get_attribute("srcset") {
            for candidate in srcset(&decoded(set)) {
                self.add(Some(candidate.to_owned()), LinkKind::Resource, false);
            }
        }
    }

    fn noscript(&mut self, chunk: &TextChunk<'_>) {
        if self.noscript.is_empty() {
            self.noscript.push(String::new());
        }
        if let Some(last) = self.noscript.last_mut() {
            last.push_str(chunk.as_str());
        }
        if chunk.last_in_text_node() {
            self.noscript.push(String::new());
        }
    }
}

/// Attribute values come with their entities.
fn decoded(value: String) -> String {
    if value.contains('&') { htmlize::unescape_attribute(value.as_str()).into_owned() } else { value }
}

/// Goes through HTML and takes its links.
pub(super) fn gather(html: &str, found: &mut Resolver) {
    let page = walk(html, found.pages_only(), 0);
    if let Some(base) = page.base.as_deref().and_then(|base| found.join(base)) {
        found.set_base(base);
    }
    for raw in &page.links {
        found.add(&raw.href, raw.kind, raw.nofollow);
    }
    if page.nofollow {
        found.follow_none();
    }
}

fn walk(html: &str, pages_only: bool, nested: u32) -> Gathered {
    let gathered = RefCell::new(Gathered::default());
    {
        // Every tag is held against every selector, so there are no more than needed.
        let mut settings = Settings::new()
            .with_strict(false)
            .append_element_content_handler(element!("a,area", |element| {
                gathered.borrow_mut().anchor(element);
                Ok(())
            }))
            .append_element_content_handler(element!("link[href]", |element| {
                gathered.borrow_mut().link(element);
                Ok(())
            }))
            .append_element_content_handler(element!("base[href]", |element| {
                gathered.borrow_mut().base(element);
                Ok(())
            }))
            .append_element_content_handler(element!("meta[content]", |element| {
                gathered.borrow_mut().meta(element);
                Ok(())
            }))
            .append_element_content_handler(element!("iframe[src],frame[src]", |element| {
                gathered.borrow_mut().add(element.get_attribute("src"), LinkKind::Frame, false);
                Ok(())
            }))
            .append_element_content_handler(element!(
                "blockquote[cite],q[cite],ins[cite],del[cite]",
                |element| {
                    gathered.borrow_mut().add(element.get_attribute("cite"), LinkKind::Page, false);
                    Ok(())
                }
            ))
            .append_element_content_handler(text!("noscript", |chunk| {
                gathered.borrow_mut().noscript(chunk);
                Ok(())
            }));
        if !pages_only {
            settings = settings.append_element_content_handler(element!(
                "img,source,video,audio,track,embed[src],object[data],script[src],input[src]",
                |element| {
                    gathered.borrow_mut().resource(element);
                    Ok(())
                }
            ));
        }
        let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| ());
        // What was met before an error counts.
        if rewriter.write(html.as_bytes()).is_ok() {
            let _broken = rewriter.end();
        }
    }
    let mut page = gathered.into_inner();
    for inside in std::mem::take(&mut page.noscript) {
        if nested < NESTED_MAX && inside.contains('<') {
            let inside = walk(&inside, pages_only, nested + 1);
            page.links.extend(inside.links);
            page.nofollow |= inside.nofollow;
        }
    }
    page
}

/// Where the value of `meta http-equiv=refresh` leads, as HTML has it: "5; url='http://…'".
pub(super) fn refresh_target(content: &str) -> Option<&str> {
    let rest = content.trim_start().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim_start();
    if rest.len() == content.trim_start().len() && !rest.starts_with([';', ',']) {
        return None; // a refresh begins with a time
    }
    let rest = rest.strip_prefix([';', ',']).unwrap_or(rest).trim_start();
    let target = match rest.get(..3).filter(|start| start.eq_ignore_ascii_case("url")) {
        Some(_) => match rest.get(3..).map(str::trim_start).and_then(|rest| rest.strip_prefix('=')) {
            Some(value) => value.trim_start(),
            None => rest,
        },
        None => rest,
    };
    let quote = target.chars().next().filter(|c| matches!(c, '"' | '\''));
    let target = match quote {
        Some(quote) => target.get(1..)?.split(quote).next()?,
        None => target,
    };
    Some(target.trim()).filter(|target| !target.is_empty())
}

/// The URLs of a `srcset`, as HTML has it: each up to a blank, then a description up to a comma outside of brackets.
pub(super) fn srcset(set: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), set);
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (url, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if url.is_empty() {
            return found;
        }
        let bare = url.trim_end_matches(',');
        found.push(bare);
        rest = after;
        if bare.len() == url.len() {
            let mut depth = 0u32;
            let described = rest.find(|c: char| {
                match c {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                c == ',' && depth == 0
            });
            rest = described.and_then(|comma| rest.get(comma..)).unwrap_or("");
        }
    }
}
