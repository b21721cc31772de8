//! One worker, as the coordinator sees it: a call, and how large its slice is.

use std::net::SocketAddr;
use std::time::Duration;

use webbase_node::{Client, ClientSettings, Control};

use super::WorkersError;
use super::cut::Cut;
use super::message::{
    FromWorker, PIECE, Page, Sweep, TOPIC, Task, ToWorker, Totals, decode, encode, is_sound, take_piece,
};
use crate::importance::graph::Rows;

/// Links in one message.
const ROW_LINKS: usize = 1 << 18;
/// A worker that says nothing for so long is given up, though its process lives.
const ANSWERS_WITHIN: Duration = Duration::from_secs(600);

/// A worker with a slice of its own.
pub(super) struct Hand {
    control: Control,
    pub(super) worker: usize,
    task: Task,
}

/// What a worker has swept.
pub(super) struct Swept {
    pub(super) totals: Totals,
    /// What those of its pages pass on that others need.
    pub(super) told: Vec<f64>,
}

impl Hand {
    /// Calls worker number `worker` of a cut.
    pub(super) async fn open(address: SocketAddr, worker: usize, task: Task) -> Result<Hand, WorkersError> {
        let wire = |source| WorkersError::Wire { worker, source };
        let client = Client::connect(address, ClientSettings::default()).await.map_err(wire)?;
        Ok(Hand { control: client.control(TOPIC).map_err(wire)?, worker, task })
    }

    /// Hands its slice over.
    #[expect(clippy::indexing_slicing, reason = "the cut is of these rows and pages")]
    pub(super) async fn load(&mut self, cut: &Cut, rows: &Rows, pages: &[Page]) -> Result<(), WorkersError> {
        self.say(&ToWorker::Task(self.task)).await?;
        let (slice, places) = (cut.slices[self.worker].clone(), cut.places(self.worker, rows.len()));
        let local = |sources: &[u32]| sources.iter().map(|page| places[*page as usize]).collect::<Vec<u32>>();
        let (mut counts, mut sources) = (Vec::new(), Vec::new());
        for page in slice.clone() {
            // A row may be longer than a message.
            let (row, more) = rows.row(page).split_at(rows.row(page).len().min(ROW_LINKS));
            counts.push(row.len() as u32);
            sources.extend(local(row));
            if sources.len() >= ROW_LINKS || counts.len() >= ROW_LINKS {
                let (counts, sources) = (std::mem::take(&mut counts), std::mem::take(&mut sources));
                self.say(&ToWorker::Rows { counts, sources }).await?;
            }
            for piece in more.chunks(ROW_LINKS) {
                self.say(&ToWorker::More(local(piece))).await?;
            }
        }
        self.say(&ToWorker::Rows { counts, sources }).await?;
        for piece in pages[slice.clone()].chunks(PIECE) {
            self.say(&ToWorker::Pages(piece.to_vec())).await?;
        }
        for piece in cut.told[cut.tells[self.worker].clone()].chunks(PIECE) {
            let tells = piece.iter().map(|page| page - slice.start as u32).collect();
            self.say(&ToWorker::Tells(tells)).await?;
        }
        self.say(&ToWorker::Loaded).await
    }

    /// Waits until it has taken its slice.
    pub(super) async fn ready(&mut self) -> Result<(), WorkersError> {
        match self.hear().await? {
            FromWorker::Ready => Ok(()),
            other => Err(self.senseless(&other)),
        }
    }

    /// Has it sweep once; `foreign` is what the pages of others that it needs pass on.
    pub(super) async fn sweep(&mut self, sweep: Sweep, foreign: &[f64]) -> Result<Swept, WorkersError> {
        self.say(&ToWorker::Sweep(sweep)).await?;
        for piece in foreign.chunks(PIECE) {
            self.say(&ToWorker::Passing(piece.to_vec())).await?;
        }
        let totals = match self.hear().await? {
            FromWorker::Swept(totals) => totals,
            other => return Err(self.senseless(&other)),
        };
        let mut told = Vec::new();
        while told.len() < self.task.tells as usize {
            match self.hear().await? {
                FromWorker::Passing(piece) => {
                    take_piece(&mut told, piece, self.task.tells as usize)
                        .map_err(|what| self.failed(what))?;
                }
                other => return Err(self.senseless(&other)),
            }
        }
        Ok(Swept { totals, told })
    }

    /// Has it go back to its first values.
    pub(super) async fn restart(&mut self) -> Result<(), WorkersError> {
        self.say(&ToWorker::Restart).await
    }

    /// What its pages have.
    pub(super) async fn values(&mut self) -> Result<Vec<f64>, WorkersError> {
        self.say(&ToWorker::Values).await?;
        let mut values = Vec::new();
        while values.len() < self.task.pages as usize {
            match self.hear().await? {
                FromWorker::Values(piece) => {
                    take_piece(&mut values, piece, self.task.pages as usize)
                        .map_err(|what| self.failed(what))?;
                }
                other => return Err(self.senseless(&other)),
            }
        }
        if !values.iter().copied().all(is_sound) {
            return Err(self.failed("a page has a value that is no finite number ≥ 0"));
        }
        Ok(values)
    }

    /// That this worker has failed.
    pub(super) fn failed(&self, what: impl Into<String>) -> WorkersError {
        WorkersError::Worker { worker: self.worker, what: what.into() }
    }

    fn senseless(&self, found: &FromWorker) -> WorkersError {
        // Not with all its numbers.
        self.failed(match found {
            FromWorker::Failed(what) => what.as_str(),
            FromWorker::Ready => "it says that it is ready, out of turn",
            FromWorker::Swept(_) => "it says that it has swept, out of turn",
            FromWorker::Passing(_) | FromWorker::Values(_) => "it sends values out of turn",
        })
    }

    async fn say(&mut self, message: &ToWorker) -> Result<(), WorkersError> {
        let sent = self.control.send(encode(message)).await;
        sent.map_err(|source| WorkersError::Wire { worker: self.worker, source })
    }

    async fn hear(&mut self) -> Result<FromWorker, WorkersError> {
        let heard = self.control.receive(Some(ANSWERS_WITHIN)).await;
        match heard.map_err(|source| WorkersError::Wire { worker: self.worker, source })? {
            Some(bytes) => decode(&bytes).map_err(|what| self.failed(what)),
            None => Err(self.failed("it has ended the call")),
        }
    }
}
