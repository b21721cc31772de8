//! Multicast: clients of one generation share a scan of the disk, whatever each of them selects.
//!
//! ```text
//!            ┌──────────── scan ────────────┐      one batch read at a time, one ahead
//!   start ───┼──────────────▶               ├─── end, then from the start again while somebody needs it
//!            └──────┬───────────────────────┘
//!                   joined: gets everything from here to the end, then from the start to here
//! ```
//!
//! 1. A client joins between two batches and leaves when the scan is there again, so each page comes to it once.
//! 2. Each client has a queue of batches, which are shared. One whose queue is full while others wait has a little patience
//!    spent on it; then it is *detached*: it goes on by itself, with a scan of its own, from where it was.
//! 3. A client's cursor is a *rotation*: where it joined, where it is, and where the end was when it passed it.
//!
//! Only generations that stay as they are are shared; of what changes each client has its own picture.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use webbase_storage::{Access, Cursor, PageKey, PageStream, Record, StreamSpec as Scan};

use super::Inner;
use super::pages::{Answer, Pages};
use super::requests::{Counted, Stop};
use super::select::Selection;
use super::stream::{Picked, Picking, Wanted, send_picked};
use super::workers::Lane;
use crate::wire::message::Fault;
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;
use crate::wire::rotation::Rotation;
use crate::wire::shelf::Shelf;

/// Bytes of records in a batch, about, and records, at most.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_RECORDS: usize = 4 << 10;
/// Batches that wait for a client.
const QUEUE: usize = 8;
/// What is spent on waiting for a client while others have nothing to do, at once and over time.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_SHARE: u32 = 50;
/// Who has taken nothing for so long is not about to.
const STUCK: Duration = Duration::from_millis(250);
/// Between two looks at who waits for whom.
const LOOK: Duration = Duration::from_millis(5);

/// One record of a batch, or damage.
struct Item {
    ordinal: Option<u64>,
    key: Option<PageKey>,
    found: Result<Record, Fault>,
    /// Behind it.
    next: Cursor,
}

struct Batch {
    items: Vec<Item>,
    at: Cursor,
    next: Cursor,
    /// The store ends here.
    is_last: bool,
}

fn read_batch(
    mut source: Box<dyn PageStream>,
    at: Cursor,
    shelf: Option<&Arc<Shelf>>,
) -> (Box<dyn PageStream>, Batch, u64) {
    let (mut items, mut bytes, mut is_last) = (Vec::new(), 0, false);
    while bytes < BATCH_BYTES && items.len() < BATCH_RECORDS {
        let Some(next) = source.next() else {
            is_last = true;
            break;
        };
        let (key, found) = match next {
            Ok(record) => {
                bytes += record.bytes().len();
                (Some(record.get().key()), Ok(record))
            }
            Err(e) => (source.lost(), Err(Fault::from(e))),
        };
        items.push(Item { ordinal: source.ordinal(), key, found, next: source.cursor() });
    }
    if let Some(shelf) = shelf {
        put_on(shelf, &mut items);
    }
    let next = source.cursor();
    (source, Batch { items, at, next, is_last }, bytes as u64)
}

/// Moves the records of a batch to a shelf, if it has room.
fn put_on(shelf: &Arc<Shelf>, items: &mut [Item]) {
    let records = items.iter().filter_map(|item| item.found.as_ref().ok());
    let Some(mut batch) = shelf.put(records.map(|record| &record.bytes()[..])) else { return };
    for record in items.iter_mut().filter_map(|item| item.found.as_mut().ok()) {
        // It was one, so it is one there.
        if let Ok(moved) = Record::new_unverified(batch.split_to(record.bytes().len())) {
            *record = moved;
        }
    }
}

/// The scans of a server.
#[derive(Default)]
pub(super) struct Scans {
    under_way: Mutex<HashMap<(u64, bool), mpsc::UnboundedSender<Subscriber>>>,
}

/// A client, as the scan sees it.
struct Subscriber {
    batches: mpsc::Sender<Arc<Batch>>,
    /// See [`Seat`].
    waits: Arc<AtomicBool>,
    patience: Duration,
    /// Its client has the server's shelf.
    has_shelf: bool,
    /// In its queue, when that was looked at last.
    room: usize,
    /// When that was last found to be another, or a batch was handed out.
    moved_at: Instant,
}

/// A scan, as a client sees it.
struct Seat {
    batches: mpsc::Receiver<Arc<Batch>>,
    /// Whether the client waits for a batch. An empty queue does not say so: it may be busy with the last one.
    waits: Arc<AtomicBool>,
}

impl Seat {
    /// The next batch; `None` when the client was let go, or the scan ended.
    async fn next(&mut self) -> Option<Arc<Batch>> {
        self.waits.store(true, Ordering::Relaxed);
        let batch = self.batches.recv().await;
        self.waits.store(false, Ordering::Relaxed);
        batch
    }
}

impl Subscriber {
    fn new(has_shelf: bool) -> (Subscriber, Seat) {
        let ((batches, queue), waits) = (mpsc::channel(QUEUE), Arc::new(AtomicBool::new(false)));
        let seat = Seat { batches: queue, waits: waits.clone() };
        let (patience, room, moved_at) = (PATIENCE, QUEUE, Instant::now());
        (Subscriber { batches, waits, patience, has_shelf, room, moved_at }, seat)
    }

    fn is_gone(&self) -> bool {
        self.batches.is_closed()
    }

    fn is_full(&self) -> bool {
        self.batches.capacity() == 0
    }

    /// It has nothing to do.
    fn is_idle(&self) -> bool {
        self.batches.capacity() == QUEUE && self.waits.load(Ordering::Relaxed)
    }

    /// It has done nothing for a while.
    fn is_stuck(&mut self) -> bool {
        let room = self.batches.capacity();
        if room != self.room {
            (self.room, self.moved_at) = (room, Instant::now());
        }
        self.moved_at.elapsed() >= STUCK
    }

    /// Gives it a batch; false when it is gone.
    fn give(&mut self, batch: &Arc<Batch>) -> bool {
        let sent = self.batches.try_send(batch.clone()).is_ok();
        (self.room, self.moved_at) = (self.batches.capacity(), Instant::now());
        sent
    }
}

/// A request that takes part in a shared scan.
#[expect(clippy::too_many_arguments, reason = "they are the request's own fields")]
pub(super) async fn serve(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    scan: Scan,
    ranges: RangeSet,
    selection: Selection,
    from: Rotation,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.streams);
    pages.check_ranges(generation, &ranges)?;
    let changes = pages.held(generation, &ranges)?.is_some();
    let wanted =
        Wanted { pages: pages.clone(), places: None, ranges, after: None, selection: Some(selection) };
    let client = Client { inner, pages, call, generation, scan, wanted: Arc::new(wanted) };
    let fresh = Rotation { joined: Cursor::Start, at: Cursor::Start, end: None };
    let left = match from == fresh && !changes {
        true => client.join().await?,
        false => Some(from),
    };
    if let Some(rotation) = left {
        client.alone(rotation).await?;
    }
    call.end();
    Ok(())
}

/// One client of a shared scan.
struct Client<'a> {
    inner: &'a Arc<Inner>,
    pages: &'a Arc<dyn Pages>,
    call: &'a Call,
    generation: u64,
    scan: Scan,
    wanted: Arc<Wanted>,
}

impl Client<'_> {
    /// Takes part in the scan; returns where it was detached, or `None` if it has everything.
    async fn join(&self) -> Result<Option<Rotation>, Stop> {
        let (subscriber, mut seat) = Subscriber::new(self.call.mux().has_shelf());
        let direct = self.scan.access == Access::Direct;
        {
            let mut under_way = self.inner.scans.under_way.lock();
            let name = (self.generation, direct);
            let left = match under_way.get(&name) {
                Some(scan) => scan.send(subscriber).err().map(|e| e.0),
                None => Some(subscriber),
            };
            if let Some(subscriber) = left {
                let (joining, joiners) = mpsc::unbounded_channel();
                // The receiver is alive.
                let _sent = joining.send(subscriber);
                under_way.insert(name, joining);
                tokio::spawn(run(self.inner.clone(), self.pages.clone(), name, self.scan, joiners));
            }
        }
        let mut rotation: Option<Rotation> = None;
        while let Some(batch) = seat.next().await {
            let at = *rotation.get_or_insert(Rotation { joined: batch.at, at: batch.at, end: None });
            let (picked, next) = self.pick(batch, at).await?;
            send_picked(self.inner, self.pages, self.call, picked).await?;
            match next {
                Some(next) => rotation = Some(next),
                None => return Ok(None),
            }
        }
        // Detached before the first batch: from the start, then.
        Ok(Some(rotation.unwrap_or(Rotation { joined: Cursor::Start, at: Cursor::Start, end: None })))
    }

    /// Goes on with a scan of its own.
    async fn alone(&self, mut rotation: Rotation) -> Result<(), Stop> {
        loop {
            let (pages, generation) = (self.pages.clone(), self.generation);
            let scan = Scan { from: rotation.at, ..self.scan };
            let opening = move || pages.stream(generation, &scan);
            let mut source = self.inner.workers.run(Lane::Short, opening).done().await??;
            loop {
                let at = rotation.at;
                let (back, batch, bytes) =
                    self.inner.workers.run(Lane::Short, move || read_batch(source, at, None)).done().await?;
                source = back;
                self.inner.counters.scanned_bytes.fetch_add(bytes, Ordering::Relaxed);
                let ended = batch.is_last;
                let (picked, next) = self.pick(Arc::new(batch), rotation).await?;
                send_picked(self.inner, self.pages, self.call, picked).await?;
                match next {
                    Some(next) => rotation = next,
                    None => return self.since(rotation).await,
                }
                if ended {
                    break; // from the start, to where it joined
                }
            }
        }
    }

    /// In another generation than the one in which it passed the end, there may be more behind that.
    async fn since(&self, rotation: Rotation) -> Result<(), Stop> {
        let Some(end @ Cursor::Ordinal(_)) = rotation.end else { return Ok(()) };
        let (pages, generation) = (self.pages.clone(), self.generation);
        let scan = Scan { from: end, ..self.scan };
        let opening = move || pages.stream(generation, &scan);
        let mut source = self.inner.workers.run(Lane::Short, opening).done().await??;
        let mut at = Rotation { joined: Cursor::Start, at: end, end: None };
        loop {
            let from = at.at;
            let (back, batch, bytes) =
                self.inner.workers.run(Lane::Short, move || read_batch(source, from, None)).done().await?;
            source = back;
            self.inner.counters.scanned_bytes.fetch_add(bytes, Ordering::Relaxed);
            let (picked, next) = self.pick(Arc::new(batch), at).await?;
            send_picked(self.inner, self.pages, self.call, picked).await?;
            match next {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// What of a batch this client gets, and where it is then; `None` when it has everything.
    async fn pick(&self, batch: Arc<Batch>, rotation: Rotation) -> Answer<(Picked, Option<Rotation>)> {
        let wanted = self.wanted.clone();
        let work = move || pick(&wanted, &batch, rotation);
        let needs_disk = self.wanted.selection.as_ref().is_some_and(|s| s.spec.needs_importance());
        match needs_disk {
            true => self.inner.workers.run(Lane::Short, work).done().await?,
            false => work(),
        }
    }
}

/// Whether something lies before a place.
fn is_before(item: &Item, place: Cursor) -> bool {
    match place {
        Cursor::Ordinal(place) => item.ordinal.is_none_or(|ordinal| ordinal < place),
        Cursor::Key(place) => item.key.is_none_or(|key| key < place),
        Cursor::Start => false,
        Cursor::End | Cursor::Live { .. } => true,
    }
}

fn pick(wanted: &Wanted, batch: &Batch, mut rotation: Rotation) -> Answer<(Picked, Option<Rotation>)> {
    let mut picked = Picking::new(wanted);
    let mut done = false;
    for item in &batch.items {
        if rotation.end.is_some() && !is_before(item, rotation.joined) {
            done = true;
            break;
        }
        match &item.found {
            Ok(record) => picked.take(record, item.ordinal, item.next)?,
            Err(fault) => picked.lost(item.key, item.ordinal, fault)?,
        }
    }
    rotation.at = batch.next;
    if batch.is_last {
        done |= rotation.end.is_some() || rotation.joined == Cursor::Start;
        rotation.end = rotation.end.or(Some(batch.next));
        rotation.at = Cursor::Start;
    }
    // What comes behind the last page is nothing more: the client need not know where.
    let text = if done { Rotation { at: Cursor::End, ..rotation } } else { rotation };
    Ok((picked.named(text.to_string()), (!done).then_some(rotation)))
}

/// The scan: reads while somebody needs it.
async fn run(
    inner: Arc<Inner>,
    pages: Arc<dyn Pages>,
    name: (u64, bool),
    scan: Scan,
    mut joiners: mpsc::UnboundedReceiver<Subscriber>,
) {
    let mut subscribers: Vec<Subscriber> = Vec::new();
    loop {
        // From the start.
        let (p, opening) = (pages.clone(), Scan { from: Cursor::Start, ..scan });
        let opened = inner.workers.run(Lane::Short, move || p.stream(name.0, &opening)).done().await;
        let Ok(Ok(source)) = opened else {
            // Who goes on by itself is told why.
            inner.scans.under_way.lock().remove(&name);
            return;
        };
        let read = |source, at, subscribers: &[Subscriber]| {
            let shelf = inner.shelf.clone().filter(|_| subscribers.iter().any(|s| s.has_shelf));
            inner.workers.run(Lane::Short, move || read_batch(source, at, shelf.as_ref()))
        };
        take_in(&mut joiners, &mut subscribers);
        let mut reading = Some(read(source, Cursor::Start, &subscribers));
        while let Some(next) = reading.take() {
            let Ok((source, batch, bytes)) = next.done().await else {
                inner.scans.under_way.lock().remove(&name);
                return;
            };
            inner.counters.scanned_bytes.fetch_add(bytes, Ordering::Relaxed);
            take_in(&mut joiners, &mut subscribers);
            if !batch.is_last {
                reading = Some(read(source, batch.next, &subscribers));
            }
            hand_out(&mut subscribers, &mut joiners, Arc::new(batch)).await;
            if subscribers.is_empty() {
                let mut under_way = inner.scans.under_way.lock();
                match joiners.try_recv() {
                    Ok(joiner) => subscribers.push(joiner),
                    Err(_) => {
                        under_way.remove(&name);
                        return;
                    }
                }
            }
        }
    }
}

fn take_in(joiners: &mut mpsc::UnboundedReceiver<Subscriber>, subscribers: &mut Vec<Subscriber>) {
    while let Ok(joiner) = joiners.try_recv() {
        subscribers.push(joiner);
    }
}

/// Gives a batch to everybody; who is too slow for the others, or gone, is let go. Who joins meanwhile gets the next one.
async fn hand_out(
    subscribers: &mut Vec<Subscriber>,
    joiners: &mut mpsc::UnboundedReceiver<Subscriber>,
    batch: Arc<Batch>,
) {
    let began = Instant::now();
    let mut joining = Vec::new();
    loop {
        subscribers.retain(|s| !s.is_gone());
        let Some(full) = subscribers.iter().find(|s| s.is_full()) else { break };
        let waited = Instant::now();
        // Room or not, it is looked at again.
        let _room = timeout(LOOK, full.batches.reserve()).await.map(drop);
        // When all of the server stood still, that was nobody's fault.
        let waited = waited.elapsed().min(2 * LOOK);
        take_in(joiners, &mut joining);
        joining.retain(|s| !s.is_gone());
        // Somebody has nothing to do, or wants to join, and of the others, too, nobody does anything.
        let somebody_waits = !joining.is_empty() || subscribers.iter().any(Subscriber::is_idle);
        let mut do_nothing = 0;
        for s in subscribers.iter_mut() {
            do_nothing += usize::from(s.is_stuck() | s.is_idle() | s.is_full());
        }
        if somebody_waits && do_nothing == subscribers.len() {
            subscribers.retain_mut(|s| {
                if s.is_full() {
                    s.patience = s.patience.saturating_sub(waited);
                }
                !s.patience.is_zero()
            });
        }
    }
    let earned = began.elapsed().max(Duration::from_millis(1)) / PATIENCE_SHARE;
    subscribers.retain_mut(|s| {
        s.patience = (s.patience + earned).min(PATIENCE);
        s.give(&batch)
    });
    subscribers.append(&mut joining);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Arc<Batch> {
        Arc::new(Batch { items: Vec::new(), at: Cursor::Start, next: Cursor::Start, is_last: false })
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_let_go_and_equal_ones_are_not() {
        let ((fast, mut fast_seat), (slow, slow_seat)) = (Subscriber::new(false), Subscriber::new(false));
        let mut subscribers = vec![fast, slow];
        let (joining, mut joiners) = mpsc::unbounded_channel();
        let began = Instant::now();
        for _ in 0..100 {
            let (_, batch) =
                tokio::join!(hand_out(&mut subscribers, &mut joiners, empty()), fast_seat.next());
            assert!(batch.is_some());
        }
        assert_eq!(subscribers.len(), 1, "one took nothing");
        assert_eq!(slow_seat.batches.len(), QUEUE, "what it was given it keeps");
        assert!(began.elapsed() < PATIENCE * 4);

        // Those that take nothing hold nobody up while they are alone, and are let go for who wants to join.
        let ((slow, _slow_seat), (later, _later_seat)) = (Subscriber::new(false), Subscriber::new(false));
        let mut subscribers = vec![slow];
        for _ in 0..3 {
            hand_out(&mut subscribers, &mut joiners, empty()).await;
        }
        subscribers.push(later);
        for _ in 3..QUEUE {
            hand_out(&mut subscribers, &mut joiners, empty()).await;
        }
        let alone = timeout(PATIENCE * 10, hand_out(&mut subscribers, &mut joiners, empty())).await;
        assert!(alone.is_err(), "they are waited for");
        let (joiner, mut seat) = Subscriber::new(false);
        assert!(joining.send(joiner).is_ok());
        for n in 0..=QUEUE {
            let given = timeout(PATIENCE * 4, hand_out(&mut subscribers, &mut joiners, empty()));
            match n {
                0 => given.await.unwrap(),
                _ => tokio::join!(given, seat.next()).0.unwrap(),
            }
        }
        assert_eq!(subscribers.len(), 1, "who wanted to join is there, and nobody else");

        // Nobody is let go for one that has given up.
        let ((slow, _slow_seat), (joiner, seat)) = (Subscriber::new(false), Subscriber::new(false));
        let mut subscribers = vec![slow];
        for _ in 0..QUEUE {
            hand_out(&mut subscribers, &mut joiners, empty()).await;
        }
        drop(seat);
        assert!(joining.send(joiner).is_ok());
        let alone = timeout(PATIENCE * 10, hand_out(&mut subscribers, &mut joiners, empty())).await;
        assert!(alone.is_err() && subscribers.len() == 1);
    }

    /// Clients at one pace that is not the disk's, and one of them came later: its queue is empty, theirs are full, and nobody is in anybody's way. One at half
    /// their pace is.
    #[tokio::test(start_paused = true)]
    async fn clients_that_take_their_time_are_not_in_each_others_way() {
        for (each_ms, early, slower) in [(10, 2, 0), (30, 4, 0), (100, 9, 0), (30, 4, 1)] {
            let client = |n: u64, each_ms: u64| {
                let (subscriber, mut seat) = Subscriber::new(false);
                tokio::spawn(async move {
                    // None takes as long as the others for every batch.
                    for batch in 0.. {
                        if seat.next().await.is_none() {
                            return;
                        }
                        let differs = (n * 7 + batch * 5) % 11;
                        tokio::time::sleep(Duration::from_millis(each_ms * (95 + differs) / 100)).await;
                    }
                });
                subscriber
            };
            let paces = (0..early).map(|_| each_ms).chain((0..slower).map(|_| 2 * each_ms));
            let mut subscribers: Vec<Subscriber> = paces.zip(0..).map(|(each, n)| client(n, each)).collect();
            let (joining, mut joiners) = mpsc::unbounded_channel();
            for batch in 0..300 {
                if batch == 50 {
                    assert!(joining.send(client(99, each_ms)).is_ok());
                }
                hand_out(&mut subscribers, &mut joiners, empty()).await;
            }
            assert_eq!(subscribers.len(), early + 1, "{each_ms} ms a batch");
        }
    }
}
