//! A worker: listens, and serves computations. Of each it has one slice, and does what the coordinator says, one thing after the other.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use webbase_node::{Control, Server, Service, Settings as ServerSettings};

use super::WorkersError;
use super::message::{FromWorker, PIECE, TOPIC, ToWorker, decode, encode, take_piece};
use super::slice::{Loading, Slice};

/// Computations at once.
const COMPUTATIONS_MAX: usize = 16;

/// A worker, listening. Dropping it ends it.
pub struct Worker {
    server: Server,
}

impl Worker {
    /// Listens on an address; port 0 is any.
    ///
    /// # Errors
    /// When the address is not free, or not one of this machine's own.
    pub async fn start(listen: SocketAddr) -> Result<Worker, WorkersError> {
        let room = Arc::new(Semaphore::new(COMPUTATIONS_MAX));
        let accept = move |topic: &str, control: Control| {
            if topic == TOPIC {
                drop(tokio::spawn(serve(control, room.clone())));
            }
        };
        let service = Service::default().with_control(Arc::new(accept));
        let server = Server::start(listen, service, ServerSettings::default()).await;
        Ok(Worker { server: server.map_err(WorkersError::Listen)? })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

/// Serves one computation until the coordinator ends it.
async fn serve(mut control: Control, room: Arc<Semaphore>) {
    let served = match room.try_acquire() {
        Ok(_place) => compute(&mut control).await,
        Err(_) => Err(format!("it serves {COMPUTATIONS_MAX} computations already")),
    };
    match served {
        Ok(()) => control.split().0.end(),
        Err(what) => {
            // If that does not arrive either, the coordinator sees the call end.
            let _gone = say(&mut control, &FromWorker::Failed(what)).await;
        }
    }
}

async fn compute(control: &mut Control) -> Result<(), String> {
    let Some(mut slice) = load(control).await? else { return Ok(()) };
    say(control, &FromWorker::Ready).await?;
    loop {
        match hear(control).await? {
            Some(ToWorker::Sweep(sweep)) => {
                let foreign = foreign(control, slice.foreign()).await?;
                // A sweep takes long: other calls, and signs of life, go on meanwhile.
                let swept = tokio::task::spawn_blocking(move || {
                    let totals = slice.sweep(sweep, &foreign);
                    (slice, totals)
                });
                let totals;
                (slice, totals) = swept.await.map_err(|e| e.to_string())?;
                say(control, &FromWorker::Swept(totals?)).await?;
                pieces(control, slice.told().collect(), FromWorker::Passing).await?;
            }
            Some(ToWorker::Restart) => slice.restart(),
            Some(ToWorker::Values) => pieces(control, slice.values().collect(), FromWorker::Values).await?,
            Some(_) => return Err("a message out of turn".into()),
            None => return Ok(()),
        }
    }
}

/// The slice that comes first; none if the coordinator gives up.
async fn load(control: &mut Control) -> Result<Option<Slice>, String> {
    let mut loading = match hear(control).await? {
        Some(ToWorker::Task(task)) => Loading::new(task)?,
        Some(_) => return Err("a message before the task".into()),
        None => return Ok(None),
    };
    loop {
        match hear(control).await? {
            Some(ToWorker::Rows { counts, sources }) => loading.rows(&counts, sources)?,
            Some(ToWorker::More(sources)) => loading.more(sources)?,
            Some(ToWorker::Pages(pages)) => loading.pages(pages)?,
            Some(ToWorker::Tells(tells)) => loading.tells(tells)?,
            Some(ToWorker::Loaded) => break,
            Some(_) => return Err("something else than rows and values".into()),
            None => return Ok(None),
        }
    }
    let checked = tokio::task::spawn_blocking(move || loading.finish()).await;
    checked.map_err(|e| e.to_string())?.map(Some)
}

/// What `count` foreign pages pass on.
async fn foreign(control: &mut Control, count: usize) -> Result<Vec<f64>, String> {
    let mut values = Vec::new();
    while values.len() < count {
        match hear(control).await? {
            Some(ToWorker::Passing(piece)) => take_piece(&mut values, piece, count)?,
            _ => return Err("less values of others than are needed".into()),
        }
    }
    Ok(values)
}

async fn pieces(
    control: &mut Control,
    values: Vec<f64>,
    message: fn(Vec<f64>) -> FromWorker,
) -> Result<(), String> {
    for piece in values.chunks(PIECE) {
        say(control, &message(piece.to_vec())).await?;
    }
    Ok(())
}

async fn say(control: &mut Control, message: &FromWorker) -> Result<(), String> {
    control.send(encode(message)).await.map_err(|e| e.to_string())
}

/// The coordinator's next message; none when it has ended the call.
async fn hear(control: &mut Control) -> Result<Option<ToWorker>, String> {
    match control.receive(None).await {
        Ok(Some(bytes)) => decode(&bytes).map(Some),
        Ok(None) => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}
