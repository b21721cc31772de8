//! The lines of an answer, in each of the forms that clients ask for.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::ask::{Ask, Dialect, Output};
use super::capture::{Capture, Field};
use crate::gateway::memento;

/// Writes an answer.
pub(super) struct Lines {
    ask: Arc<Ask>,
    /// Where this server is reached, for links.
    base: String,
    rows: u64,
}

impl Lines {
    pub(super) fn new(ask: Arc<Ask>, base: String) -> Lines {
        Lines { ask, base, rows: 0 }
    }

    /// The content type of the answer.
    pub(super) fn kind(&self) -> &'static str {
        match self.ask.output {
            Output::Text => "text/plain; charset=utf-8",
            Output::Cdxj => "text/x-cdxj",
            Output::JsonLines => "text/x-ndjson",
            Output::JsonRows | Output::JsonObjects => "application/json",
            Output::Link => "application/link-format",
        }
    }

    fn fields(&self) -> &[Field] {
        match (&self.ask.fields, self.ask.dialect) {
            (Some(fields), _) => fields,
            (None, Dialect::Archive) => &Field::SEVEN,
            (None, _) => &Field::ALL,
        }
    }

    fn name(&self, field: Field) -> &'static str {
        match self.ask.dialect {
            Dialect::Pywb => field.name(),
            Dialect::Archive => field.archive_name(),
            Dialect::Outback => match field {
                Field::Redirect => "redirecturl",
                field => field.archive_name(),
            },
        }
    }

    fn value(&self, capture: &Capture, field: Field) -> Value {
        let text = capture.text(field);
        match text.parse::<u64>() {
            Ok(number) if self.ask.dialect == Dialect::Outback && field.is_number() => number.into(),
            _ => text.into_owned().into(),
        }
    }

    /// Writes a line.
    pub(super) fn line(&mut self, capture: &Capture, out: &mut String) {
        match self.ask.output {
            Output::Text => {
                for (n, field) in self.fields().iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { " " });
                    out.push_str(&capture.text(*field));
                }
                out.push('\n');
            }
            Output::Cdxj => {
                let fields = self.ask.fields.as_deref();
                let inside = |field: &Field| !matches!(field, Field::Urlkey | Field::Timestamp);
                let object: Vec<Field> =
                    fields.unwrap_or(&Field::OBJECT).iter().copied().filter(inside).collect();
                // With some fields only, only those are told.
                if fields.is_none_or(|fields| fields.contains(&Field::Urlkey)) {
                    let _ = write!(out, "{} ", capture.urlkey); // writing to memory
                }
                if fields.is_none_or(|fields| fields.contains(&Field::Timestamp)) {
                    let _ = write!(out, "{} ", capture.timestamp);
                }
                object_of(&object, capture, out);
                out.push('\n');
            }
            Output::JsonLines => {
                let both: Vec<Field> =
                    [Field::Urlkey, Field::Timestamp].into_iter().chain(Field::OBJECT).collect();
                object_of(self.ask.fields.as_deref().unwrap_or(&both), capture, out);
                out.push('\n');
            }
            Output::JsonRows => {
                if self.rows == 0 {
                    let names: Vec<&str> = self.fields().iter().map(|field| self.name(*field)).collect();
                    let _ = write!(out, "[{}", json!(names));
                }
                let row: Vec<Value> = self.fields().iter().map(|field| self.value(capture, *field)).collect();
                let _ = write!(out, ",\n{}", Value::from(row));
            }
            Output::JsonObjects => {
                let fields = self.fields();
                let object: Map<String, Value> =
                    fields.iter().map(|f| (self.name(*f).to_owned(), self.value(capture, *f))).collect();
                out.push_str(if self.rows == 0 { "[" } else { ",\n" });
                let _ = write!(out, "{}", Value::from(object));
            }
            Output::Link => {
                let _ = write!(out, "{}", memento::link_line(&self.base, &capture.url, &capture.timestamp));
                out.push_str(",\n");
            }
        }
        self.rows += 1;
    }

    /// Writes what comes behind the last line: where to go on, if that was asked for.
    pub(super) fn end(&mut self, resume: Option<&str>, out: &mut String) {
        match (self.ask.output, resume) {
            (Output::Text | Output::Cdxj, Some(key)) => {
                let _ = write!(out, "\n{key}\n");
            }
            (Output::JsonLines, Some(key)) => {
                let _ = writeln!(out, "{}", json!({"resumeKey": key}));
            }
            (Output::JsonRows, resume) => {
                if self.rows == 0 {
                    out.push('[');
                }
                if let Some(key) = resume {
                    let _ = write!(out, ",\n[],\n{}", json!([key]));
                }
                out.push_str("]\n");
            }
            (Output::JsonObjects, _) => out.push_str(if self.rows == 0 { "[]\n" } else { "]\n" }),
            _ => {}
        }
    }
}

/// A line with all its fields.
pub(super) fn cdxj(capture: &Capture, out: &mut String) {
    let _ = write!(out, "{} {} ", capture.urlkey, capture.timestamp); // writing to memory
    object_of(&Field::OBJECT, capture, out);
    out.push('\n');
}

/// An object of these fields, with a blank behind each colon and comma as Python writes it; those that are not there are left
/// out, as cdxj-indexer does.
fn object_of(fields: &[Field], capture: &Capture, out: &mut String) {
    out.push('{');
    let mut first = true;
    for field in fields {
        let Some(value) = capture.get(*field) else { continue };
        out.push_str(if first { "" } else { ", " });
        first = false;
        let _ = write!(out, "\"{}\": {}", field.name(), Value::from(value)); // writing to memory
    }
    out.push('}');
}
