//! The XML loader: whether a document is well-formed, what else it is made of, and that no entity blows it up.
//!
//! Entities are never expanded. What they would expand to is only counted: an entity's length is that of its text and of the
//! entities it names, each computed once, so a "billion laughs" costs as much as reading its declarations. External parts (the DTD,
//! external entities) are named; [`load`] fetches them through the web interface, with the priority of a loader that waits, within
//! limits of number and depth, and only by http and https.

mod entities;

use quick_xml::Reader;
use quick_xml::events::Event;
use url::Url;

use crate::fetcher::{Answer, Fetcher, Priority};

use self::entities::Entities;
pub use self::entities::external_subset;

/// Deeper elements are refused.
const DEPTH_MAX: usize = 1000;
/// More attributes of one element are refused.
const ATTRIBUTES_MAX: usize = 1000;
/// What entities may expand to in all, in bytes.
pub const EXPANSION_BYTES_MAX: u64 = 10 << 20;
/// External parts of one document that are fetched.
const PARTS_MAX: usize = 20;

/// What a document is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The name of its root element.
    pub root: String,
    /// Its external DTD.
    pub dtd: Option<Url>,
    /// External entities that it declares.
    pub entities: Vec<Url>,
    /// How many elements it has.
    pub elements: u64,
}

/// Why a document is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not well-formed.
    #[error("not well-formed at byte {at}: {what}")]
    NotWellFormed {
        /// Where.
        at: u64,
        /// Why.
        what: String,
    },
    /// Its entities expand to more than is allowed, or to themselves.
    #[error("entity bomb: {0}")]
    Bomb(String),
}

impl LoadError {
    /// The name it is counted under.
    pub fn kind(&self) -> &'static str {
        match self {
            LoadError::NotWellFormed { .. } => "not-well-formed",
            LoadError::Bomb(_) => "entity-bomb",
        }
    }
}

/// Reads a document that was found at `base`.
///
/// # Errors
/// When it is not well-formed, or its entities blow it up.
pub fn read(bytes: &[u8], base: &Url) -> Result<Document, LoadError> {
    let (text, _, _) = encoding_rs::UTF_8.decode(bytes);
    let mut reader = Reader::from_str(&text);
    let mut document = Document::default();
    let mut entities = Entities::default();
    let (mut depth, mut expanded) = (0_usize, 0_u64);
    loop {
        let at = reader.buffer_position();
        let wrong = |what: String| LoadError::NotWellFormed { at, what };
        let event = reader.read_event().map_err(|e| wrong(e.to_string()))?;
        match event {
            Event::Eof if document.root.is_empty() => return Err(wrong("there is no element".to_owned())),
            Event::Eof if depth > 0 => return Err(wrong(format!("{depth} elements are still open"))),
            Event::Eof => return Ok(document),
            Event::Start(element) | Event::Empty(element) if depth == 0 && !document.root.is_empty() => {
                return Err(wrong(format!("a second root, {}", element.name().as_ref())));
            }
            Event::Start(element) => {
                depth += 1;
                expanded += attributes(&element, &entities).map_err(|e| e.at(at))?;
                note(&mut document, &element);
            }
            Event::Empty(element) => {
                expanded += attributes(&element, &entities).map_err(|e| e.at(at))?;
                note(&mut document, &element);
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) if depth == 0 && !text.trim().is_empty() => {
                return Err(wrong("text outside the root element".to_owned()));
            }
            Event::CData(_) if depth == 0 => return Err(wrong("text outside the root element".to_owned())),
            Event::GeneralRef(entity) => {
                if depth == 0 {
                    return Err(wrong("an entity outside the root element".to_owned()));
                }
                expanded += entities.length(&entity).map_err(|e| e.at(at))?;
            }
            Event::DocType(doctype) => {
                if !document.root.is_empty() {
                    return Err(wrong("a document type after the root element".to_owned()));
                }
                document.dtd = external_subset(&doctype).and_then(|system| base.join(&system).ok());
                entities = Entities::declared(&doctype)?;
                document.entities = entities.external(base);
            }
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(wrong(format!("more than {DEPTH_MAX} elements in each other")));
        }
        if expanded > EXPANSION_BYTES_MAX {
            return Err(LoadError::Bomb(format!("more than {EXPANSION_BYTES_MAX} bytes in all")));
        }
    }
}

/// What is wrong in a place that is yet to be told.
enum Wrong {
    Here(String),
    Bomb(String),
}

impl Wrong {
    fn at(self, at: u64) -> LoadError {
        match self {
            Wrong::Here(what) => LoadError::NotWellFormed { at, what },
            Wrong::Bomb(what) => LoadError::Bomb(what),
        }
    }
}

fn note(document: &mut Document, element: &quick_xml::events::BytesStart<'_>) {
    document.elements += 1;
    if document.root.is_empty() {
        document.root = element.name().as_ref().to_owned();
    }
}

/// Checks an element's attributes; what their entities expand to.
fn attributes(element: &quick_xml::events::BytesStart<'_>, entities: &Entities) -> Result<u64, Wrong> {
    let mut expanded = 0;
    for (count, attribute) in element.attributes().enumerate() {
        let attribute = attribute.map_err(|e| Wrong::Here(e.to_string()))?;
        if count >= ATTRIBUTES_MAX {
            return Err(Wrong::Here(format!("more than {ATTRIBUTES_MAX} attributes")));
        }
        if attribute.value.contains('<') {
            return Err(Wrong::Here("`<` in an attribute".to_owned()));
        }
        expanded += entities.length_of_text(&attribute.value)?;
    }
    Ok(expanded)
}

/// A document with the parts of it that were fetched.
#[derive(Debug)]
pub struct Loaded {
    /// What it is.
    pub document: Document,
    /// Its external parts, and what came; `None` where it could not be had.
    pub parts: Vec<(Url, Option<Answer>)>,
}

/// Reads a document and fetches its external parts, each in its site's turn, before whatever else waits there.
///
/// # Errors
/// As [`read`]. Parts that cannot be had are no error.
pub async fn load(fetcher: &Fetcher, bytes: &[u8], base: &Url) -> Result<Loaded, LoadError> {
    let document = read(bytes, base)?;
    let mut parts = Vec::new();
    let wanted = document.dtd.iter().chain(&document.entities);
    for url in wanted.filter(|url| matches!(url.scheme(), "http" | "https")).take(PARTS_MAX) {
        let outcome = fetcher.fetch(url.clone(), Priority::Loader).await;
        parts.push((url.clone(), outcome.result.ok().filter(|answer| answer.status == 200)));
    }
    Ok(Loaded { document, parts })
}
