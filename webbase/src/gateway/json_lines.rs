//! Pages as lines of JSON.
//!
//! ```text
//!   {"id": …, "url": …, "fetched_at_ms": …, "modified_at_ms": …|null, "status": 200, "mime": …, "head": …, "body": …}
//!   {"cursor": "w2…"}                          now and then: the place behind the page before
//!   {"end": true, "pages": 12, "cursor": …}    the last line; a stream without it is not whole
//! ```
//!
//! `head` and `body` are text where they are UTF-8; else they are Base64 in `head_base64` and `body_base64`. They are as they
//! were received. What the stream was to leave out is absent.

use bytes::Bytes;
use data_encoding::BASE64;
use serde_json::{Map, Value, json};
use webbase_storage::{Dictionaries, Record};

use super::page::long_name;
use super::problem::Problem;

/// Appends a page's line.
pub(super) fn page(record: &Record, dictionaries: &Dictionaries, out: &mut Vec<u8>) -> Result<(), Problem> {
    let page = record.get();
    let mut line = Map::new();
    line.insert("id".into(), long_name(page.key()).into());
    line.insert("url".into(), page.url().into());
    line.insert("fetched_at_ms".into(), page.fetched_at_ms().into());
    line.insert("modified_at_ms".into(), page.modified_at_ms().into());
    line.insert("status".into(), page.status().into());
    line.insert("mime".into(), page.mime().into());
    let is_whole = !page.is_partial();
    if is_whole || page.head_len() > 0 {
        bytes(&mut line, "head", &record.head(dictionaries)?);
    }
    if is_whole || !page.stored_body().is_empty() {
        bytes(&mut line, "body", &record.body(dictionaries)?);
    }
    write(&Value::Object(line), out);
    Ok(())
}

fn bytes(line: &mut Map<String, Value>, name: &str, bytes: &Bytes) {
    match std::str::from_utf8(bytes) {
        Ok(text) => line.insert(name.into(), text.into()),
        Err(_) => line.insert(format!("{name}_base64"), BASE64.encode(bytes).into()),
    };
}

/// Appends a cursor's line.
pub(super) fn cursor(cursor: &str, out: &mut Vec<u8>) {
    write(&json!({"cursor": cursor}), out);
}

/// Appends the last line.
pub(super) fn end(pages: u64, damaged: u64, cursor: Option<&str>, out: &mut Vec<u8>) {
    write(&json!({"end": true, "pages": pages, "damaged": damaged, "cursor": cursor}), out);
}

fn write(line: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(line.to_string().as_bytes());
    out.push(b'\n');
}
