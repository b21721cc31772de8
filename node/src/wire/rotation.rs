//! A place in a scan that several streams share: where the client joined, where it is, and where the end was when it passed it.
//!
//! ```text
//!   "m", cursor where it joined, "/", cursor where it is [, "/", cursor of the end]
//! ```
//!
//! It is its node's own, as the cursors in it are.

use std::fmt;
use std::str::FromStr;

use webbase_storage::Cursor;

use super::message::{Code, Fault};

/// Rotations begin so; no cursor of a store does.
pub(crate) const PREFIX: &str = "m";

/// Where a client of a shared scan is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rotation {
    pub(crate) joined: Cursor,
    pub(crate) at: Cursor,
    /// Where the end was; `None` before it.
    pub(crate) end: Option<Cursor>,
}

impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.joined, self.at)?;
        self.end.map_or(Ok(()), |end| write!(f, "/{end}"))
    }
}

impl FromStr for Rotation {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Rotation, Fault> {
        let plain = |cursor: &str| Cursor::from_str(cursor).map_err(Fault::from);
        let Some(rest) = text.strip_prefix(PREFIX) else {
            return Ok(Rotation { joined: Cursor::Start, at: plain(text)?, end: None });
        };
        let mut parts = rest.splitn(3, '/');
        let bad = || Fault::new(Code::BadRequest, "a rotation that is none");
        let (joined, at) = (parts.next().ok_or_else(bad)?, parts.next().ok_or_else(bad)?);
        let end = parts.next().map(plain).transpose()?;
        Ok(Rotation { joined: plain(joined)?, at: plain(at)?, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::{PageId, PageKey};

    #[test]
    fn rotations_print_and_parse() {
        let key = Cursor::Key(PageKey { id: PageId(7), tie: 9 });
        for rotation in [
            Rotation { joined: Cursor::Start, at: Cursor::Start, end: None },
            Rotation { joined: Cursor::Ordinal(5), at: Cursor::Ordinal(9), end: None },
            Rotation { joined: key, at: Cursor::Start, end: Some(Cursor::End) },
        ] {
            assert_eq!(rotation.to_string().parse::<Rotation>().unwrap(), rotation);
        }
        assert_eq!("o5".parse::<Rotation>().unwrap().at, Cursor::Ordinal(5));
        for bad in ["m", "mo5", "mo5/", "mx/o1", "m/o1/o1/o1", ""] {
            assert!(bad.parse::<Rotation>().is_err(), "{bad}");
        }
    }
}
