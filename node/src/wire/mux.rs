//! The calls of one connection: who may send how much, what has arrived, and what waits to be written.
//!
//! 1. Data of a call is sent only under credit, and taken only under credit: a peer that exceeds it is cut off. Each data
//!    frame costs its payload, but at least [`FRAME_COST_MIN`], so that empty frames are not free; an empty frame that
//!    only ends its direction is.
//! 2. Credit comes back when the receiver has taken the data out, so that what waits for it stays under the window.
//! 3. What waits to be written is bounded too: senders of large things wait for room, and a server stops reading
//!    requests until there is some.
//! 4. A call that is dropped tells the other side, and its resources are free at once.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::time::Instant;
use webbase_storage::{Dictionaries, Dictionary};

use super::frame::{self, DATA_BYTES, DICTIONARY, END, Header, Kind, PART, PLACED, RECORDS};
use super::link::Output;
use super::message::{self, Code, Fault, Request};
use super::shelf::{Placed, Shelf, TOLD_BYTES_MAX, TOLD_SLOTS_MAX};
use crate::error::{NodeError, Result};

/// What a data frame costs at least.
pub(crate) const FRAME_COST_MIN: u64 = 64;
/// The smallest window that can take the largest frame while a quarter of it has not come back yet.
pub(crate) const CREDIT_BYTES_MIN: u32 = 2 * DATA_BYTES as u32;
/// Bytes taken off a shelf before that is said.
const TAKEN_BYTES: usize = 512 << 10;
/// Dictionaries taken on one connection.
const DICTIONARIES_MAX: usize = 256;

/// What one side of a connection allows, and how long it waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of data taken in each call before they are consumed. At least 512 KiB.
    pub credit_bytes: u32,
    /// As [`Limits::credit_bytes`], and at most that, of a client that reaches its node by a loopback address. Nothing is on its way for long there, and what lies in
    /// sockets and queues is read again sooner, while the processor still has it, the less it is.
    pub credit_bytes_near: u32,
    /// Calls open at once on a connection.
    pub calls_max: u32,
    /// Bytes that may wait to be written.
    pub out_bytes_max: usize,
    /// Bytes of the largest record, page or message taken.
    pub item_bytes_max: u64,
    /// Until the handshake is done.
    pub handshake: Duration,
    /// Silence before the peer is asked for a sign of life.
    pub ping_after: Duration,
    /// Silence, or no progress in writing, after which the connection is given up.
    pub dead_after: Duration,
    /// Time without any call after which a server closes the connection.
    pub idle_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            credit_bytes: 4 << 20,
            credit_bytes_near: 1 << 20,
            calls_max: 1024,
            out_bytes_max: 2 << 20,
            item_bytes_max: 80 << 20,
            handshake: Duration::from_secs(10),
            ping_after: Duration::from_secs(15),
            dead_after: Duration::from_secs(45),
            idle_after: Duration::from_secs(600),
        }
    }
}

fn cost(header: &Header) -> u64 {
    if header.length == 0 && header.flags == END { 0 } else { u64::from(header.length).max(FRAME_COST_MIN) }
}

/// Data as it was sent: whole, its parts joined.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) payload: Bytes,
    pub(crate) flags: u8,
}

#[derive(Default)]
struct CallState {
    inbox: VecDeque<Item>,
    /// The other side has sent its last data.
    ended: bool,
    /// Why the call is over.
    fault: Option<Fault>,
    /// What the other side may still send, and what was consumed but not given back yet.
    receive_credit: u64,
    consumed: u64,
    send_credit: u64,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    /// When waiting for data is given up.
    deadline: Option<Instant>,
    timed_out: bool,
}

impl CallState {
    fn wake(&mut self) {
        self.receiver.take().into_iter().chain(self.sender.take()).for_each(Waker::wake);
    }
}

#[derive(Default)]
struct State {
    calls: HashMap<u32, CallState>,
    next_id: u32,
    out: Output,
    /// Bytes the driver has taken and not written yet.
    writing: usize,
    driver: Option<Waker>,
    driver_woken: bool,
    /// Somebody waits for room to write.
    starved: bool,
    closed: Option<NodeError>,
    /// No new calls: ours (client: the peer said goodbye) or the peer's (server: we did).
    goodbye: bool,
    sent_dictionaries: Vec<u64>,
    taken_dictionaries: usize,
    /// What the peer was told the places of, and has not taken.
    told: Told,
    /// What this side has taken off the peer's shelf and not said yet.
    taken: Taken,
}

/// Records that a peer was told the places of, frame by frame.
#[derive(Default)]
struct Told {
    frames: VecDeque<ToldFrame>,
    bytes: usize,
    /// Slots that these lie in, each as often as it comes after another.
    slots: usize,
}

struct ToldFrame {
    bytes: usize,
    slot: u32,
    _held: Bytes,
}

impl Told {
    /// Whether so many bytes more may be told of.
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= TOLD_BYTES_MAX && self.slots < TOLD_SLOTS_MAX
    }

    fn push(&mut self, bytes: usize, slot: u32, held: Bytes) {
        self.slots += usize::from(self.frames.back().is_none_or(|last| last.slot != slot));
        self.bytes += bytes;
        self.frames.push_back(ToldFrame { bytes, slot, _held: held });
    }

    /// The first one was taken; says how many bytes it had.
    fn pop(&mut self) -> usize {
        let Some(ToldFrame { bytes, slot, .. }) = self.frames.pop_front() else { return 0 };
        self.slots -= usize::from(self.frames.front().is_none_or(|next| next.slot != slot));
        self.bytes -= bytes;
        bytes
    }
}

/// Frames taken off a shelf, and bytes.
#[derive(Default)]
struct Taken {
    frames: u32,
    bytes: usize,
}

impl State {
    fn wake_driver(&mut self) {
        if !self.driver_woken {
            self.driver_woken = true;
            if let Some(driver) = &self.driver {
                driver.wake_by_ref();
            }
        }
    }

    /// Sends a dictionary that the peer has not been sent yet.
    fn send_dictionary(&mut self, digest: u64, find: impl FnOnce(u64) -> Option<Arc<Dictionary>>) {
        if digest == 0 || self.sent_dictionaries.contains(&digest) {
            return;
        }
        if let Some(dictionary) = find(digest) {
            self.sent_dictionaries.push(digest);
            let content = dictionary.content();
            if content.len() <= frame::DICTIONARY_BYTES_MAX as usize {
                self.out.small_frame(Header::new(Kind::Dictionary, 0, content.len()), content);
            }
        }
    }

    /// Says what was taken off the peer's shelf.
    fn say_taken(&mut self) {
        let Taken { frames, .. } = std::mem::take(&mut self.taken);
        if frames > 0 {
            self.out.small_frame(Header::new(Kind::Taken, 0, 4), &frames.to_le_bytes());
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.out.bytes() + self.writing
    }
}

/// One connection's calls, shared by its driver and everybody who has a call.
pub(crate) struct Mux {
    pub(crate) peer: String,
    pub(crate) limits: Limits,
    /// What the peer gives each call to begin with.
    peer_credit: u64,
    /// Calls the peer allows us.
    peer_calls: u32,
    pub(crate) dictionaries: Dictionaries,
    /// What `goodbye` is, and whether it is closed, for those who ask often.
    leaving: AtomicBool,
    over: AtomicBool,
    /// What the peer has of this side's, too.
    shelf: Option<Arc<Shelf>>,
    state: Mutex<State>,
}

impl Mux {
    pub(crate) fn new(
        peer: String,
        limits: Limits,
        (peer_credit, peer_calls): (u32, u32),
        dictionaries: Dictionaries,
        sent: Vec<u64>,
        shelf: Option<Arc<Shelf>>,
    ) -> Arc<Mux> {
        let state = Mutex::new(State { next_id: 1, sent_dictionaries: sent, ..State::default() });
        let (peer_credit, leaving, over) =
            (peer_credit.into(), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Mux { peer, limits, peer_credit, peer_calls, dictionaries, leaving, over, shelf, state })
    }

    fn refused(&self, fault: Fault) -> NodeError {
        NodeError::Refused { peer: self.peer.clone(), fault }
    }

    pub(crate) fn violation(&self, what: impl ToString) -> NodeError {
        NodeError::Protocol { peer: self.peer.clone(), what: what.to_string() }
    }

    fn fresh_call(&self) -> CallState {
        CallState {
            receive_credit: self.limits.credit_bytes.into(),
            send_credit: self.peer_credit,
            ..CallState::default()
        }
    }

    // What the dialing side does.

    /// Opens a call; with `end` the request is all that is sent.
    pub(crate) fn open(self: &Arc<Self>, request: &Request, end: bool) -> Result<Call> {
        let payload = message::encode(request);
        let max = u64::from(frame::OPEN_BYTES_MAX);
        if payload.len() as u64 > max {
            return Err(NodeError::TooMuch { what: "bytes of a request", found: payload.len() as u64, max });
        }
        let mut state = self.state.lock();
        if let Some(e) = &state.closed {
            return Err(e.clone());
        }
        if state.goodbye {
            return Err(self.refused(Fault::new(Code::ShuttingDown, "it takes no more calls")));
        }
        if state.calls.len() >= self.peer_calls as usize {
            let (found, max) = (state.calls.len() as u64 + 1, self.peer_calls.into());
            return Err(NodeError::TooMuch { what: "calls at once on a connection", found, max });
        }
        let mut id = state.next_id.max(1);
        while state.calls.contains_key(&id) {
            id = id.wrapping_add(1).max(1);
        }
        state.next_id = id.wrapping_add(1);
        state.calls.insert(id, self.fresh_call());
        let header =
            Header { flags: if end { END } else { 0 }, ..Header::new(Kind::Open, id, payload.len()) };
        state.out.small_frame(header, &payload);
        state.wake_driver();
        Ok(Call::new(self, id, true))
    }

    // What the accepting side does. These are called by the driver itself, which writes right after: nobody is woken.

    /// Answers a request at once with a whole record, if it fits the credit every call begins with, and with the dictionary
    /// that it needs before it.
    pub(crate) fn answer_record(
        &self,
        id: u32,
        record: &Bytes,
        dictionary: u64,
        find: impl FnOnce(u64) -> Option<Arc<Dictionary>>,
    ) -> bool {
        if record.len() > DATA_BYTES || record.len() as u64 > self.peer_credit {
            return false;
        }
        let header = Header { flags: END | RECORDS, ..Header::new(Kind::Data, id, record.len()) };
        let mut state = self.state.lock();
        state.send_dictionary(dictionary, find);
        state.out.records(header, std::slice::from_ref(record));
        true
    }

    /// Answers a request at once with a small message.
    pub(crate) fn answer_message(&self, id: u32, payload: &[u8]) {
        let header = Header { flags: END, ..Header::new(Kind::Data, id, payload.len()) };
        self.state.lock().out.small_frame(header, payload);
    }

    /// Answers a request at once with an error.
    pub(crate) fn answer_fault(&self, id: u32, fault: &Fault) {
        let payload = message::encode(fault);
        self.state.lock().out.small_frame(Header::new(Kind::Error, id, payload.len()), &payload);
    }

    /// A call the peer has opened, for whoever serves it. `Ok(None)`: there are too many; the peer was told.
    pub(crate) fn accept(self: &Arc<Self>, id: u32, end: bool) -> Result<Option<Call>> {
        let mut state = self.state.lock();
        if state.calls.contains_key(&id) {
            return Err(self.violation(format!("call {id} was opened twice")));
        }
        if state.calls.len() >= self.limits.calls_max as usize {
            let text = format!("{} calls are open on this connection, that is the limit", state.calls.len());
            drop(state);
            self.answer_fault(id, &Fault::new(Code::Busy, text));
            return Ok(None);
        }
        state.calls.insert(id, CallState { ended: end, ..self.fresh_call() });
        drop(state);
        Ok(Some(Call::new(self, id, false)))
    }

    pub(crate) fn is_open(&self, id: u32) -> bool {
        self.state.lock().calls.contains_key(&id)
    }

    // What both sides do with frames.

    pub(crate) fn on_data(&self, header: &Header, payload: Bytes) -> Result<()> {
        let mut state = self.state.lock();
        let Some(call) = state.calls.get_mut(&header.call) else { return Ok(()) };
        let cost = cost(header);
        if cost > call.receive_credit {
            let what =
                format!("call {} sent {cost} bytes with credit for {}", header.call, call.receive_credit);
            return Err(self.violation(what));
        }
        if call.ended {
            return Err(self.violation(format!("call {} sent data after its end", header.call)));
        }
        call.receive_credit -= cost;
        call.ended = header.flags & END != 0;
        if cost > 0 {
            call.inbox.push_back(Item { payload, flags: header.flags });
        }
        if let Some(waker) = call.receiver.take() {
            waker.wake();
        }
        Ok(())
    }

    /// A frame's records were copied off the peer's shelf. It is told soon: with the next credit, when they are many, or with the next tick.
    pub(crate) fn on_placed(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.taken.frames += 1;
        state.taken.bytes += bytes;
        if state.taken.bytes >= TAKEN_BYTES {
            state.say_taken();
        }
    }

    /// The peer has copied so many frames' records.
    pub(crate) fn on_taken(&self, payload: &[u8]) -> Result<()> {
        let frames = payload.first_chunk().map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let mut state = self.state.lock();
        let told = state.told.frames.len();
        if frames == 0 || frames > told {
            return Err(self.violation(format!("{frames} frames taken off the shelf, of {told}")));
        }
        let bytes = (0..frames).map(|_| state.told.pop()).sum();
        if let Some(shelf) = &self.shelf {
            shelf.count_taken(bytes);
        }
        Ok(())
    }

    /// Whether the peer has this side's shelf.
    pub(crate) fn has_shelf(&self) -> bool {
        self.shelf.is_some()
    }

    pub(crate) fn on_credit(&self, id: u32, payload: &[u8]) -> Result<()> {
        let Some(bytes) = payload.first_chunk().map(|b| u32::from_le_bytes(*b)) else {
            return Err(self.violation("a credit without a number"));
        };
        let mut state = self.state.lock();
        let Some(call) = state.calls.get_mut(&id) else { return Ok(()) };
        call.send_credit += u64::from(bytes);
        if call.send_credit > 1 << 32 {
            return Err(self.violation(format!("call {id} was given credit for {} bytes", call.send_credit)));
        }
        if let Some(waker) = call.sender.take() {
            waker.wake();
        }
        Ok(())
    }

    pub(crate) fn on_fault(&self, id: u32, fault: Fault) {
        if let Some(call) = self.state.lock().calls.get_mut(&id) {
            call.fault.get_or_insert(fault);
            call.wake();
        }
    }

    pub(crate) fn on_dictionary(&self, content: &[u8]) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.taken_dictionaries += 1;
            if state.taken_dictionaries > DICTIONARIES_MAX {
                return Err(self.violation("too many dictionaries"));
            }
        }
        if self.dictionaries.get(Dictionary::digest_of(content)).is_none() {
            self.dictionaries.insert(Arc::new(Dictionary::new(content.to_vec(), 1)));
        }
        Ok(())
    }

    /// Sends dictionaries that the peer has not been sent yet; records that use them may follow.
    pub(crate) fn send_dictionary(&self, digest: u64, find: impl FnOnce(u64) -> Option<Arc<Dictionary>>) {
        if digest != 0 {
            self.state.lock().send_dictionary(digest, find);
        }
    }

    /// A frame without a payload for the connection itself.
    pub(crate) fn push_bare(&self, kind: Kind) {
        let mut state = self.state.lock();
        state.out.small_frame(Header::new(kind, 0, 0), &[]);
        state.wake_driver();
    }

    // Beginning and end.

    /// Takes no more calls from now on, and says so.
    pub(crate) fn say_goodbye(&self) {
        let mut state = self.state.lock();
        if !state.goodbye {
            state.goodbye = true;
            self.leaving.store(true, Ordering::Relaxed);
            state.out.small_frame(Header::new(Kind::Goodbye, 0, 0), &[]);
            state.wake_driver();
        }
    }

    /// The peer takes no more calls.
    pub(crate) fn on_goodbye(&self) {
        self.state.lock().goodbye = true;
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether there is nothing left to do: no call, nothing to write, nothing on the shelf that the peer has yet to take.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        state.calls.is_empty() && state.waiting_bytes() == 0 && state.told.frames.is_empty()
    }

    /// Ends everything; all waiting calls learn why.
    pub(crate) fn close(&self, why: NodeError) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(why);
        self.over.store(true, Ordering::Release);
        state.calls.values_mut().for_each(CallState::wake);
        state.wake_driver();
        // Who reads late what it was told finds out.
        let told = std::mem::take(&mut state.told);
        drop(state);
        drop(told);
    }

    pub(crate) fn closed(&self) -> Option<NodeError> {
        if self.over.load(Ordering::Acquire) { self.state.lock().closed.clone() } else { None }
    }

    // What the driver does.

    pub(crate) fn driver_polls(&self, cx: &Context<'_>) {
        let mut state = self.state.lock();
        state.driver_woken = false;
        if !state.driver.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
        }
    }

    /// Whether no more requests should be read until something was written.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waiting_bytes() >= self.limits.out_bytes_max
    }

    /// Moves what waits to the driver's own queue.
    pub(crate) fn take_output(&self, to: &mut Output) {
        let mut state = self.state.lock();
        to.take_all(&mut state.out);
        state.writing = to.bytes();
    }

    /// The driver has written; so many bytes are left.
    pub(crate) fn written(&self, left: usize) {
        let mut state = self.state.lock();
        state.writing = left;
        if state.starved && state.waiting_bytes() < self.limits.out_bytes_max {
            state.starved = false;
            state.calls.values_mut().filter_map(|call| call.sender.take()).for_each(Waker::wake);
        }
    }

    /// Gives up on what has waited too long; returns whether there is any call.
    pub(crate) fn tick(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.out.let_go();
        state.say_taken();
        for call in state.calls.values_mut() {
            if call.deadline.is_some_and(|deadline| deadline <= now) {
                call.timed_out = true;
                call.wake();
            }
        }
        !state.calls.is_empty()
    }
}

/// One side of a call.
pub(crate) struct Call {
    mux: Arc<Mux>,
    id: u32,
    /// Whether this side opened it.
    dialed: bool,
    /// Nothing is left to tell the other side.
    over: AtomicBool,
    /// Parts of an item that is not whole yet.
    joining: Mutex<BytesMut>,
}

impl Call {
    fn new(mux: &Arc<Mux>, id: u32, dialed: bool) -> Call {
        Call { mux: mux.clone(), id, dialed, over: AtomicBool::new(false), joining: Mutex::default() }
    }

    pub(crate) fn mux(&self) -> &Arc<Mux> {
        &self.mux
    }

    /// The next data, or `None` after the last. With a time limit it gives up.
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn receive(&self, limit: Option<Duration>) -> Result<Option<Item>> {
        if let Some(limit) = limit {
            let deadline = Instant::now() + limit;
            if let Some(call) = self.mux.state.lock().calls.get_mut(&self.id) {
                (call.deadline, call.timed_out) = (Some(deadline), false);
            }
        }
        loop {
            let Some(item) = poll_fn(|cx| self.poll_receive(cx, limit)).await? else { return Ok(None) };
            let mut joining = self.joining.lock();
            let held = (joining.len() + item.payload.len()) as u64;
            if held > self.mux.limits.item_bytes_max {
                let max = self.mux.limits.item_bytes_max;
                return Err(NodeError::TooMuch { what: "bytes of a page", found: held, max });
            }
            if item.flags & PART != 0 {
                joining.extend_from_slice(&item.payload);
            } else if joining.is_empty() {
                return Ok(Some(item));
            } else {
                joining.extend_from_slice(&item.payload);
                return Ok(Some(Item { payload: joining.split().freeze(), flags: item.flags }));
            }
        }
    }

    fn poll_receive(&self, cx: &mut Context<'_>, limit: Option<Duration>) -> Poll<Result<Option<Item>>> {
        let mut guard = self.mux.state.lock();
        let state = &mut *guard;
        let Some(call) = state.calls.get_mut(&self.id) else { return Poll::Ready(Ok(None)) };
        if let Some(item) = call.inbox.pop_front() {
            call.deadline = None;
            let header = Header { flags: item.flags, ..Header::new(Kind::Data, 0, item.payload.len()) };
            call.consumed += cost(&header);
            if call.consumed >= u64::from(self.mux.limits.credit_bytes / 4) && !call.ended {
                let back = std::mem::take(&mut call.consumed);
                call.receive_credit += back;
                state.say_taken();
                state.out.small_frame(Header::new(Kind::Credit, self.id, 4), &(back as u32).to_le_bytes());
                state.wake_driver();
            }
            return Poll::Ready(Ok(Some(item)));
        }
        if let Some(fault) = &call.fault {
            return Poll::Ready(Err(self.mux.refused(fault.clone())));
        }
        if call.ended {
            self.over.fetch_or(self.dialed, Ordering::Relaxed);
            return Poll::Ready(Ok(None));
        }
        if let Some(e) = &state.closed {
            return Poll::Ready(Err(e.clone()));
        }
        if call.timed_out {
            call.deadline = None;
            let after_ms = limit.map_or(0, |l| l.as_millis() as u64);
            return Poll::Ready(Err(NodeError::Timeout { peer: self.mux.peer.clone(), after_ms }));
        }
        call.receiver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends one item, in parts where it is large, waiting for credit and for room.
    pub(crate) async fn send(&self, flags: u8, mut payload: Bytes) -> Result<()> {
        loop {
            let piece = payload.split_to(payload.len().min(DATA_BYTES));
            let part = if payload.is_empty() { 0 } else { PART };
            // A part of an item has what tells its form, not what ends something.
            let flags = if part == 0 { flags } else { flags & (RECORDS | DICTIONARY) | PART };
            self.send_frame(flags, std::slice::from_ref(&piece)).await?;
            if part == 0 {
                return Ok(());
            }
        }
    }

    /// Sends records, as many to a frame as fit; `last` are the flags of the last frame.
    pub(crate) async fn send_records(&self, records: &[Bytes], last: u8) -> Result<()> {
        let mut rest = records;
        while !rest.is_empty() || last != 0 {
            let mut bytes = 0;
            let fit = rest.iter().take_while(|record| {
                bytes += record.len();
                bytes <= DATA_BYTES
            });
            let (now, later) = rest.split_at_checked(fit.count()).unwrap_or((rest, &[]));
            rest = later;
            match (now, later) {
                ([], [large, more @ ..]) => {
                    let flags = if more.is_empty() { last } else { 0 };
                    self.send(RECORDS | flags, large.clone()).await?;
                    rest = more;
                }
                (now, later) => {
                    let flags = if later.is_empty() { last } else { 0 };
                    let records = if now.is_empty() { 0 } else { RECORDS };
                    self.send_frame(records | flags, now).await?;
                }
            }
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    async fn send_frame(&self, flags: u8, parts: &[Bytes]) -> Result<()> {
        poll_fn(|cx| self.poll_send_frame(cx, flags, parts)).await
    }

    fn poll_send_frame(&self, cx: &mut Context<'_>, flags: u8, parts: &[Bytes]) -> Poll<Result<()>> {
        let length = parts.iter().map(Bytes::len).sum();
        let header = Header { flags, ..Header::new(Kind::Data, self.id, length) };
        let cost = cost(&header);
        let mut guard = self.mux.state.lock();
        let state = &mut *guard;
        if let Some(e) = &state.closed {
            return Poll::Ready(Err(e.clone()));
        }
        let full = state.waiting_bytes() >= self.mux.limits.out_bytes_max;
        let Some(call) = state.calls.get_mut(&self.id) else {
            return Poll::Ready(Err(self.mux.refused(Fault::new(Code::Cancelled, "the call is over"))));
        };
        if let Some(fault) = &call.fault {
            return Poll::Ready(Err(self.mux.refused(fault.clone())));
        }
        if full || call.send_credit < cost {
            call.sender = Some(cx.waker().clone());
            state.starved |= full;
            return Poll::Pending;
        }
        call.send_credit -= cost;
        let may_place = flags & RECORDS != 0 && state.told.has_room(length);
        let shelf = self.mux.shelf.as_ref().filter(|_| may_place);
        if let Some(Placed { places, slot, held }) = shelf.and_then(|shelf| shelf.places(parts)) {
            let flags = flags & !RECORDS | PLACED;
            let header = Header { flags, ..Header::new(Kind::Data, self.id, places.len()) };
            state.out.small_frame(header, &places);
            state.told.push(length, slot, held);
            state.wake_driver();
            return Poll::Ready(Ok(()));
        }
        match parts {
            _ if flags & RECORDS != 0 => state.out.records(header, parts),
            [one] => state.out.frame(header, one),
            _ => state.out.small_frame(header, &parts.concat()),
        }
        state.wake_driver();
        Poll::Ready(Ok(()))
    }

    /// Ends this side's direction; when it is the accepting side, the call is over.
    pub(crate) fn end(&self) {
        let mut state = self.mux.state.lock();
        if self.over.load(Ordering::Relaxed) || !state.calls.contains_key(&self.id) {
            return;
        }
        let header = Header { flags: END, ..Header::new(Kind::Data, self.id, 0) };
        state.out.small_frame(header, &[]);
        state.wake_driver();
        drop(state);
        if !self.dialed {
            self.forget();
        }
    }

    /// The accepting side has sent its last data with [`END`] already.
    pub(crate) fn forget(&self) {
        self.over.store(true, Ordering::Relaxed);
        let mut state = self.mux.state.lock();
        state.calls.remove(&self.id);
        if state.goodbye {
            state.wake_driver(); // it may be all that was waited for
        }
    }

    /// Ends the call with an error.
    pub(crate) fn fail(&self, fault: &Fault) {
        if !self.over.load(Ordering::Relaxed) {
            self.forget();
            let payload = message::encode(fault);
            let mut state = self.mux.state.lock();
            state.out.small_frame(Header::new(Kind::Error, self.id, payload.len()), &payload);
            state.wake_driver();
        }
    }

    /// Whether the other side has sent its last data.
    pub(crate) fn is_ended(&self) -> bool {
        self.mux.state.lock().calls.get(&self.id).is_none_or(|call| call.ended && call.inbox.is_empty())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.mux.state.lock();
        let Some(call) = state.calls.remove(&self.id) else { return };
        if self.over.load(Ordering::Relaxed) || call.fault.is_some() || state.closed.is_some() {
            if state.goodbye && state.calls.is_empty() {
                state.wake_driver();
            }
            return;
        }
        if self.dialed {
            // An answer that has come whole needs no cancelling.
            if !call.ended {
                state.out.small_frame(Header::new(Kind::Cancel, self.id, 0), &[]);
            }
        } else {
            let payload = message::encode(&Fault::new(Code::Internal, "the call ended without an answer"));
            state.out.small_frame(Header::new(Kind::Error, self.id, payload.len()), &payload);
        }
        state.wake_driver();
    }
}
