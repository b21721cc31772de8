//! Filters of a query, in the spelling of each dialect.
//!
//! ```text
//!   pywb              [!][=|~]field:expr    bare: contains    =: is    ~: regular expression from the start
//!   Internet Archive  [!]field:regex        the whole field
//!   OutbackCDX        [!][~]field:expr      bare: regular expression, the whole field    ~: contains
//! ```

use regex::Regex;

use super::ask::Dialect;
use super::capture::{Capture, Field};
use crate::gateway::problem::Problem;

/// Bytes of a compiled expression, at most.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// One filter.
#[derive(Debug)]
pub(super) struct Filter {
    field: Field,
    not: bool,
    by: By,
}

#[derive(Debug)]
enum By {
    Contains(String),
    Is(String),
    Regex(Regex),
}

impl Filter {
    /// Reads one.
    pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Filter, Problem> {
        let bad = |why: &str| {
            let text: String = text.chars().take(200).collect();
            Problem::bad("bad-filter", format!("filter={text}: {why}"))
        };
        let (mut rest, mut not, mut mark) = (text, false, None);
        while let Some(sign @ ('!' | '=' | '~')) = rest.chars().next() {
            match sign {
                '!' if !not => not = true,
                '=' | '~' if mark.is_none() => mark = Some(sign),
                _ => break,
            }
            rest = rest.get(1..).unwrap_or_default();
        }
        let (name, expr) = rest.split_once(':').ok_or_else(|| bad("it has the form field:expression"))?;
        let field = Field::named(name).ok_or_else(|| bad("there is no such field"))?;
        let regex = |pattern: String| {
            regex::RegexBuilder::new(&pattern)
                .size_limit(REGEX_BYTES_MAX)
                .build()
                .map(By::Regex)
                .map_err(|e| bad(&format!("no regular expression: {e}")))
        };
        // Digests are bare here; whoever has one with its algorithm means the same.
        let plain = |expr: &str| match field {
            Field::Digest => expr.strip_prefix("sha1:").unwrap_or(expr).to_owned(),
            _ => expr.to_owned(),
        };
        let by = match (dialect, mark) {
            (_, Some('=')) => By::Is(plain(expr)),
            (Dialect::Pywb, Some(_)) => regex(format!("^(?:{expr})"))?,
            (Dialect::Pywb, None) | (Dialect::Outback, Some(_)) => By::Contains(plain(expr)),
            (Dialect::Archive, _) | (Dialect::Outback, None) => regex(format!("^(?:{expr})$"))?,
        };
        Ok(Filter { field, not, by })
    }

    /// Whether a line passes.
    pub(super) fn passes(&self, capture: &Capture) -> bool {
        let value = capture.get(self.field).unwrap_or_default();
        let holds = match &self.by {
            By::Contains(part) => value.contains(part.as_str()),
            By::Is(whole) => value == whole,
            By::Regex(regex) => regex.is_match(value),
        };
        holds != self.not
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_its_own_marks() {
        let capture = Capture {
            mime: Some("text/html".into()),
            status: Some("200".into()),
            digest: Some("ABC".into()),
            ..Capture::default()
        };
        for (dialect, text, passes) in [
            (Dialect::Pywb, "mime:html", true),
            (Dialect::Pywb, "=mime:html", false),
            (Dialect::Pywb, "!=mime:text/html", false),
            (Dialect::Pywb, "~mime:text", true),
            (Dialect::Pywb, "~mime:html", false),
            (Dialect::Pywb, "!~statuscode:3..", true),
            (Dialect::Pywb, "digest:sha1:ABC", true),
            (Dialect::Archive, "mimetype:html", false),
            (Dialect::Archive, "mimetype:.*html", true),
            (Dialect::Archive, "!statuscode:200", false),
            (Dialect::Archive, "!mimetype:warc/revisit", true),
            (Dialect::Outback, "mime:text/.*", true),
            (Dialect::Outback, "~mime:html", true),
            (Dialect::Outback, "~!mime:html", false),
            (Dialect::Outback, "!~mime:html", false),
        ] {
            assert_eq!(Filter::parse(text, dialect).unwrap().passes(&capture), passes, "{dialect:?} {text}");
        }
        for bad in ["", "mime", "nofield:x", "~mime:(", "~mime:(a{500}){500}"] {
            assert_eq!(Filter::parse(bad, Dialect::Pywb).unwrap_err().status(), 400, "{bad}");
        }
    }
}
