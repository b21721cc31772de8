//! The plain part of HTML: as far as a page is what pages nearly always are, its tags are taken apart here, at several times the
//! speed of the tokenizer.
//!
//! This is no tokenizer of HTML: it knows tags with their attributes, comments, the text of scripts, styles and titles, and simple
//! drawings, and gives up at the first thing beyond them or in doubt (`math`, scripts with `<!--` in them, a tag that does not end, …).
//! The page from there on is the tokenizer's. So there is one invariant, which the tests hold against it with any pieces of HTML:
//!
//! 1. Where it stops, a tokenizer is as at the beginning of a page, and what was met before is what a tokenizer meets, in its order.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memmem};

/// Longer names are those of no element that means anything here.
const NAME_BYTES_MAX: usize = 12;

/// A start tag, or the text of a `noscript`.
pub(super) enum Plain<'t, 'p> {
    /// A tag, by its name in lower case.
    Tag(&'t [u8], Attributes<'t, 'p>),
    /// What stands in a `noscript`.
    Noscript(&'p str),
}

/// The attributes of a tag.
pub(super) struct Attributes<'t, 'p> {
    html: &'p str,
    all: &'t [(Range<usize>, Range<usize>)],
}

impl<'p> Attributes<'_, 'p> {
    /// The value of the first attribute of a name, with its entities.
    pub(super) fn get(&self, name: &str) -> Option<Cow<'p, str>> {
        let of = |range: &Range<usize>| self.html.get(range.clone());
        let is = |found: &Range<usize>| of(found).is_some_and(|found| found.eq_ignore_ascii_case(name));
        let (_, value) = self.all.iter().find(|(found, _)| is(found))?;
        of(value).map(Cow::Borrowed)
    }
}

/// Goes through the plain part of a page; returns where it ends. `wants` says by its name whether a tag is worth its attributes.
pub(super) fn read<'p>(
    html: &'p str,
    wants: impl Fn(&[u8]) -> bool,
    mut met: impl FnMut(Plain<'_, 'p>),
) -> usize {
    let mut page = Cursor { html, bytes: html.as_bytes(), at: 0 };
    let mut attributes = Vec::new();
    loop {
        let Some(next) = memchr(b'<', page.rest()) else { return html.len() };
        page.at += next;
        let start = page.at;
        page.at += 1;
        let met_all = match page.peek() {
            Some(b'a'..=b'z' | b'A'..=b'Z') => page.start_tag(&wants, &mut met, &mut attributes),
            Some(b'/') => page.end_tag(),
            Some(b'!') => page.comment(),
            Some(b'?') => page.skip_behind(b">"),
            Some(_) => Some(()), // text
            None => None,
        };
        if met_all.is_none() {
            return start;
        }
    }
}

/// What follows a start tag.
enum Follows {
    /// Anything.
    Content,
    /// Text up to an end tag of the same name.
    Text,
    /// Elements of other names, which are tokenized otherwise, up to an end tag of the same name.
    Drawing,
    /// What only a tokenizer knows.
    Doubt,
}

fn follows(name: &[u8]) -> Follows {
    match name {
        b"script" | b"style" | b"title" | b"textarea" | b"noscript" => Follows::Text,
        b"iframe" | b"xmp" | b"noembed" | b"noframes" => Follows::Text,
        b"svg" => Follows::Drawing,
        b"math" | b"plaintext" => Follows::Doubt,
        _ => Follows::Content,
    }
}

/// Elements of a drawing that have no links, and leave it to its end.
fn is_drawn(name: &[u8]) -> bool {
    matches!(
        name,
        b"g" | b"path"
            | b"rect"
            | b"circle"
            | b"ellipse"
            | b"line"
            | b"polyline"
            | b"polygon"
            | b"defs"
            | b"symbol"
            | b"use"
            | b"stop"
    )
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c')
}

/// Steps return `None` where a tokenizer has to go on from the `<` before.
struct Cursor<'p> {
    html: &'p str,
    bytes: &'p [u8],
    at: usize,
}

impl<'p> Cursor<'p> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn rest(&self) -> &'p [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn skip_behind(&mut self, what: &[u8]) -> Option<()> {
        let found = match what {
            [byte] => memchr(*byte, self.rest()),
            what => memmem::find(self.rest(), what),
        };
        self.at += found? + what.len();
        Some(())
    }

    /// A name in lower case: all of it, or nothing of one that is too long to mean anything.
    fn name<'b>(&mut self, buffer: &'b mut [u8; NAME_BYTES_MAX]) -> Option<&'b [u8]> {
        let mut length = 0;
        loop {
            let byte = self.peek()?;
            if is_blank(byte) || matches!(byte, b'/' | b'>') {
                return Some(buffer.get(..length).unwrap_or_default());
            }
            if let Some(place) = buffer.get_mut(length) {
                *place = byte.to_ascii_lowercase();
            }
            length += 1;
            self.at += 1;
        }
    }

    fn start_tag(
        &mut self,
        wants: impl Fn(&[u8]) -> bool,
        mut met: impl FnMut(Plain<'_, 'p>),
        attributes: &mut Vec<(Range<usize>, Range<usize>)>,
    ) -> Option<()> {
        let mut buffer = [0; NAME_BYTES_MAX];
        let name = self.name(&mut buffer)?;
        attributes.clear();
        let wanted = wants(name);
        self.attributes(|attribute| {
            if wanted {
                attributes.push(attribute);
            }
        })?;
        let text = match follows(name) {
            Follows::Content => None,
            Follows::Text => Some(self.text_of(name)?),
            Follows::Drawing => {
                self.drawing()?;
                None
            }
            Follows::Doubt => return None,
        };
        if wanted {
            met(Plain::Tag(name, Attributes { html: self.html, all: attributes }));
        }
        if let (b"noscript", Some(text)) = (name, text) {
            met(Plain::Noscript(text));
        }
        Some(())
    }

    fn end_tag(&mut self) -> Option<()> {
        self.at += 1;
        self.peek().filter(u8::is_ascii_alphabetic)?;
        self.name(&mut [0; NAME_BYTES_MAX])?;
        self.attributes(|_| {})
    }

    /// A drawing of the simplest elements, up to behind its end.
    fn drawing(&mut self) -> Option<()> {
        loop {
            self.skip_behind(b"<")?;
            let is_end = self.peek()? == b'/';
            self.at += usize::from(is_end);
            self.peek().filter(u8::is_ascii_alphabetic)?;
            let mut buffer = [0; NAME_BYTES_MAX];
            let name = self.name(&mut buffer)?;
            self.attributes(|_| {})?;
            match name {
                b"svg" if is_end => return Some(()),
                name if is_drawn(name) => {}
                _ => return None,
            }
        }
    }

    /// Attributes of a tag, up to behind its end.
    fn attributes(&mut self, mut met: impl FnMut((Range<usize>, Range<usize>))) -> Option<()> {
        loop {
            match self.peek()? {
                byte if is_blank(byte) || byte == b'/' => self.at += 1,
                b'>' => {
                    self.at += 1;
                    return Some(());
                }
                b'=' => return None,
                _ => met(self.attribute()?),
            }
        }
    }

    /// Where name and value of an attribute are.
    fn attribute(&mut self) -> Option<(Range<usize>, Range<usize>)> {
        let start = self.at;
        let is_name = |byte: u8| !is_blank(byte) && !matches!(byte, b'=' | b'/' | b'>');
        self.skip_while(is_name)?;
        let name = start..self.at;
        self.skip_while(is_blank)?;
        if self.peek()? != b'=' {
            return Some((name, start..start));
        }
        self.at += 1;
        self.skip_while(is_blank)?;
        let start = self.at;
        let value = match self.peek()? {
            b'>' => return None,
            quote @ (b'"' | b'\'') => {
                self.at += 1;
                self.skip_behind(&[quote])?;
                start + 1..self.at - 1
            }
            _ => {
                self.skip_while(|byte| !is_blank(byte) && byte != b'>')?;
                start..self.at
            }
        };
        Some((name, value))
    }

    fn skip_while(&mut self, is: impl Fn(u8) -> bool) -> Option<()> {
        self.at += self.rest().iter().position(|byte| !is(*byte))?;
        Some(())
    }

    /// A comment, or the document type.
    fn comment(&mut self) -> Option<()> {
        let rest = self.rest();
        if rest.get(1..8).is_some_and(|name| name.eq_ignore_ascii_case(b"doctype")) {
            return self.skip_behind(b">");
        }
        let inside = rest.strip_prefix(b"!--")?;
        let end = memmem::find(inside, b"-->")?;
        let inside = inside.get(..end)?;
        // One that ends as it begins, or otherwise than most do.
        if inside.starts_with(b">") || inside.starts_with(b"->") || memmem::find(inside, b"--!").is_some() {
            return None;
        }
        self.at += b"!--".len() + end + b"-->".len();
        Some(())
    }

    /// The text of an element whose content is nothing else, up to its end tag.
    fn text_of(&mut self, name: &[u8]) -> Option<&'p str> {
        let start = self.at;
        let mut rest = self.rest();
        loop {
            rest = rest.get(memchr(b'<', rest)?..)?;
            let after = rest.get(1..)?;
            let is_end = after.strip_prefix(b"/").is_some_and(|after| {
                after.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name))
                    && after
                        .get(name.len())
                        .is_some_and(|byte| is_blank(*byte) || matches!(byte, b'/' | b'>'))
            });
            if is_end {
                self.at = self.bytes.len() - rest.len();
                return self.html.get(start..self.at);
            }
            // Scripts may hide their end.
            if name == b"script" && after.starts_with(b"!--") {
                return None;
            }
            rest = after;
        }
    }
}
