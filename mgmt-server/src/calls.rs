//! The control calls of nodes and clients: bytes to messages, and back. Who sends something else is told, and the call
//! ends; other calls of the connection go on.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use webbase_node::link::{ManagementSays, NodeSays};
use webbase_node::plan::{Ask, Told};
use webbase_node::wire::message;
use webbase_node::{Control, ControlReceiver, ControlSender};

use crate::assigner::Assigner;
use crate::hub::{Input, Messages, Outbox, Question};

/// Until a node has introduced itself.
const HELLO: Duration = Duration::from_secs(10);

/// A node's call: a hello, then messages both ways until one side ends it.
pub(crate) async fn node(mut control: Control, inputs: mpsc::Sender<Input>) {
    let Ok(Some(bytes)) = control.receive(Some(HELLO)).await else { return };
    let hello = match message::decode(&bytes) {
        Ok(NodeSays::Hello(hello)) => hello,
        Ok(_) => return refuse(control, "a node says hello first").await,
        Err(e) => return refuse(control, &e).await,
    };
    let (outbox, messages) = Outbox::new();
    let (answer, answered) = oneshot::channel();
    let id = hello.id;
    if inputs.send(Input::Hello { hello, outbox, answer }).await.is_err() {
        return;
    }
    let connection = match answered.await {
        Ok(Ok(connection)) => connection,
        Ok(Err(why)) => return refuse(control, &why).await,
        Err(_) => return,
    };
    let (sender, receiver) = control.split();
    // Both in one task: whichever ends first ends the call.
    tokio::select! {
        () = tell(sender, messages) => {}
        () = listen(receiver, |says| Input::NodeSays { id, connection, says }, &inputs) => {}
    }
    // If the hub is gone there is nobody to tell.
    let _ = inputs.send(Input::NodeGone { id, connection }).await;
}

async fn refuse(mut control: Control, why: &str) {
    let refused = message::encode(&ManagementSays::Refused(why.to_owned()));
    if control.send(refused.into()).await.is_ok() {
        control.split().0.end();
    }
}

/// Sends what the hub says, until it gives up the call.
async fn tell(mut sender: ControlSender, mut messages: Messages) {
    while let Some(message) = messages.next().await {
        if sender.send(message).await.is_err() {
            return;
        }
    }
    sender.end();
}

async fn listen(
    mut receiver: ControlReceiver,
    input: impl Fn(NodeSays) -> Input,
    inputs: &mpsc::Sender<Input>,
) {
    while let Ok(Some(bytes)) = receiver.receive(None).await {
        let says = match message::decode(&bytes) {
            Ok(NodeSays::Hello(_)) | Err(_) => return,
            Ok(says) => says,
        };
        if inputs.send(input(says)).await.is_err() {
            return;
        }
    }
}

/// A client's call: questions, each answered before the next is read.
pub(crate) async fn client(
    mut control: Control,
    questions: mpsc::Sender<Question>,
    assigner: Option<Assigner>,
) {
    loop {
        let question = tokio::select! {
            question = control.receive(None) => question,
            () = questions.closed() => return,
        };
        let Ok(Some(bytes)) = question else { return };
        let ask: Ask = match message::decode(&bytes) {
            Ok(ask) => ask,
            Err(e) => {
                let refused = message::encode(&Told::Refused(e));
                if control.send(refused.into()).await.is_ok() {
                    control.split().0.end();
                }
                return;
            }
        };
        drop(bytes);
        let told = tokio::select! {
            told = answer(ask, &questions, assigner.as_ref()) => told,
            // One question at a time: another one, or the end of the call, ends the waiting.
            _ = control.receive(None) => return,
        };
        let Some(told) = told else { return };
        if control.send(Bytes::from(message::encode(&told))).await.is_err() {
            return;
        }
    }
}

/// What is told, by the index or by the hub; `None` when the hub is gone.
async fn answer(ask: Ask, questions: &mpsc::Sender<Question>, assigner: Option<&Assigner>) -> Option<Told> {
    let ask = match (assigner, ask) {
        (Some(assigner), ask) => match assigner.answer(ask).await {
            Ok(ask) => ask,
            Err(told) => return Some(told),
        },
        (None, Ask::Assign(_) | Ask::Find(_) | Ask::FindId(_)) => {
            let why = "this repository has no index: page ids say the ranges";
            return Some(Told::Refused(why.into()));
        }
        (None, ask) => ask,
    };
    let (answer, answered) = oneshot::channel();
    questions.send(Question { ask, answer }).await.ok()?;
    answered.await.ok()
}
