//! The first two frames of a connection: who is there, in which version, under which limits.

use std::future::poll_fn;

use bytes::Bytes;
use webbase_storage::Dictionaries;

use super::driver::last_word;
use super::frame::{Header, Kind};
use super::link::{Input, Output, Socket};
use super::message::{self, Code, Fault, Hello, KNOWN_MAX, VERSION, Welcome};
use super::mux::{CREDIT_BYTES_MIN, Limits};
use super::shelf::{Shelf, View};
use crate::error::{NodeError, Result};
use crate::security::Token;

/// Dials: sends the introduction and reads the answer, and before it the server's shelf, if that was asked for and there is one.
pub(crate) async fn dial<S: Socket>(
    socket: &mut S,
    peer: &str,
    hello: &Hello,
) -> Result<(Input, Welcome, Option<View>)> {
    let payload = message::encode_hello(VERSION, VERSION, hello);
    send(socket, peer, Kind::Hello, &payload).await?;
    let (mut input, mut view) = (Input::default(), None);
    if let Some(unix) = socket.as_unix().filter(|_| hello.shelf) {
        match View::receive(unix).await.map_err(|e| NodeError::io("read from", peer, e))? {
            Ok(shelf) => view = Some(shelf),
            Err(first) => input = Input::begun(first),
        }
    }
    let (header, payload) = read(socket, &mut input, peer).await?;
    let broken = |what: String| NodeError::Protocol { peer: peer.into(), what };
    match header.kind {
        Kind::Welcome => {}
        Kind::Error => {
            let fault = message::decode::<Fault>(&payload).map_err(broken)?;
            return Err(NodeError::Refused { peer: peer.into(), fault });
        }
        kind => return Err(broken(format!("a frame of kind {kind:?} instead of a welcome"))),
    }
    let (version, _, rest) =
        message::decode_hello(&payload).ok_or_else(|| broken("a welcome without magic".into()))?;
    if version != VERSION {
        return Err(broken(format!("it chose version {version}, this program speaks {VERSION}")));
    }
    let welcome: Welcome = message::decode(rest).map_err(broken)?;
    if welcome.credit_bytes < CREDIT_BYTES_MIN || welcome.calls_max == 0 {
        return Err(broken(format!(
            "it takes {} bytes and {} calls",
            welcome.credit_bytes, welcome.calls_max
        )));
    }
    Ok((input, welcome, view))
}

/// What the accepting side asks of a peer.
pub(crate) struct Gate<'a> {
    /// The repository served; empty when none.
    pub(crate) repository: &'a str,
    pub(crate) token: Option<&'a Token>,
    pub(crate) limits: &'a Limits,
    /// What a peer on the same machine is told.
    pub(crate) door: Option<&'a str>,
    /// What a peer that came by it may have.
    pub(crate) shelf: Option<&'a Shelf>,
    /// Set when there is no room: the peer is told so instead of being served.
    pub(crate) refuse: Option<Fault>,
}

/// Accepts: reads the introduction, checks it, answers. A peer that is refused is told why and given up. In what is returned, `shelf` says whether the peer has it now.
pub(crate) async fn accept<S: Socket>(socket: &mut S, peer: &str, gate: Gate<'_>) -> Result<(Input, Hello)> {
    let mut input = Input::default();
    let checked = async {
        let (header, payload) = read(socket, &mut input, peer).await?;
        gate.check(&header, &payload).map_err(|fault| NodeError::Refused { peer: peer.into(), fault })
    };
    match checked.await {
        Ok(mut hello) => {
            let unix = socket.as_unix().filter(|_| hello.shelf);
            hello.shelf = match (unix, gate.shelf) {
                (Some(unix), Some(shelf)) => {
                    // A byte is sent or is not: without it the peer gets its welcome, and everything by the socket.
                    let not = |e: &std::io::Error| tracing::debug!("{peer} cannot be handed the shelf: {e}");
                    shelf.hand_over(unix).await.inspect_err(not).is_ok()
                }
                _ => false,
            };
            let welcome = Welcome {
                repository: gate.repository.into(),
                credit_bytes: gate.limits.credit_bytes,
                calls_max: gate.limits.calls_max,
                item_bytes_max: gate.limits.item_bytes_max,
                door: gate.door.map(str::to_owned),
            };
            let payload = message::encode_hello(VERSION, VERSION, &welcome);
            send(socket, peer, Kind::Welcome, &payload).await?;
            Ok((input, hello))
        }
        Err(e) => {
            let fault = match &e {
                NodeError::Refused { fault, .. } => Some(fault.clone()),
                NodeError::Protocol { what, .. } => Some(Fault::new(Code::Protocol, what)),
                _ => None,
            };
            if let Some(fault) = fault {
                last_word(socket, &mut Output::default(), &fault).await;
            }
            Err(e)
        }
    }
}

impl Gate<'_> {
    fn check(&self, header: &Header, payload: &[u8]) -> std::result::Result<Hello, Fault> {
        if header.kind != Kind::Hello {
            return Err(Fault::new(Code::Protocol, "the first frame must be a hello"));
        }
        let (lowest, highest, rest) = message::decode_hello(payload)
            .ok_or_else(|| Fault::new(Code::Protocol, "a hello without magic"))?;
        if !(lowest..=highest).contains(&VERSION) {
            let text = format!("versions {lowest} to {highest} were offered, this node speaks {VERSION}");
            return Err(Fault::new(Code::Version, text));
        }
        let hello: Hello = message::decode(rest).map_err(|e| Fault::new(Code::Protocol, e))?;
        if hello.known.len() > KNOWN_MAX || hello.credit_bytes < CREDIT_BYTES_MIN {
            return Err(Fault::new(Code::Protocol, "too many dictionaries, or too little credit"));
        }
        if let Some(token) = self.token {
            let given = hello.token.map(Token::new);
            if !given.is_some_and(|given| token.matches(&given)) {
                return Err(Fault::new(Code::Token, "the token is wrong or missing"));
            }
        }
        if let Some(wanted) = hello.repository.as_deref().filter(|wanted| *wanted != self.repository) {
            let wanted: String = wanted.chars().take(40).collect();
            let text = format!("repository {wanted} was asked for, this is {}", self.repository);
            return Err(Fault::new(Code::Repository, text));
        }
        self.refuse.clone().map_or(Ok(hello), Err)
    }
}

/// The dictionaries a peer is told we have.
pub(crate) fn known(dictionaries: &Dictionaries) -> Vec<u64> {
    dictionaries.all().iter().take(KNOWN_MAX).map(|d| d.digest()).collect()
}

async fn send<S: Socket>(socket: &mut S, peer: &str, kind: Kind, payload: &[u8]) -> Result<()> {
    let mut output = Output::default();
    output.small_frame(Header::new(kind, 0, payload.len()), payload);
    while !output.is_empty() {
        let written = poll_fn(|cx| output.poll_write(socket, cx)).await;
        match written.map_err(|e| NodeError::io("write to", peer, e))? {
            0 => return Err(NodeError::Closed { peer: peer.into(), why: "it takes nothing".into() }),
            _ => continue,
        }
    }
    tokio::io::AsyncWriteExt::flush(socket).await.map_err(|e| NodeError::io("write to", peer, e))
}

async fn read<S: Socket>(socket: &mut S, input: &mut Input, peer: &str) -> Result<(Header, Bytes)> {
    let broken = |e: super::frame::FrameError| NodeError::Protocol { peer: peer.into(), what: e.to_string() };
    loop {
        // Nothing large is waited for from somebody who has not introduced himself.
        if let Some(Header { kind, .. }) = input.peek().map_err(broken)?
            && !matches!(kind, Kind::Hello | Kind::Welcome | Kind::Error)
        {
            let what = format!("a frame of kind {kind:?} before the handshake");
            return Err(NodeError::Protocol { peer: peer.into(), what });
        }
        if let Some(header) = input.next().map_err(broken)? {
            return Ok((header, input.payload(&header).map_err(broken)?));
        }
        let read = poll_fn(|cx| input.poll_fill(socket, cx)).await;
        if read.map_err(|e| NodeError::io("read from", peer, e))? == 0 {
            let why = "it closed before the handshake was done".into();
            return Err(NodeError::Closed { peer: peer.into(), why });
        }
    }
}
