//! The line to the management server: opened again whenever it breaks.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::client::{Client, ClientSettings};
use crate::control::Control;
use crate::error::{NodeError, Result};
use crate::link::{Hello, ManagementSays, NodeSays, TOPIC};
use crate::plan::Repository;
use crate::wire::message::{decode, encode};

/// Between two tries to connect, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// What comes over the line.
pub(super) enum Heard {
    /// It stands; what is sent arrives from now on.
    Connected,
    Says(ManagementSays),
}

/// Connects and introduces the node.
async fn introduce(
    to: SocketAddr,
    settings: &ClientSettings,
    hello: &Hello,
) -> Result<(Client, Control, Repository)> {
    let client = Client::connect(to, settings.clone()).await?;
    let mut control = client.control(TOPIC)?;
    control.send(encode(&NodeSays::Hello(hello.clone())).into()).await?;
    let answer = control.receive(Some(settings.answer)).await?;
    let closed = || NodeError::Closed { peer: to.to_string(), why: "it ended the call".into() };
    let says: ManagementSays = decode(&answer.ok_or_else(closed)?)
        .map_err(|what| NodeError::Protocol { peer: to.to_string(), what })?;
    match says {
        ManagementSays::Welcome(repository) => Ok((client, control, repository)),
        ManagementSays::Refused(what) => Err(NodeError::Foreign { what }),
        _ => Err(NodeError::Protocol { peer: to.to_string(), what: "no welcome".into() }),
    }
}

/// The repository that the management server runs, asked until it answers.
pub(super) async fn first_contact(
    to: SocketAddr,
    settings: &ClientSettings,
    hello: &Hello,
) -> Result<Repository> {
    let mut wait = RETRY_FIRST;
    loop {
        match introduce(to, settings, hello).await {
            Ok((_, _, repository)) => return Ok(repository),
            Err(e @ NodeError::Foreign { .. }) => return Err(e),
            Err(_) => tokio::time::sleep(wait).await,
        }
        wait = (2 * wait).min(RETRY_MAX);
    }
}

/// Keeps the line for ever: sends what `outgoing` gives, hands on what comes. What is to be sent while the line is broken
/// is dropped; the machines say it again.
pub(super) async fn keep(
    to: SocketAddr,
    settings: ClientSettings,
    hello: Hello,
    mut outgoing: mpsc::Receiver<NodeSays>,
    heard: mpsc::Sender<Heard>,
) {
    let mut wait = RETRY_FIRST;
    loop {
        let introduced = tokio::select! {
            introduced = introduce(to, &settings, &hello) => introduced,
            () = drain(&mut outgoing) => return,
        };
        if let Ok((_client, control, _)) = introduced {
            wait = RETRY_FIRST;
            if heard.send(Heard::Connected).await.is_err() {
                return;
            }
            if talk(control, &mut outgoing, &heard).await {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = drain(&mut outgoing) => return,
        }
        wait = (2 * wait).min(RETRY_MAX);
    }
}

/// Drops what comes; ends when nothing will come any more.
async fn drain(outgoing: &mut mpsc::Receiver<NodeSays>) {
    while outgoing.recv().await.is_some() {}
}

/// Talks until the line breaks; true when there is nobody to talk for any more.
async fn talk(
    control: Control,
    outgoing: &mut mpsc::Receiver<NodeSays>,
    heard: &mpsc::Sender<Heard>,
) -> bool {
    let (mut sender, mut receiver) = control.split();
    loop {
        tokio::select! {
            says = outgoing.recv() => match says {
                Some(says) => {
                    if sender.send(encode(&says).into()).await.is_err() {
                        return false;
                    }
                }
                None => return true,
            },
            message = receiver.receive(None) => {
                let Ok(Some(message)) = message else { return false };
                let Ok(says) = decode::<ManagementSays>(&message) else { return false };
                if heard.send(Heard::Says(says)).await.is_err() {
                    return true;
                }
            }
        }
    }
}
