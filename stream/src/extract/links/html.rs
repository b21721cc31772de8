//! Links of HTML. Tags are tokenized as browsers do; only those that can have links are looked into, so the rest costs little. What is
//! plain of a page ([`plain`]) does not even go through the tokenizer.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::LazyLock;

use lol_html::html_content::{Element, TextChunk};
use lol_html::{ElementContentHandlers, HtmlRewriter, Selector, Settings};

use super::plain::{self, Attributes, Plain};
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
#[derive(Debug, PartialEq, Eq)]
struct Raw<'p> {
    href: Cow<'p, str>,
    kind: LinkKind,
    nofollow: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Gathered<'p> {
    links: Vec<Raw<'p>>,
    base: Option<Cow<'p, str>>,
    nofollow: bool,
    /// What stands in `noscript` elements; the last is still growing.
    noscript: Vec<String>,
}

/// A start tag, whoever read it.
trait Tag<'p> {
    /// The value of an attribute, with its entities.
    fn attribute(&self, name: &str) -> Option<Cow<'p, str>>;
}

impl<'p> Tag<'p> for Element<'_, '_> {
    fn attribute(&self, name: &str) -> Option<Cow<'p, str>> {
        self.get_attribute(name).map(Cow::Owned)
    }
}

impl<'p> Tag<'p> for Attributes<'_, 'p> {
    fn attribute(&self, name: &str) -> Option<Cow<'p, str>> {
        self.get(name)
    }
}

impl<'p> Gathered<'p> {
    fn add(&mut self, href: Option<Cow<'p, str>>, kind: LinkKind, nofollow: bool) {
        if let Some(href) = href.filter(|_| self.links.len() < RAW_MAX) {
            self.links.push(Raw { href: decoded(href), kind, nofollow });
        }
    }

    fn take(&mut self, take: Take, tag: &impl Tag<'p>) {
        match take {
            Take::Anchor => self.anchor(tag),
            Take::Link => self.link(tag),
            Take::Base => self.base(tag),
            Take::Meta => self.meta(tag),
            Take::Frame => self.add(tag.attribute("src"), LinkKind::Frame, false),
            Take::Cite => self.add(tag.attribute("cite"), LinkKind::Page, false),
            Take::Resource => self.resource(tag),
            Take::Noscript => {} // its text is taken
        }
    }

    /// The first one counts, and only if it has an address.
    fn base(&mut self, tag: &impl Tag<'p>) {
        if self.base.is_none() {
            self.base = tag.attribute("href").map(decoded);
        }
    }

    fn anchor(&mut self, tag: &impl Tag<'p>) {
        let href = tag.attribute("href").or_else(|| tag.attribute("xlink:href"));
        if href.is_some() {
            let nofollow = tag.attribute("rel").is_some_and(|rel| {
                let asks = |word: &str| {
                    ["nofollow", "ugc", "sponsored"].iter().any(|it| it.eq_ignore_ascii_case(word))
                };
                rel.split_ascii_whitespace().any(asks)
            });
            self.add(href, LinkKind::Page, nofollow);
        }
    }

    fn link(&mut self, tag: &impl Tag<'p>) {
        let Some(rel) = tag.attribute("rel") else { return };
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
            self.add(tag.attribute("href"), kind, has(&["nofollow"]));
        }
    }

    fn meta(&mut self, tag: &impl Tag<'p>) {
        let is = |name: &str, value: &str| {
            tag.attribute(name).is_some_and(|found| found.trim().eq_ignore_ascii_case(value))
        };
        let Some(content) = tag.attribute("content") else { return };
        if is("http-equiv", "refresh") {
            let content = decoded(content);
            self.add(
                refresh_target(&content).map(|target| target.to_owned().into()),
                LinkKind::Redirect,
                false,
            );
        } else if is("name", "robots") {
            self.nofollow |= says_nofollow(&content);
        }
    }

    fn resource(&mut self, tag: &impl Tag<'p>) {
        for name in ["src", "poster", "data"] {
            self.add(tag.attribute(name), LinkKind::Resource, false);
        }
        if let Some(set) = tag.attribute("srcset") {
            for candidate in srcset(&decoded(set)) {
                self.add(Some(candidate.to_owned().into()), LinkKind::Resource, false);
            }
        }
    }

    /// Takes the links of what is plain of a page; returns the rest.
    fn plain(&mut self, html: &'p str, pages_only: bool) -> &'p str {
        let wants = |name: &[u8]| match take_of(name) {
            Some(Take::Resource) => !pages_only,
            take => take.is_some(),
        };
        let end = plain::read(html, wants, |met| match met {
            Plain::Tag(name, tag) => {
                if let Some(take) =
                    take_of(name).filter(|_| needed(name).is_none_or(|it| tag.get(it).is_some()))
                {
                    self.take(take, &tag);
                }
            }
            Plain::Noscript(text) => self.noscript.extend([text.to_owned(), String::new()]),
        });
        html.get(end..).unwrap_or_default()
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
fn decoded(value: Cow<'_, str>) -> Cow<'_, str> {
    if value.contains('&') { htmlize::unescape_attribute(&*value).into_owned().into() } else { value }
}

/// Goes through HTML and takes its links.
pub(super) fn gather(html: &str, found: &mut Resolver) {
    let page = walk(html, found.pages_only(), 0);
    if let Some(base) = page.base.as_deref().and_then(|base| found.join(base)) {
        found.set_base(base);
    }
    found.add_all(page.links.iter().map(|raw| (&*raw.href, raw.kind, raw.nofollow)));
    if page.nofollow {
        found.follow_none();
    }
}

/// Elements whose links are taken: what a selector says, the names of its tags, and what is done with them.
///
/// Every tag of a page is held against every selector, so a page gets only those whose tags it has.
const TAKEN: [Taken; 7] = [
    Taken { selector: "a,area", names: &["a", "area"], take: Take::Anchor },
    Taken { selector: "link[href]", names: &["link"], take: Take::Link },
    Taken { selector: "base[href]", names: &["base"], take: Take::Base },
    Taken { selector: "meta[content]", names: &["meta"], take: Take::Meta },
    Taken { selector: "iframe[src],frame[src]", names: &["iframe", "frame"], take: Take::Frame },
    Taken {
        selector: "blockquote[cite],q[cite],ins[cite],del[cite]",
        names: &["blockquote", "q", "ins", "del"],
        take: Take::Cite,
    },
    Taken { selector: "noscript", names: &["noscript"], take: Take::Noscript },
];
/// What a page is made of, and no page itself.
const RESOURCES: Taken = Taken {
    selector: "img,source,video,audio,track,embed[src],object[data],script[src],input[src]",
    names: &["img", "source", "video", "audio", "track", "embed", "object", "script", "input"],
    take: Take::Resource,
};

/// What is done with a tag that the selectors of [`TAKEN`] and [`RESOURCES`] name.
fn take_of(name: &[u8]) -> Option<Take> {
    Some(match name {
        b"a" | b"area" => Take::Anchor,
        b"link" => Take::Link,
        b"base" => Take::Base,
        b"meta" => Take::Meta,
        b"iframe" | b"frame" => Take::Frame,
        b"blockquote" | b"q" | b"ins" | b"del" => Take::Cite,
        b"img" | b"source" | b"video" | b"audio" | b"track" | b"embed" | b"object" | b"script" | b"input" => {
            Take::Resource
        }
        _ => return None,
    })
}

/// The attribute without which a tag is not looked at, where others would be.
fn needed(name: &[u8]) -> Option<&'static str> {
    match name {
        b"embed" | b"script" | b"input" => Some("src"),
        b"object" => Some("data"),
        _ => None,
    }
}

struct Taken {
    selector: &'static str,
    names: &'static [&'static str],
    take: Take,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    Anchor,
    Link,
    Base,
    Meta,
    Frame,
    Cite,
    Noscript,
    Resource,
}

/// The selectors of [`TAKEN`], then that of [`RESOURCES`].
static SELECTORS: LazyLock<Vec<Selector>> = LazyLock::new(|| {
    // Each is one that lol_html reads: a test goes through all of them.
    TAKEN.iter().chain([&RESOURCES]).filter_map(|taken| taken.selector.parse().ok()).collect()
});

/// Which of [`TAKEN`] and [`RESOURCES`] a page may have tags of, one bit each. Wherever such a name follows a `<` it counts,
/// though it be in a comment: that costs time, no link.
fn tags_of(html: &[u8]) -> u32 {
    /// Names that begin with a letter, and their bits.
    type Names = Vec<(&'static [u8], u32)>;
    static STARTS: LazyLock<[Names; 26]> = LazyLock::new(|| {
        let mut starts: [Names; 26] = Default::default();
        for (bit, taken) in TAKEN.iter().chain([&RESOURCES]).enumerate() {
            for name in taken.names {
                let letter = name.as_bytes().first().map_or(0, |letter| usize::from(letter - b'a'));
                if let Some(start) = starts.get_mut(letter) {
                    start.push((name.as_bytes(), 1 << bit));
                }
            }
        }
        starts
    });
    let starts = &*STARTS;
    let mut tags = 0;
    for at in memchr::memchr_iter(b'<', html) {
        let after = html.get(at + 1..).unwrap_or_default();
        let Some(first) = after.first().filter(|byte| byte.is_ascii_alphabetic()) else { continue };
        let letter = usize::from(first.to_ascii_lowercase() - b'a');
        for (name, bit) in starts.get(letter).into_iter().flatten() {
            if tags & bit == 0 && after.get(..name.len()).is_some_and(|tag| tag.eq_ignore_ascii_case(name)) {
                tags |= bit;
            }
        }
    }
    tags
}

fn walk(html: &str, pages_only: bool, nested: u32) -> Gathered<'_> {
    let mut page = Gathered::default();
    let rest = page.plain(html, pages_only);
    let mut page = if rest.is_empty() { page } else { tokenize(rest, pages_only, page) };
    for inside in std::mem::take(&mut page.noscript) {
        if nested < NESTED_MAX && inside.contains('<') {
            let inside = walk(&inside, pages_only, nested + 1);
            let owned = |raw: Raw<'_>| Raw { href: raw.href.into_owned().into(), ..raw };
            page.links.extend(inside.links.into_iter().map(owned));
            page.nofollow |= inside.nofollow;
        }
    }
    page
}

/// Takes the links of HTML after those that were met before.
fn tokenize<'p>(html: &str, pages_only: bool, before: Gathered<'p>) -> Gathered<'p> {
    let gathered = RefCell::new(before);
    {
        let mut settings = Settings::new().with_strict(false);
        let tags = tags_of(html.as_bytes());
        for (bit, (taken, selector)) in TAKEN.iter().chain([&RESOURCES]).zip(&*SELECTORS).enumerate() {
            if tags & 1 << bit == 0 || (pages_only && matches!(taken.take, Take::Resource)) {
                continue;
            }
            let (gathered, take) = (&gathered, taken.take);
            let handlers = match take {
                Take::Noscript => ElementContentHandlers::default().text(move |chunk: &mut TextChunk<'_>| {
                    gathered.borrow_mut().noscript(chunk);
                    Ok(())
                }),
                _ => ElementContentHandlers::default().element(move |element: &mut Element<'_, '_>| {
                    gathered.borrow_mut().take(take, element);
                    Ok(())
                }),
            };
            settings = settings.append_element_content_handler((Cow::Borrowed(selector), handlers));
        }
        let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| ());
        // What was met before an error counts.
        if rewriter.write(html.as_bytes()).is_ok() {
            let _broken = rewriter.end();
        }
    }
    gathered.into_inner()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn selectors_are_read_and_their_names_are_found_in_pages() {
        assert_eq!(SELECTORS.len(), TAKEN.len() + 1);
        for (bit, taken) in TAKEN.iter().chain([&RESOURCES]).enumerate() {
            let selected = taken.selector.split(',').map(|one| one.split('[').next().unwrap_or_default());
            assert_eq!(selected.collect::<Vec<_>>(), taken.names);
            for name in taken.names {
                for text in [format!("x<{name} y"), format!("<!-- <{} -->", name.to_uppercase())] {
                    assert_ne!(tags_of(text.as_bytes()) & 1 << bit, 0, "{text}");
                }
                let plain = (taken.take != Take::Noscript).then_some(taken.take);
                assert_eq!(take_of(name.as_bytes()), plain, "{name}");
            }
        }
        assert_eq!(tags_of(b"< a <1 <p>area </a> <"), 0);
    }

    /// What is met of a page with and without going through its plain part first, and how long that is.
    fn both_ways(html: &str, pages_only: bool) -> (Gathered<'_>, Gathered<'_>, usize) {
        let mut page = Gathered::default();
        let rest = page.plain(html, pages_only);
        let mut page = tokenize(rest, pages_only, page);
        let mut whole = tokenize(html, pages_only, Gathered::default());
        for found in [&mut page, &mut whole] {
            // In foreign content a `noscript` has elements, and which text is in it is a matter of all elements before.
            let is_text = !html.contains("<svg") && !html.contains("<math");
            found.noscript.retain(|text| is_text && !text.is_empty());
        }
        (page, whole, html.len() - rest.len())
    }

    #[test]
    fn what_is_plain_is_known() {
        for (html, plain) in [
            ("<!DOCTYPE html><?x y?><p class=a b c='d>' e = \"f\" /><!-- <a --><a href=1>x</a><<br/>", None),
            ("<title><a></title ><STYLE>a<b</Style><script src=1>'<a>' </scriptx> </script\n><a>", None),
            ("<!----><!---x--><!-- <!-- --><noscript><a href=1></noscript><textarea></p></textarea/>", None),
            (
                "<svg x='1'><g><path d=1 /></g>\n</SVG><iframe src=1><a href=2></iframe><xmp></p></xmp><a href=3>",
                None,
            ),
            ("<p><svg><a>", Some(3)),
            ("<p><svg/><b></svg>", Some(3)),
            ("<p><svg><path><svg></svg></svg>", Some(3)),
            ("<p><svg><![CDATA[</svg>]]></svg>", Some(3)),
            ("<p><svg><path></p></svg>", Some(3)),
            ("<p><math></math>", Some(3)),
            ("<p><script><!-- </script>", Some(3)),
            ("<p><!--> x -->", Some(3)),
            ("<p><!-- x --!> -->", Some(3)),
            ("<p><![CDATA[ x ]]>", Some(3)),
            ("<p></ x>", Some(3)),
            ("<p><a =x>", Some(3)),
            ("<p><a x=>", Some(3)),
            ("<p><a href='1>", Some(3)),
            ("<p><title>x", Some(3)),
            ("<p><", Some(3)),
        ] {
            let (page, whole, length) = both_ways(html, false);
            assert_eq!((length, page), (plain.unwrap_or(html.len()), whole), "{html}");
        }
    }

    fn piece() -> impl Strategy<Value = String> {
        const WHOLE: [&str; 47] = [
            "<a href=\"x/1?a=1&amp;b\">",
            "<A HREF='2' rel=nofollow>",
            "<a href=3 href=4>",
            "<a xlink:href=5>",
            "<area href=6/>",
            "</a>",
            "<p>",
            "<td class=\"b c\" nowrap>",
            "<link rel=next href=n>",
            "<link href=m rel=stylesheet>",
            "<base href=/b/>",
            "<script src=s>",
            "<script>",
            "</script>",
            "</SCRIPT x='>'>",
            "<style>",
            "</style>",
            "<title>",
            "</title >",
            "<textarea>",
            "</textarea>",
            "<noscript>",
            "</noscript>",
            "<!--",
            "-->",
            "--!>",
            "<!---->",
            "<!-->",
            "<!DOCTYPE html PUBLIC \"a>b\">",
            "<?xml x?>",
            "<svg>",
            "<path d=1 />",
            "</g>",
            "<svg><g></g></svg>",
            "</svg>",
            "<math>",
            "<iframe src=f>",
            "</iframe>",
            "<img src=i srcset='j 1x'>",
            "<object src=o>",
            "<object data=o>",
            "<input src=p>",
            "<meta name=robots content=nofollow>",
            "<meta http-equiv=refresh content='0;url=r'>",
            "<blockquote cite=c>",
            "<![CDATA[",
            "]]>",
        ];
        const PARTS: [&str; 26] = [
            "<",
            ">",
            "/",
            "=",
            "\"",
            "'",
            " ",
            "\n",
            "\x0c",
            "-",
            "!",
            "?",
            "a",
            "href",
            "<a ",
            "</",
            "<a href=",
            "<p",
            "x",
            "&amp;",
            "ž",
            "\0",
            "&",
            "<noscript",
            "<plaintext>",
            "<xmp>",
        ];
        prop_oneof![
            3 => proptest::sample::select(&WHOLE[..]).prop_map(str::to_owned),
            2 => proptest::sample::select(&PARTS[..]).prop_map(str::to_owned),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_plain_part_is_read_as_the_tokenizer_reads_it(
            pieces in proptest::collection::vec(piece(), 0..24),
            pages_only in any::<bool>(),
        ) {
            let html = pieces.concat();
            let (page, whole, _) = both_ways(&html, pages_only);
            prop_assert_eq!(page, whole, "{}", html);
        }
    }
}
