//! The one task of a connection: reads frames, hands them to calls and to whoever accepts calls, writes what waits.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::frame::{END, Header, Kind, PLACED, RECORDS};
use super::link::{Input, Output, Socket};
use super::message::{self, Code, Fault};
use super::mux::Mux;
use super::shelf::{Untaken, View};
use crate::error::{NodeError, Result};

/// Rounds of reading and writing before other tasks get their turn, and bytes read: whoever takes them should find them where the
/// processor still has them, and that is not in megabytes.
const ROUNDS: usize = 16;
const TURN_BYTES: usize = 512 << 10;
/// Frames between two looks at how much waits to be written.
const FRAMES: usize = 8;
/// How long a connection that is closed because of an error may take to hand the error over.
const LINGER: Duration = Duration::from_millis(500);

/// Takes the calls that the peer opens.
pub(crate) trait Accept: Send + 'static {
    /// Serves a request, at once or with a task of its own.
    ///
    /// # Errors
    /// When the peer breaks the protocol: the connection ends.
    fn open(&mut self, mux: &Arc<Mux>, id: u32, end: bool, payload: &[u8]) -> Result<()>;
}

/// The dialing side accepts no calls.
pub(crate) struct AcceptNone;

impl Accept for AcceptNone {
    fn open(&mut self, mux: &Arc<Mux>, _: u32, _: bool, _: &[u8]) -> Result<()> {
        Err(mux.violation("a call opened by the accepting side"))
    }
}

/// What happened since a tick.
#[derive(Default)]
struct Since {
    heard: bool,
    opened: bool,
    wrote: bool,
}

/// Drives one connection to its end.
pub(crate) struct Driver<S, A> {
    pub(crate) socket: S,
    pub(crate) input: Input,
    pub(crate) mux: Arc<Mux>,
    pub(crate) accept: A,
    output: Output,
    /// The server's shelf.
    view: Option<View>,
    /// TLS may hold back what it was given.
    unflushed: bool,
    tick: Pin<Box<Sleep>>,
    tick_every: Duration,
    /// What happened since the last tick: asking for the time costs too much to do it for every request.
    since: Since,
    heard_at: Instant,
    pinged_at: Option<Instant>,
    wrote_at: Instant,
    /// When there was a call last.
    busy_at: Instant,
    dials: bool,
}

impl<S: Socket, A: Accept> Driver<S, A> {
    pub(crate) fn new(socket: S, input: Input, mux: Arc<Mux>, accept: A, dials: bool) -> Self {
        let limits = &mux.limits;
        let shortest = limits.ping_after.min(limits.dead_after).min(limits.idle_after);
        let finest = if dials { Duration::from_millis(100) } else { Duration::from_secs(1) };
        let tick_every = (shortest / 4).clamp(Duration::from_millis(10), finest);
        let now = Instant::now();
        Driver {
            socket,
            input,
            accept,
            output: Output::default(),
            view: None,
            unflushed: false,
            tick: Box::pin(tokio::time::sleep(tick_every)),
            tick_every,
            since: Since::default(),
            heard_at: now,
            pinged_at: None,
            wrote_at: now,
            busy_at: now,
            dials,
            mux,
        }
    }

    /// With the shelf of the server at the other end.
    pub(crate) fn seeing(self, view: Option<View>) -> Self {
        Driver { view, ..self }
    }

    /// Runs until the connection ends, and tells all calls.
    pub(crate) async fn run(mut self) -> NodeError {
        let why = poll_fn(|cx| self.poll(cx)).await;
        let mux = self.mux.clone();
        mux.close(why.clone());
        if let NodeError::Protocol { what, .. } = &why {
            let fault = Fault::new(Code::Protocol, what);
            last_word(&mut self.socket, &mut self.output, &fault).await;
        }
        why
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<NodeError> {
        match self.rounds(cx) {
            Ok(()) => Poll::Pending,
            Err(why) => Poll::Ready(why),
        }
    }

    fn closed(&self, why: impl ToString) -> NodeError {
        NodeError::Closed { peer: self.mux.peer.clone(), why: why.to_string() }
    }

    fn rounds(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.mux.driver_polls(cx);
        while self.tick.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            self.tick.as_mut().reset(now + self.tick_every);
            self.on_tick(now)?;
        }
        let mut read_bytes = 0;
        for _ in 0..ROUNDS {
            let mut moved = self.frames()?;
            if !self.is_full() {
                match self.input.poll_fill(&mut self.socket, cx) {
                    Poll::Ready(Ok(0)) => return Err(self.closed("the other side closed it")),
                    Poll::Ready(Ok(read)) => {
                        moved = true;
                        read_bytes += read;
                        self.frames()?;
                    }
                    Poll::Ready(Err(e)) => return Err(self.closed(e)),
                    Poll::Pending => {}
                }
            }
            moved |= self.write(cx)?;
            if let Some(why) = self.mux.closed() {
                return Err(why);
            }
            if !self.dials && self.mux.is_leaving() && self.mux.is_quiet() && !self.unflushed {
                return Err(self.closed("the server shuts down"));
            }
            if !moved {
                return Ok(());
            }
            if read_bytes >= TURN_BYTES {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Only a server stops reading when it has much to write: one side always reads, so the two cannot block each other.
    fn is_full(&self) -> bool {
        !self.dials && self.mux.is_full()
    }

    /// Handles the frames that were read; true if there were any.
    fn frames(&mut self) -> Result<bool> {
        let mut any = false;
        for count in 0.. {
            if usize::is_multiple_of(count, FRAMES) && self.is_full() {
                break;
            }
            let Some(header) = self.input.next().map_err(|e| self.mux.violation(e))? else { break };
            any = true;
            self.since.opened |= header.kind == Kind::Open;
            self.frame(&header)?;
        }
        self.since.heard |= any;
        Ok(any)
    }

    fn frame(&mut self, header: &Header) -> Result<()> {
        let (mux, id) = (&self.mux, header.call);
        let damaged = |e| mux.violation(e);
        let of_call = matches!(header.kind, Kind::Open | Kind::Data | Kind::Credit | Kind::Cancel);
        if of_call && id == 0 {
            return Err(mux.violation(format!("a frame of kind {:?} without a call", header.kind)));
        }
        match header.kind {
            Kind::Open => {
                let accept = &mut self.accept;
                let end = header.flags & END != 0;
                self.input
                    .with_payload(header, |payload| accept.open(mux, id, end, payload))
                    .map_err(damaged)?
            }
            Kind::Data if header.flags & PLACED != 0 => self.placed(header),
            // What is still on its way for a call that is over is let through to nowhere.
            Kind::Data if !mux.is_open(id) => self.input.with_payload(header, |_| ()).map_err(damaged),
            Kind::Data => {
                let payload = self.input.payload(header).map_err(damaged)?;
                mux.on_data(header, payload)
            }
            Kind::Credit => self.input.with_payload(header, |p| mux.on_credit(id, p)).map_err(damaged)?,
            Kind::Cancel if !self.dials => {
                mux.on_fault(id, Fault::new(Code::Cancelled, "the client cancelled the call"));
                self.input.with_payload(header, |_| ()).map_err(damaged)
            }
            Kind::Error if self.dials || id == 0 => {
                let fault = self.input.with_payload(header, message::decode::<Fault>).map_err(damaged)?;
                let fault = fault.map_err(|e| mux.violation(e))?;
                if id == 0 {
                    return Err(NodeError::Refused { peer: mux.peer.clone(), fault });
                }
                mux.on_fault(id, fault);
                Ok(())
            }
            Kind::Taken if !self.dials => {
                self.input.with_payload(header, |p| mux.on_taken(p)).map_err(damaged)?
            }
            Kind::Ping => {
                mux.push_bare(Kind::Pong);
                self.input.with_payload(header, |_| ()).map_err(damaged)
            }
            Kind::Pong => self.input.with_payload(header, |_| ()).map_err(damaged),
            Kind::Goodbye if self.dials => {
                mux.on_goodbye();
                self.input.with_payload(header, |_| ()).map_err(damaged)
            }
            Kind::Dictionary if self.dials => {
                self.input.with_payload(header, |p| mux.on_dictionary(p)).map_err(damaged)?
            }
            kind => Err(mux.violation(format!("a frame of kind {kind:?} at this point"))),
        }
    }

    /// Takes records off the server's shelf: from here on they are as if they had come.
    fn placed(&mut self, header: &Header) -> Result<()> {
        let mux = &self.mux;
        let Some(view) = &self.view else { return Err(mux.violation("places on a shelf that is not here")) };
        let taken = self.input.with_payload(header, |places| view.take(places));
        let payload = match taken.map_err(|e| mux.violation(e))? {
            Ok(payload) => payload,
            Err(Untaken::Wrong(what)) => return Err(mux.violation(what)),
            Err(Untaken::Gone) => return Err(self.closed("it was over before its last records were taken")),
        };
        mux.on_placed(payload.len());
        if !mux.is_open(header.call) {
            return Ok(());
        }
        let flags = header.flags & !PLACED | RECORDS;
        mux.on_data(&Header { flags, length: payload.len() as u32, ..*header }, payload)
    }

    /// Writes what waits; true if something was written.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        if self.output.is_empty() {
            self.mux.take_output(&mut self.output);
        }
        if self.output.is_empty() && !self.unflushed {
            return Ok(false);
        }
        let mut any = false;
        while !self.output.is_empty() {
            match self.output.poll_write(&mut self.socket, cx) {
                Poll::Ready(Ok(0)) => return Err(self.closed("nothing more can be written")),
                Poll::Ready(Ok(_)) => any = true,
                Poll::Ready(Err(e)) => return Err(self.closed(e)),
                Poll::Pending => break,
            }
        }
        self.unflushed |= any;
        if self.output.is_empty() && self.unflushed {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(e)) => return Err(self.closed(e)),
                Poll::Pending => {}
            }
        }
        self.since.wrote |= any;
        self.mux.written(self.output.bytes());
        Ok(any)
    }

    fn on_tick(&mut self, now: Instant) -> Result<()> {
        let Since { heard, opened, wrote } = std::mem::take(&mut self.since);
        if heard {
            (self.heard_at, self.pinged_at) = (now, None);
        }
        if opened {
            self.busy_at = now;
        }
        if wrote {
            self.wrote_at = now;
        }
        self.output.let_go();
        let limits = &self.mux.limits;
        let (ping_after, dead_after, idle_after) = (limits.ping_after, limits.dead_after, limits.idle_after);
        if !self.output.is_empty() && now - self.wrote_at >= dead_after {
            return Err(self.closed(format!("it took nothing for {} ms", dead_after.as_millis())));
        }
        if self.output.is_empty() {
            self.wrote_at = now;
        }
        if self.is_full() {
            self.heard_at = now; // it is us who do not listen
        } else if now - self.heard_at >= dead_after {
            return Err(self.closed(format!("nothing was heard for {} ms", dead_after.as_millis())));
        } else if now - self.heard_at >= ping_after && self.pinged_at.is_none() {
            self.pinged_at = Some(now);
            self.mux.push_bare(Kind::Ping);
        }
        if self.mux.tick(now) {
            self.busy_at = now;
        } else if !self.dials && now - self.busy_at >= idle_after {
            self.mux.say_goodbye();
        }
        Ok(())
    }
}

/// Sends the peer one error for the whole connection, and takes what it still sends until it has had time to read it.
pub(crate) async fn last_word<S: Socket>(socket: &mut S, output: &mut Output, fault: &Fault) {
    let payload = message::encode(fault);
    output.small_frame(Header::new(Kind::Error, 0, payload.len()), &payload);
    let tell = async {
        while !output.is_empty() {
            if !matches!(poll_fn(|cx| output.poll_write(socket, cx)).await, Ok(1..)) {
                return;
            }
        }
        if socket.flush().await.is_err() || socket.shutdown().await.is_err() {
            return;
        }
        // Closing a socket with unread bytes would take the error back from the peer's buffer.
        let mut rubbish = [0; 4096];
        while matches!(socket.read(&mut rubbish).await, Ok(1..)) {}
    };
    // An error that cannot be delivered is the peer's loss.
    let _ = tokio::time::timeout(LINGER, tell).await;
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::super::message::Request;
    use super::super::mux::Limits;
    use super::super::shelf::Shelf;
    use super::*;

    /// A client that is told of places late, when what was there has gone, and other records have come, which are as whole.
    #[tokio::test]
    async fn a_client_takes_no_records_but_those_it_was_told_of() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let shelf = Shelf::open().unwrap();
        shelf.hand_over(&near).await.unwrap();
        let view = View::receive(&far).await.unwrap().ok();
        let mux = |shelf| {
            let limits = Limits::default();
            let given = (limits.credit_bytes, limits.calls_max);
            Mux::new("peer".into(), limits, given, Default::default(), Vec::new(), shelf)
        };
        let (client, server) = (mux(None), mux(Some(shelf.clone())));
        tokio::spawn(Driver::new(far, Input::default(), client.clone(), AcceptNone, true).seeing(view).run());
        let call = client.open(&Request::Ping, true).unwrap();
        let answer = server.accept(1, true).unwrap().unwrap();
        let batch = |text: u8| shelf.put([&[text; 100_000][..]].into_iter()).unwrap();
        for text in [1, 2] {
            answer.send_records(&[batch(text)], 0).await.unwrap();
            let mut output = Output::default();
            server.take_output(&mut output);
            assert!(output.bytes() < 100, "places, no records");
            if text == 2 {
                // As when the server counts the connection as over.
                server.on_taken(&2_u32.to_le_bytes()).unwrap();
                drop(batch(3));
            }
            while !output.is_empty() {
                poll_fn(|cx| output.poll_write(&mut near, cx)).await.unwrap();
            }
            match call.receive(None).await {
                Ok(Some(item)) if text == 1 => assert_eq!(&item.payload[..], [1; 100_000]),
                Err(NodeError::Closed { .. }) if text == 2 => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
