//! Buffers of one frame each, used again. Fresh memory of this size comes from the system page by page, and taking those
//! faults costs more than all the copying of a frame.

use bytes::Bytes;
use parking_lot::Mutex;

use super::frame::{CHECK_BYTES, DATA_BYTES, HEADER_BYTES};

/// Bytes of a buffer: what our senders put into a frame, and the header of the next one.
pub(crate) const BUFFER_BYTES: usize = DATA_BYTES + CHECK_BYTES + HEADER_BYTES;
/// Buffers kept, in the whole process: 48 MiB.
const KEPT_MAX: usize = 192;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer with room for `bytes`.
pub(crate) fn take(bytes: usize) -> Vec<u8> {
    if bytes > BUFFER_BYTES {
        return Vec::with_capacity(bytes);
    }
    KEPT.lock().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// A filled buffer as shared bytes; the last user gives it back.
pub(crate) fn share(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() == BUFFER_BYTES { Bytes::from_owner(Pooled(buffer)) } else { buffer.into() }
}

struct Pooled(Vec<u8>);

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        let mut kept = KEPT.lock();
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_when_the_last_user_is_done() {
        let mut buffer = take(10);
        buffer.extend_from_slice(b"hello");
        let shared = share(buffer);
        let part = shared.slice(1..3);
        drop(shared);
        assert_eq!(&part[..], b"el");
        drop(part);
        let again = take(10);
        assert!(again.is_empty() && again.capacity() >= 10);
        assert!(share(take(BUFFER_BYTES + 1)).is_empty());
    }
}
