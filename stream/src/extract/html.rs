//! Goes through the HTML of a page: elements and text as they come, entities decoded. Broken HTML is everyday, and gives what it
//! gives.

use std::cell::RefCell;
use std::rc::Rc;

use lol_html::html_content::{Element, TextChunk, TextType};
use lol_html::{HtmlRewriter, Settings, doc_text, element, end_tag};

/// What meets elements and text.
pub(super) trait Sink: 'static {
    /// A start tag.
    fn start(&mut self, element: &Element<'_, '_>);

    /// The end of an element that [`Sink::start`] met.
    fn end(&mut self, name: &str) {
        let _ = name;
    }

    /// A whole text node.
    fn text(&mut self, text: &str, kind: TextType);
}

/// Goes through HTML; gives the sink back.
pub(super) fn walk<S: Sink>(html: &str, sink: S) -> S {
    let sink = Rc::new(RefCell::new(sink));
    let (starts, texts) = (sink.clone(), sink.clone());
    let mut node = String::new();
    let settings = Settings::new()
        .with_strict(false)
        .append_element_content_handler(element!("*", move |element| {
            starts.borrow_mut().start(element);
            if element.can_have_content() && element.end_tag_handlers().is_some() {
                let ends = starts.clone();
                element.on_end_tag(end_tag!(move |tag| {
                    ends.borrow_mut().end(&tag.name());
                    Ok(())
                }))?;
            }
            Ok(())
        }))
        .append_document_content_handler(doc_text!(move |chunk: &mut TextChunk<'_>| {
            // A node comes in pieces, and an entity may be in two of them.
            node.push_str(chunk.as_str());
            if chunk.last_in_text_node() {
                let kind = chunk.text_type();
                match kind {
                    TextType::Data | TextType::RCData => {
                        texts.borrow_mut().text(&htmlize::unescape(node.as_str()), kind);
                    }
                    _ => texts.borrow_mut().text(&node, kind),
                }
                node.clear();
            }
            Ok(())
        }));
    let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| ());
    // What was met before an error counts.
    if rewriter.write(html.as_bytes()).is_ok() {
        let _broken = rewriter.end();
    }
    match Rc::try_unwrap(sink) {
        Ok(sink) => sink.into_inner(),
        Err(_) => unreachable!("the rewriter, which had the others, is gone"),
    }
}

/// Text with its white space brought to single spaces.
pub(super) fn squeezed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}
