//! The entities of a document type: what is declared, and how long each would be.

use std::cell::RefCell;
use std::collections::HashMap;

use url::Url;

use super::{EXPANSION_BYTES_MAX, LoadError, Wrong};

/// More declarations are refused.
const DECLARATIONS_MAX: usize = 10_000;

#[derive(Debug)]
enum Entity {
    Text(String),
    External(String),
}

/// The general and parameter entities that a document type declares; parameter entities have a `%` before their name.
#[derive(Debug, Default)]
pub(super) struct Entities {
    declared: HashMap<String, Entity>,
    /// Lengths that are known; `None` while one is being computed.
    lengths: RefCell<HashMap<String, Option<u64>>>,
}

/// The system identifier of a document type's external DTD.
pub fn external_subset(doctype: &str) -> Option<String> {
    let before = doctype.split('[').next()?.trim();
    let rest = before.split_once(char::is_whitespace)?.1.trim_start();
    if let Some(system) = rest.strip_prefix("SYSTEM") {
        return Some(quoted(system)?.0.to_owned());
    }
    let (_, after) = quoted(rest.strip_prefix("PUBLIC")?)?;
    Some(quoted(after)?.0.to_owned())
}

/// The first quoted text, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text.get(1..)?.split_once(quote)
}

impl Entities {
    /// Reads the declarations of a document type. Of two of one name the first counts.
    pub(super) fn declared(doctype: &str) -> Result<Entities, LoadError> {
        let mut entities = Entities::default();
        let mut rest = doctype;
        while let Some((_, after)) = rest.split_once("<!ENTITY") {
            rest = after;
            let mut text = after.trim_start();
            let mut name = String::new();
            if let Some(parameter) = text.strip_prefix('%') {
                name.push('%');
                text = parameter.trim_start();
            }
            let Some((word, value)) = text.split_once(char::is_whitespace) else { continue };
            name.push_str(word);
            let value = value.trim_start();
            let entity = if let Some(system) = value.strip_prefix("SYSTEM") {
                quoted(system).map(|(system, _)| Entity::External(system.to_owned()))
            } else if let Some(public) = value.strip_prefix("PUBLIC") {
                quoted(public)
                    .and_then(|(_, after)| quoted(after))
                    .map(|(system, _)| Entity::External(system.to_owned()))
            } else {
                quoted(value).map(|(text, _)| Entity::Text(text.to_owned()))
            };
            if let Some(entity) = entity {
                entities.declared.entry(name).or_insert(entity);
            }
            if entities.declared.len() > DECLARATIONS_MAX {
                return Err(LoadError::Bomb(format!("more than {DECLARATIONS_MAX} entities")));
            }
        }
        entities.check_parameters(doctype)?;
        Ok(entities)
    }

    /// Parameter entities expand in the document type itself.
    fn check_parameters(&self, doctype: &str) -> Result<(), LoadError> {
        let mut expanded = 0_u64;
        for part in doctype.split('%').skip(1) {
            if let Some((name, _)) = part.split_once(';')
                && !name.is_empty()
                && !name.contains(char::is_whitespace)
            {
                let length = self.length_of(&format!("%{name}"), 0).map_err(|e| e.at(0))?;
                expanded = expanded.saturating_add(length);
            }
        }
        if expanded > EXPANSION_BYTES_MAX {
            return Err(LoadError::Bomb(format!(
                "more than {EXPANSION_BYTES_MAX} bytes in the document type"
            )));
        }
        Ok(())
    }

    /// The external entities, where they are.
    pub(super) fn external(&self, base: &Url) -> Vec<Url> {
        let mut urls: Vec<Url> = self
            .declared
            .values()
            .filter_map(|entity| match entity {
                Entity::External(system) => base.join(system).ok(),
                Entity::Text(_) => None,
            })
            .collect();
        urls.sort();
        urls.dedup();
        urls
    }

    /// How long a reference is when it is expanded.
    pub(super) fn length(&self, name: &str) -> Result<u64, Wrong> {
        if name.starts_with('#') || matches!(name, "amp" | "lt" | "gt" | "quot" | "apos") {
            return Ok(1);
        }
        self.length_of(name, 0)
    }

    fn length_of(&self, name: &str, depth: usize) -> Result<u64, Wrong> {
        match self.lengths.borrow().get(name) {
            Some(Some(length)) => return Ok(*length),
            Some(None) => return Err(Wrong::Bomb(format!("entity {name} contains itself"))),
            None => {}
        }
        if depth > 100 {
            return Err(Wrong::Bomb("entities in entities in entities".to_owned()));
        }
        // An undeclared entity may be declared in the external DTD, which is not read here.
        let Some(Entity::Text(text)) = self.declared.get(name) else { return Ok(0) };
        self.lengths.borrow_mut().insert(name.to_owned(), None);
        let length = self.sum(text, depth)?;
        if length > EXPANSION_BYTES_MAX {
            return Err(Wrong::Bomb(format!(
                "entity {name} expands to more than {EXPANSION_BYTES_MAX} bytes"
            )));
        }
        self.lengths.borrow_mut().insert(name.to_owned(), Some(length));
        Ok(length)
    }

    /// How long an attribute's text is when it is expanded.
    pub(super) fn length_of_text(&self, text: &str) -> Result<u64, Wrong> {
        self.sum(text, 0)
    }

    fn sum(&self, text: &str, depth: usize) -> Result<u64, Wrong> {
        let mut length = text.len() as u64;
        for (mark, sign) in [('&', ""), ('%', "%")] {
            for part in text.split(mark).skip(1) {
                let Some((name, _)) = part.split_once(';') else { continue };
                if name.is_empty() || name.starts_with('#') || name.contains(char::is_whitespace) {
                    continue;
                }
                length = length.saturating_add(self.length_of(&format!("{sign}{name}"), depth + 1)?);
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;

    fn read_text(text: &str) -> Result<Document, LoadError> {
        read(text.as_bytes(), &Url::parse("http://a.example/x.xml").unwrap())
    }

    #[test]
    fn documents_with_their_parts() {
        let text = "<?xml version=\"1.0\"?><!DOCTYPE c PUBLIC \"-//x\" \"c.dtd\" [<!ENTITY e SYSTEM '/e.xml'> <!ENTITY f 'text'>]>\
            <c a='&f;'>&e;&f;&amp;&#38;&unknown;<d/></c>";
        let document = read_text(text).unwrap();
        assert_eq!((document.root.as_str(), document.elements), ("c", 2));
        assert_eq!(document.dtd.unwrap().as_str(), "http://a.example/c.dtd");
        assert_eq!(document.entities[0].as_str(), "http://a.example/e.xml");
    }

    #[test]
    fn bombs_are_refused() {
        let mut laughs = "<!DOCTYPE a [<!ENTITY e0 \"ha\">".to_owned();
        for level in 1..=40 {
            laughs.push_str(&format!("<!ENTITY e{level} \"{}\">", format!("&e{};", level - 1).repeat(10)));
        }
        let twice =
            format!("<!DOCTYPE a [<!ENTITY a \"{}\">]><a>{}</a>", "x".repeat(10_000), "&a;".repeat(10_000));
        for bomb in [
            format!("{laughs}]><a>&e40;</a>"),
            format!("{laughs}]><a b='&e12;'/>"),
            "<!DOCTYPE a [<!ENTITY a \"&b;\"><!ENTITY b \"&a;\">]><a>&a;</a>".to_owned(),
            "<!DOCTYPE a [<!ENTITY % p \"%q;\"><!ENTITY % q \"%p;\">%p;]><a/>".to_owned(),
            twice,
        ] {
            assert_eq!(read_text(&bomb).unwrap_err().kind(), "entity-bomb", "{}", &bomb[..60]);
        }
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        let deep = "<a>".repeat(2000);
        for text in [
            "",
            "text",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "<a/>text",
            "<a b='1' b='2'/>",
            "<a b=1/>",
            "<a b='<'/>",
            &deep,
        ] {
            assert_eq!(read_text(text).unwrap_err().kind(), "not-well-formed", "{text:.40}");
        }
    }
}
