//! A graph as text: "from to" on each line, pages by their numbers from 0.
//!
//! Fields are separated by blanks or tabs; what follows them on a line (a weight, a date) is not looked at; empty lines and lines that
//! begin with `#` or `%` are skipped. gzip and zstd are recognised by their first bytes, not by a name.

use std::io::{self, BufRead, BufReader, Read};

/// A line has at most so many bytes: a file without lines is none of ours.
const LINE_BYTES_MAX: u64 = 4096;
/// Pages a file may leave without links before it has to be asked for: numbers are probably no page numbers then.
const UNLINKED_MAX: u64 = 1 << 24;

/// What is wrong with such a file, and in which line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeListError {
    /// It cannot be read, or is damaged.
    #[error("cannot be read after line {line}: {source}")]
    Io {
        /// The last line that could be read.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line is something else.
    #[error("line {line}: expected {expected}, found {found:?}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What it should be.
        expected: &'static str,
        /// Its beginning.
        found: String,
    },
    /// A page's number is too high.
    #[error("line {line}: page {page} is beyond the last of {pages} pages")]
    Page {
        /// The line.
        line: u64,
        /// The page.
        page: u64,
        /// How many there are.
        pages: u64,
    },
    /// Hardly any page has a link.
    #[error(
        "line {line} names page {page}, but there are only {links} links; if there are that many pages, say how many"
    )]
    Sparse {
        /// The line.
        line: u64,
        /// The page.
        page: u64,
        /// How many links there are.
        links: u64,
    },
}

/// What was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Lines, empty ones and comments too.
    pub lines: u64,
    /// Lines with something in them.
    pub entries: u64,
}

/// Unpacks what is packed.
///
/// # Errors
/// When it cannot be read.
pub fn unpacked<'a>(input: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut input = BufReader::with_capacity(1 << 18, input);
    let head = input.fill_buf()?;
    Ok(if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::with_capacity(1 << 18, flate2::bufread::MultiGzDecoder::new(input)))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(BufReader::with_capacity(1 << 18, zstd::stream::read::Decoder::with_buffer(input)?))
    } else {
        Box::new(input)
    })
}

/// Calls `link` with each link. `pages` is how many pages there are, if that is known. `progress` hears of the lines read
/// so far, every million.
///
/// # Errors
/// At the first line that is none, names a page beyond the last, or cannot be read.
pub fn read_links(
    input: impl BufRead,
    pages: Option<u64>,
    mut link: impl FnMut(u32, u32),
    progress: &mut dyn FnMut(u64),
) -> Result<Counted, EdgeListError> {
    let expected = "two page numbers, \"from to\"";
    let (mut links, mut highest) = (0, (0, 0));
    let counted = lines(input, progress, |number, line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let (Some(from), Some(to)) = (fields.next().and_then(parsed), fields.next().and_then(parsed)) else {
            return Err(wrong(number, expected, line));
        };
        highest = highest.max((from.max(to), number));
        links += 1;
        link(page(from, number, pages)?, page(to, number, pages)?);
        Ok(())
    })?;
    let (page, line) = highest;
    if pages.is_none() && page > UNLINKED_MAX + 64 * links {
        return Err(EdgeListError::Sparse { line, page, links });
    }
    Ok(counted)
}

/// Calls `each` with each page of a list, one on a line.
///
/// # Errors
/// As [`read_links`].
pub fn read_pages(
    input: impl BufRead,
    pages: u64,
    mut each: impl FnMut(u32),
) -> Result<Counted, EdgeListError> {
    lines(input, &mut |_| {}, |number, line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let found = fields.next().and_then(parsed).ok_or_else(|| wrong(number, "a page number", line))?;
        each(page(found, number, Some(pages))?);
        Ok(())
    })
}

fn lines(
    mut input: impl BufRead,
    progress: &mut dyn FnMut(u64),
    mut each: impl FnMut(u64, &[u8]) -> Result<(), EdgeListError>,
) -> Result<Counted, EdgeListError> {
    let (mut counted, mut line) = (Counted::default(), Vec::new());
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        if read.map_err(|source| EdgeListError::Io { line: counted.lines, source })? == 0 {
            return Ok(counted);
        }
        counted.lines += 1;
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(wrong(counted.lines, "a line of at most 4096 bytes", &line));
        }
        let text = line.trim_ascii();
        if !text.is_empty() && !text.starts_with(b"#") && !text.starts_with(b"%") {
            counted.entries += 1;
            each(counted.lines, text)?;
        }
        if counted.lines % 1_000_000 == 0 {
            progress(counted.lines);
        }
    }
}

/// A number, digits only.
fn parsed(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 19 {
        return None;
    }
    field
        .iter()
        .try_fold(0u64, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

fn page(found: u64, line: u64, pages: Option<u64>) -> Result<u32, EdgeListError> {
    let pages = pages.unwrap_or(u64::from(u32::MAX));
    match u32::try_from(found) {
        Ok(page) if found < pages => Ok(page),
        _ => Err(EdgeListError::Page { line, page: found, pages }),
    }
}

fn wrong(line: u64, expected: &'static str, found: &[u8]) -> EdgeListError {
    let found = String::from_utf8_lossy(found).chars().take(60).collect();
    EdgeListError::Line { line, expected, found }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn links(bytes: &[u8], pages: Option<u64>) -> Result<Vec<(u32, u32)>, String> {
        let mut found = Vec::new();
        let input = unpacked(bytes).map_err(|e| e.to_string())?;
        read_links(input, pages, |from, to| found.push((from, to)), &mut |_| {})
            .map_err(|e| e.to_string())?;
        Ok(found)
    }

    #[test]
    fn lines_are_links_however_they_are_packed() {
        let text = b"# a comment\n0 1\r\n\n  2\t0  17\n% another\n1 1";
        let expected = Ok(vec![(0, 1), (2, 0), (1, 1)]);
        assert_eq!(links(text, None), expected);
        assert_eq!(links(&zstd::encode_all(&text[..], 3).unwrap(), None), expected);
        let mut gzip = Vec::new();
        // Members one after the other are one file.
        for half in [&text[..20], &text[20..]] {
            let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            member.write_all(half).unwrap();
            gzip.extend(member.finish().unwrap());
        }
        assert_eq!(links(&gzip, None), expected);
        assert_eq!(links(b"", None), Ok(Vec::new()));
        gzip.truncate(gzip.len() - 3);
        assert!(links(&gzip, None).unwrap_err().starts_with("cannot be read after line"));
    }

    #[test]
    fn what_is_no_link_is_told_with_its_line() {
        let found = |text: &str| links(text.as_bytes(), Some(10)).unwrap_err();
        assert_eq!(found("0 1\n1"), "line 2: expected two page numbers, \"from to\", found \"1\"");
        assert_eq!(found("0 -1"), "line 1: expected two page numbers, \"from to\", found \"0 -1\"");
        assert_eq!(found("0 1\n\n#\n3 10\n"), "line 4: page 10 is beyond the last of 10 pages");
        assert!(found("0 99999999999999999999").starts_with("line 1: expected two page numbers"));
        assert!(found(&"1".repeat(10_000)).starts_with("line 1: expected a line of at most 4096 bytes"));
        assert!(links(b"1 4294967296\n", None).unwrap_err().contains("beyond the last"));
        assert!(links(b"1 2\n1 4000000000\n", None).unwrap_err().starts_with("line 2 names page 4000000000"));
    }

    #[test]
    fn a_list_of_pages_is_checked_too() {
        let mut found = Vec::new();
        read_pages(&b"3\n\n7\n"[..], 8, |page| found.push(page)).unwrap();
        assert_eq!(found, [3, 7]);
        let beyond = read_pages(&b"3\n8\n"[..], 8, |_| {}).unwrap_err();
        assert_eq!(beyond.to_string(), "line 2: page 8 is beyond the last of 8 pages");
        assert!(read_pages(&b"x\n"[..], 8, |_| {}).unwrap_err().to_string().contains("a page number"));
    }
}
