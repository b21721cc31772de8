//! Memory that is used again: unpacked members of a file that is being read.
//!
//! Fresh memory comes from the system page by page (or two megabytes at once), cleared; taking it for every member costs more
//! than unpacking it. Buffers come back when the last capture that lies in them is dropped.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Bytes that wait to be used again, at most.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// A larger buffer does not wait: who asks for a small one would hold all of it.
const BUFFER_BYTES_MAX: usize = 2 << 20;

/// Buffers of one import.
#[derive(Clone, Default)]
pub(super) struct Pool {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    /// A buffer of at least so many bytes, with anything in it.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The last one is the likeliest to be in a cache.
        match kept.buffers.iter().rposition(|buffer| buffer.len() >= bytes) {
            Some(at) => {
                let buffer = kept.buffers.swap_remove(at);
                kept.bytes -= buffer.len();
                buffer
            }
            None => vec![0; bytes],
        }
    }

    /// Shares the first `len` bytes of a buffer; it comes back with the last of those who have a part of it.
    pub(super) fn share(&self, buffer: Vec<u8>, len: usize) -> Bytes {
        Bytes::from_owner(Shared { pool: self.clone(), buffer, len })
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() <= BUFFER_BYTES_MAX && kept.bytes + buffer.len() <= KEPT_BYTES_MAX {
            kept.bytes += buffer.len();
            kept.buffers.push(buffer);
        }
    }
}

struct Shared {
    pool: Pool,
    buffer: Vec<u8>,
    len: usize,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_its_last_user() {
        let pool = Pool::default();
        let mut buffer = pool.take(100);
        buffer[..5].copy_from_slice(b"hello");
        let place = buffer.as_ptr();
        let part = pool.share(buffer, 5).slice(1..3);
        let another = pool.take(100);
        assert_ne!(another.as_ptr(), place);
        assert_eq!(&part[..], b"el");
        drop(part);
        let again = pool.take(50);
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn no_more_is_kept_than_is_meant_to_be() {
        let pool = Pool::default();
        let count = KEPT_BYTES_MAX / BUFFER_BYTES_MAX;
        let shared: Vec<Bytes> = (0..=count).map(|_| pool.share(pool.take(BUFFER_BYTES_MAX), 1)).collect();
        drop(shared);
        drop(pool.share(pool.take(BUFFER_BYTES_MAX + 1), 1));
        let kept = pool.kept.lock().unwrap();
        assert_eq!((kept.buffers.len(), kept.bytes), (count, KEPT_BYTES_MAX));
    }
}
