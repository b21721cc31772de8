//! `webbase get`: one page.

use std::io::Write;

use anyhow::{Context, Result};
use webbase_storage::PageId;

use crate::client::{Repository, Server};

/// Write one page to stdout.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase get http://example.org/
  webbase get --headers 00abcdef01234567
  webbase get --headers --raw http://example.org/ > page.http")]
pub(crate) struct Get {
    /// The page's URL, or its id of 16 hexadecimal digits (32 where pages share an id).
    #[arg(value_name = "URL|ID")]
    page: String,
    /// Write the HTTP head before the body.
    #[arg(long)]
    headers: bool,
    /// The body as it was received: still in chunks, still compressed, if it came so.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    server: Server,
}

impl Get {
    pub(crate) async fn run(self) -> Result<()> {
        let repository = self.server.connect().await?;
        let mut out = std::io::stdout().lock();
        let mut write = |bytes: &[u8]| out.write_all(bytes).context("cannot write to stdout");
        if self.headers || self.raw {
            let stored = self.fetch(&repository, true).await?;
            let (head, body) = stored.split_at_checked(head_len(&stored)).unwrap_or((&stored, &[]));
            if self.headers {
                write(head)?;
            }
            if self.raw {
                write(body)?;
            }
        }
        if !self.raw {
            write(&self.fetch(&repository, false).await?)?;
        }
        out.flush().context("cannot write to stdout")
    }

    async fn fetch(&self, repository: &Repository, raw: bool) -> Result<Vec<u8>> {
        let raw = if raw { "1" } else { "0" };
        let is_id = self.page.parse::<PageId>().is_ok()
            || self.page.len() == 32 && self.page.bytes().all(|b| b.is_ascii_hexdigit());
        let request = match is_id {
            true => repository.get(&format!("/page/{}", self.page), &[("raw", raw)]),
            false => repository.get("/page", &[("url", &self.page), ("raw", raw)]),
        };
        let answer = repository.ask(request).await?;
        Ok(answer.bytes().await.context("the page was cut off")?.into())
    }
}

/// Bytes up to and with the empty line.
fn head_len(stored: &[u8]) -> usize {
    let ends = [&b"\r\n\r\n"[..], b"\n\n"];
    let found = ends.iter().filter_map(|end| {
        stored.windows(end.len()).position(|window| window == *end).map(|at| at + end.len())
    });
    found.min().unwrap_or(stored.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_an_empty_line() {
        assert_eq!(head_len(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody\n\nmore"), 25);
        assert_eq!(head_len(b"HTTP/1.0 200\n\nbody\r\n\r\n"), 14);
        assert_eq!(head_len(b"no end"), 6);
    }
}
