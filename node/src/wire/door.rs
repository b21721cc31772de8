//! The door: a Unix socket beside a server's TCP port, for clients on the same machine.
//!
//! Through it a gigabyte costs the processor two thirds of what it costs through loopback TCP. It is no file but a name in the system's
//! abstract namespace (Linux; elsewhere there is no door), which
//!
//! 1. is 128 random bits, and told by the welcome to clients that came by a loopback address: whoever knocks has met the server, and a program that
//!    took the name of a server that is gone would have had to guess it;
//! 2. belongs to a network namespace, as loopback addresses do, and ends with its server: nothing to choose, to protect, to clean up;
//! 3. opens nothing: behind it are the same handshake, the same token and the same limits.
//!
//! A client whose way to a loopback address leads elsewhere, by a tunnel, finds no such name and stays where it is. Where there is TLS there is no door.

use std::{fmt, io};

use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::{UnixListener, UnixStream};

use crate::security::Token;

/// Bytes that may be on their way in each direction: what a near client takes in a call, and what the system counts around it. With the system's
/// own default, a tenth of this, the two sides wake each other more often, and ten streams get a seventh less.
const ON_THE_WAY_BYTES: usize = 2 << 20;

/// What all names begin with; 32 digits follow.
const PREFIX: &str = "webbase-";

/// A server's door.
pub(crate) struct Door {
    pub(crate) name: String,
    listener: UnixListener,
}

impl Door {
    /// Opens one, where the system has such sockets. Without it clients take the other way, which is always there.
    pub(crate) fn open() -> Option<Door> {
        let none =
            |why: &dyn fmt::Display| tracing::debug!("no Unix socket for clients on this machine: {why}");
        let random = Token::random().inspect_err(|e| none(e)).ok()?.bytes();
        let digits: String = random.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{PREFIX}{digits}");
        let listener = UnixListener::bind(abstract_name(&name)).inspect_err(|e| none(e)).ok()?;
        Some(Door { name, listener })
    }

    /// The next client.
    pub(crate) async fn accept(&self) -> io::Result<std::os::unix::net::UnixStream> {
        let (socket, _) = self.listener.accept().await?;
        widen(&socket)?;
        socket.into_std()
    }
}

/// Goes in by a door. A server cannot send its clients to sockets that are none.
pub(crate) async fn knock(name: &str) -> io::Result<UnixStream> {
    if !is_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a door"));
    }
    let socket = UnixStream::connect(abstract_name(name)).await?;
    widen(&socket)?;
    Ok(socket)
}

fn is_name(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn abstract_name(name: &str) -> String {
    format!("\0{name}")
}

/// The system keeps to its own limit, if that is less.
fn widen(socket: &UnixStream) -> io::Result<()> {
    Ok(set_socket_send_buffer_size(socket, ON_THE_WAY_BYTES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_long_new_and_nothing_else() {
        let (one, other) = (Door::open().unwrap(), Door::open().unwrap());
        assert!(is_name(&one.name) && is_name(&other.name) && one.name != other.name);
        knock(&one.name).await.unwrap();
        for wrong in
            ["", "webbase-", "/tmp/.X11-unix/X0", &one.name.to_uppercase(), &format!("{}0", one.name)]
        {
            assert_eq!(knock(wrong).await.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
        let name = one.name.clone();
        drop(one);
        assert_eq!(knock(&name).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
