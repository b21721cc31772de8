//! HTML responses out of WARC files, plain or gzipped, for the corpus. Whatever is not a whole response is skipped.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

/// One `response` record.
pub struct Response {
    /// `WARC-Target-URI`.
    pub url: String,
    /// Status line and header fields, with the empty line.
    pub head: Vec<u8>,
    /// What follows, as sent: chunked or packed if the server did so.
    pub body: Vec<u8>,
    /// `WARC-Date`, in milliseconds since 1970; 0 when it is not a date.
    pub fetched_at_ms: u64,
}

const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Calls `found` with every successful HTML response in the file. `gzip` unpacks it, member after member.
pub fn read_responses(path: &Path, mut found: impl FnMut(Response) -> io::Result<()>) -> io::Result<()> {
    let mut gzip = Command::new("gzip").arg("-dcf").arg(path).stdout(Stdio::piped()).spawn()?;
    let mut input = BufReader::with_capacity(1 << 20, gzip.stdout.take().expect("stdout was piped"));
    while let Some(fields) = read_fields(&mut input)? {
        let len: u64 = field(&fields, "Content-Length").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut record = input.by_ref().take(len);
        let is_response = field(&fields, "WARC-Type") == Some("response") && len <= RECORD_BYTES_MAX;
        if let (true, Some(url)) = (is_response, field(&fields, "WARC-Target-URI")) {
            let mut content = Vec::with_capacity(len as usize);
            record.read_to_end(&mut content)?;
            if let Some(split) = content.windows(4).position(|window| window == b"\r\n\r\n") {
                let body = content.split_off(split + 4);
                let head_text = String::from_utf8_lossy(&content).to_ascii_lowercase();
                if head_text.split(' ').nth(1) == Some("200") && head_text.contains("content-type: text/html")
                {
                    let fetched_at_ms = field(&fields, "WARC-Date").and_then(date_ms).unwrap_or(0);
                    let url = url.trim_matches(['<', '>']).to_owned();
                    if url.is_ascii() {
                        found(Response { url, head: content, body, fetched_at_ms })?;
                    }
                }
            }
        } else {
            io::copy(&mut record, &mut io::sink())?;
        }
    }
    gzip.wait()?;
    Ok(())
}

/// The named fields of the next record; `None` at the end of the file.
fn read_fields(input: &mut impl BufRead) -> io::Result<Option<Vec<(String, String)>>> {
    let mut fields = Vec::new();
    let mut line = Vec::new();
    let mut started = false;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        match (started, text.is_empty(), text.split_once(':')) {
            (false, _, _) => started = text.starts_with("WARC/"),
            (true, true, _) => return Ok(Some(fields)),
            (true, false, Some((name, value))) => fields.push((name.to_owned(), value.trim().to_owned())),
            (true, false, None) => {}
        }
    }
}

fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// `2026-01-31T12:00:00Z`; fractions of a second are dropped.
fn date_ms(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    // Days since 1 March of the year 0, when leap days come last.
    let (y, m) = if month <= 2 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day.checked_sub(1)?;
    let seconds =
        days.checked_sub(719_468)? * 86_400 + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    Some(seconds * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_html_responses_are_found() {
        let dir = std::env::temp_dir().join(format!("webbase-warc-{}", std::process::id()));
        let response = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hello";
        let record = |kind: &str, content: &str| {
            format!(
                "WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a/\r\nWARC-Date: 2026-01-31T12:00:00Z\r\n\
                 Content-Length: {}\r\n\r\n{content}\r\n\r\n",
                content.len()
            )
        };
        let file =
            [record("warcinfo", "x"), record("request", "GET /"), record("response", response)].concat();
        std::fs::write(&dir, file).unwrap();
        let mut found = Vec::new();
        read_responses(&dir, |response| {
            found.push(response);
            Ok(())
        })
        .unwrap();
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].body, b"<p>hello");
        assert_eq!(found[0].fetched_at_ms, 1_769_860_800_000);
    }
}
