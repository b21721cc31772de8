//! Deflate streams that are in memory whole, unpacked into memory that is there: what libdeflate does a third faster than what reads and
//! writes piece by piece (benches/RESULTS.md). Where a stream comes in pieces, flate2 reads it.

#![expect(unsafe_code, reason = "calls C")]

use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_crc32, libdeflate_decompressor,
    libdeflate_deflate_decompress_ex, libdeflate_free_decompressor,
    libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE as NO_ROOM,
    libdeflate_result_LIBDEFLATE_SUCCESS as SUCCESS,
};

/// The checksum that stands behind a stream in gzip.
pub fn crc32(bytes: &[u8]) -> u32 {
    // SAFETY: `bytes` may be read for as many bytes as are said, and nothing is kept of the pointer.
    unsafe { libdeflate_crc32(0, bytes.as_ptr().cast(), bytes.len()) }
}

/// Why a stream did not unpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// It is none, or it is cut.
    #[error("no whole deflate stream")]
    Broken,
    /// It has more bytes than there is room for.
    #[error("a deflate stream of more than {0} bytes")]
    NoRoom(usize),
}

/// Unpacks streams, one after the other.
#[derive(Debug)]
pub struct Inflater {
    /// Made by libdeflate, never copied, and freed with this.
    state: NonNull<libdeflate_decompressor>,
}

// SAFETY: the state is memory of its own, with no thread's mark on it, and only who has the inflater (`&mut`) touches it.
unsafe impl Send for Inflater {}

impl Default for Inflater {
    fn default() -> Self {
        Inflater::new()
    }
}

impl Inflater {
    /// One that has unpacked nothing yet.
    ///
    /// # Panics
    /// When there is no memory, as an allocation does.
    pub fn new() -> Inflater {
        // SAFETY: it takes nothing, and gives memory or null.
        let state = NonNull::new(unsafe { libdeflate_alloc_decompressor() });
        let Some(state) = state else {
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u64; 1024]>())
        };
        Inflater { state }
    }

    /// Unpacks the stream that `packed` begins with to the beginning of `out`; says how many bytes were read and written.
    ///
    /// # Errors
    /// When it is none, is cut, or does not fit into `out`, of which then anything may be overwritten.
    pub fn inflate(&mut self, packed: &[u8], out: &mut [u8]) -> Result<(usize, usize), InflateError> {
        let (mut read, mut written) = (0, 0);
        // SAFETY: the state is alive and nobody else's. `packed` may be read and `out` be written for as many bytes as are said, which is
        // what the function keeps to whatever the bytes are; the two do not overlap, since one is borrowed to be changed. The numbers
        // are written to places that outlive the call, and nothing is kept of any of the pointers.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.state.as_ptr(),
                packed.as_ptr().cast(),
                packed.len(),
                out.as_mut_ptr().cast(),
                out.len(),
                &raw mut read,
                &raw mut written,
            )
        };
        match result {
            SUCCESS => Ok((read, written)),
            NO_ROOM => Err(InflateError::NoRoom(out.len())),
            _ => Err(InflateError::Broken),
        }
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: it was given by libdeflate, is freed here only, and nobody has it afterwards.
        unsafe { libdeflate_free_decompressor(self.state.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn deflated(plain: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(plain).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn a_stream_ends_where_it_ends() {
        let plain = b"some words, and some words again, and again ".repeat(300);
        let (stream, mut inflater) = (deflated(&plain), Inflater::new());
        for behind in [&b""[..], b"and more"] {
            let packed = [&stream[..], behind].concat();
            for room in [plain.len(), plain.len() + 1, 2 * plain.len()] {
                let mut out = vec![7; room];
                assert_eq!(inflater.inflate(&packed, &mut out), Ok((stream.len(), plain.len())));
                assert!(out.starts_with(&plain));
            }
        }
        assert_eq!(inflater.inflate(&deflated(b""), &mut []).map(|(_, written)| written), Ok(0));
    }

    #[test]
    fn checksums_are_those_of_gzip() {
        assert_eq!((crc32(b""), crc32(b"123456789")), (0, 0xcbf4_3926));
        let bytes = b"any length, and any place in memory ".repeat(40);
        for range in [0..1, 1..17, 3..1000, 7..1440] {
            let mut other = flate2::Crc::new();
            other.update(&bytes[range.clone()]);
            assert_eq!(crc32(&bytes[range]), other.sum());
        }
    }

    #[test]
    fn what_is_no_stream_is_told_and_the_next_one_unpacks() {
        let plain = b"a page that is a page".repeat(50);
        let (stream, mut inflater) = (deflated(&plain), Inflater::new());
        let mut out = vec![0; plain.len()];
        assert_eq!(inflater.inflate(&stream, &mut out[1..]), Err(InflateError::NoRoom(plain.len() - 1)));
        for len in 0..stream.len() {
            assert!(inflater.inflate(&stream[..len], &mut out).is_err(), "{len}");
        }
        for at in 0..stream.len() {
            let mut bytes = stream.clone();
            bytes[at] ^= 0x55;
            // Something else may come out of it, in its bounds.
            let _any = inflater.inflate(&bytes, &mut out);
        }
        assert_eq!(inflater.inflate(&stream, &mut out), Ok((stream.len(), plain.len())));
        assert_eq!(out, plain);
    }
}
