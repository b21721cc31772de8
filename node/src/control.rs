//! A control call: messages both ways, in order, each at most once, as long as the connection lasts. What they mean is not
//! the wire's business.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client::Client;
use crate::error::{NodeError, Result};
use crate::wire::mux::Call;

/// Bytes of a message, at most.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Both ends of a control call, for whoever opened or accepted it. Dropping it ends the call.
pub struct Control {
    sender: ControlSender,
    receiver: ControlReceiver,
}

/// Sends messages.
pub struct ControlSender {
    open: Arc<Open>,
}

/// Receives messages.
pub struct ControlReceiver {
    open: Arc<Open>,
}

/// A call, and the connection it was opened on: that stays as long as the call does.
struct Open {
    call: Call,
    _client: Option<Client>,
}

impl Control {
    /// Of a call that was accepted.
    pub(crate) fn accepted(call: Call) -> Control {
        Control::new(Open { call, _client: None })
    }

    /// Of a call that this client opened.
    pub(crate) fn opened(call: Call, client: &Client) -> Control {
        Control::new(Open { call, _client: Some(client.clone()) })
    }

    fn new(open: Open) -> Control {
        let open = Arc::new(open);
        Control { sender: ControlSender { open: open.clone() }, receiver: ControlReceiver { open } }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.sender.open.call.mux().peer
    }

    /// As [`ControlSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, message: Bytes) -> Result<()> {
        self.sender.send(message).await
    }

    /// As [`ControlReceiver::receive`].
    ///
    /// # Errors
    /// As there.
    pub async fn receive(&mut self, limit: Option<Duration>) -> Result<Option<Bytes>> {
        self.receiver.receive(limit).await
    }

    /// The two directions, to be used by two tasks. The call ends when both are dropped.
    pub fn split(self) -> (ControlSender, ControlReceiver) {
        (self.sender, self.receiver)
    }
}

impl ControlSender {
    /// Sends a message, waiting while the other side has not taken earlier ones. That it was sent does not mean that it
    /// arrives.
    ///
    /// # Errors
    /// When it is larger than [`MESSAGE_BYTES_MAX`], or the call has ended.
    pub async fn send(&mut self, message: Bytes) -> Result<()> {
        if message.len() > MESSAGE_BYTES_MAX {
            let (found, max) = (message.len() as u64, MESSAGE_BYTES_MAX as u64);
            return Err(NodeError::TooMuch { what: "bytes of a control message", found, max });
        }
        self.open.call.send(0, message).await
    }

    /// Ends the call in good order.
    pub fn end(self) {
        self.open.call.end();
    }
}

impl ControlReceiver {
    /// The next message; `None` when the other side has ended the call. Dropping the future loses no message.
    ///
    /// # Errors
    /// When the call was cut off, or nothing came within the limit; after that the call still works.
    pub async fn receive(&mut self, limit: Option<Duration>) -> Result<Option<Bytes>> {
        Ok(self.open.call.receive(limit).await?.map(|item| item.payload))
    }
}
