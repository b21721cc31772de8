//! One input to `POST /pages`, as a body that is read while it is sent.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::Value;
use tokio::sync::mpsc;
use webbase_stream::warc::{Form, Writer};

use super::files::{Input, PageFile};
use crate::client::Repository;
use crate::cmd::bytes_progress::Progress;

const PIECE_BYTES: usize = 256 << 10;
/// Pieces that were read and are not sent.
const PIECES: usize = 4;

/// Sends an input, and gives the server's report.
pub(super) async fn send(
    repository: &Repository,
    input: &Input,
    repack: bool,
    progress: &Progress,
) -> Result<Value> {
    let (sender, pieces) = mpsc::channel(PIECES);
    let (taken, mut counted) = mpsc::unbounded_channel();
    let reading = match input {
        Input::Archive { path, .. } => {
            let path = path.clone();
            let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            tokio::task::spawn_blocking(move || archive(file, &sender))
        }
        Input::Pages { pages, .. } => {
            let pages: Vec<PageFile> = pages.iter().map(PageFile::copy).collect();
            tokio::task::spawn_blocking(move || page_files(&pages, &sender))
        }
    };
    let request = repository
        .post_long("/pages", if repack { &[("repack", "true")] } else { &[] })
        .header(hyper::header::CONTENT_TYPE, "application/warc")
        .body(reqwest::Body::wrap(Pieces { pieces, taken }));
    let counting = async {
        while let Some(bytes) = counted.recv().await {
            progress.done(bytes);
        }
    };
    let (answer, ()) = tokio::join!(repository.json(request), counting);
    // A reader that failed has broken the body off, and its error says more than the server's.
    reading.await.context("reading broke off")??;
    answer
}

type Sender = mpsc::Sender<io::Result<Bytes>>;

fn archive(mut file: File, sender: &Sender) -> io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let read = match file.read(&mut piece) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return broken(e, sender),
        };
        piece.truncate(read);
        // The server may have answered already.
        if read == 0 || sender.blocking_send(Ok(piece.into())).is_err() {
            return Ok(());
        }
    }
}

fn page_files(pages: &[PageFile], sender: &Sender) -> io::Result<()> {
    let (mut writer, mut out) = (Writer::new(Form::Plain), Vec::new());
    for page in pages {
        let body = match std::fs::read(&page.path) {
            Ok(body) => body,
            Err(e) => {
                return broken(io::Error::new(e.kind(), format!("{}: {e}", page.path.display())), sender);
            }
        };
        writer.resource(page.url.as_str(), page.at_ms, page.mime, &body, &mut out);
        if out.len() >= PIECE_BYTES && sender.blocking_send(Ok(std::mem::take(&mut out).into())).is_err() {
            return Ok(());
        }
    }
    // The server may have answered already.
    let _answered = sender.blocking_send(Ok(out.into()));
    Ok(())
}

/// Breaks the body off, so that nobody takes it for whole.
fn broken(e: io::Error, sender: &Sender) -> io::Result<()> {
    let _answered = sender.blocking_send(Err(io::Error::new(e.kind(), e.to_string())));
    Err(e)
}

impl PageFile {
    fn copy(&self) -> PageFile {
        PageFile { path: self.path.clone(), url: self.url.clone(), mime: self.mime, at_ms: self.at_ms }
    }
}

/// A body that is read while it is sent.
struct Pieces {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    /// Bytes that were taken, to be counted.
    taken: mpsc::UnboundedSender<u64>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.pieces.poll_recv(cx).map(|piece| {
            let piece = piece?;
            if let Ok(piece) = &piece {
                // Nobody counts any more at the end.
                let _ended = self.taken.send(piece.len() as u64);
            }
            Some(piece.map(Frame::data))
        })
    }
}
