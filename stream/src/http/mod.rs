//! HTTP answers as they were received: what their heads say, and their bodies without codings.
//!
//! Heads are kept byte for byte, so they may be anything: bare line feeds, lines without a colon, no empty line at the end.
//! What cannot be read is as if it were not there.

mod coding;
mod head;

pub use self::coding::Coding;
pub use self::head::{
    chunks, field, fields, head_len, is_answer, is_chunked, mime, status, text, without_chunks,
};
pub(crate) use self::head::{lines, value};
