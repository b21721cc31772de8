//! Content codings, taken off a body within limits.

use std::io::Read;

use bytes::Bytes;

/// The largest window of a zstd frame, as a power of two: what RFC 8878 asks of decoders for the web, 8 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
const BROTLI_BUFFER_BYTES: usize = 64 << 10;

/// How a body is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// gzip, and x-gzip.
    Gzip,
    /// zlib, or the bare deflate that many servers mean by it.
    Deflate,
    /// Brotli.
    Brotli,
    /// zstd.
    Zstd,
}

impl Coding {
    /// The coding with this name.
    pub fn from_name(name: &str) -> Option<Coding> {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Coding::Gzip),
            "deflate" => Some(Coding::Deflate),
            "br" => Some(Coding::Brotli),
            "zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    /// The codings that a field `Content-Encoding` names, in the order in which they were put on; none if one is not known.
    pub fn list(field: &str) -> Option<Vec<Coding>> {
        let names = field.split(',').map(str::trim);
        let names = names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"));
        names.map(Coding::from_name).collect()
    }

    /// Takes the coding off; none if that does not come out whole within the limit.
    pub fn decode(self, coded: &[u8], max: usize) -> Option<Bytes> {
        self.read(coded, |from| {
            let mut out = Vec::new();
            let read = from.take(max as u64 + 1).read_to_end(&mut out).ok()?;
            (read <= max).then(|| out.into())
        })
    }

    /// What can be read before the end, the limit, or something broken; none if that is nothing.
    pub fn readable(self, coded: &[u8], max: usize) -> Option<Bytes> {
        self.read(coded, |from| {
            let mut out = Vec::new();
            // `read_to_end` keeps what came before an error.
            let _broken = from.take(max as u64).read_to_end(&mut out);
            (!out.is_empty()).then(|| out.into())
        })
    }

    fn read(self, coded: &[u8], all: impl Fn(&mut dyn Read) -> Option<Bytes>) -> Option<Bytes> {
        match self {
            Coding::Gzip => all(&mut flate2::read::MultiGzDecoder::new(coded)),
            Coding::Deflate => all(&mut flate2::read::ZlibDecoder::new(coded))
                .or_else(|| all(&mut flate2::read::DeflateDecoder::new(coded))),
            Coding::Brotli => all(&mut brotli::Decompressor::new(coded, BROTLI_BUFFER_BYTES)),
            Coding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(coded).ok()?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).ok()?;
                all(&mut decoder)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn codings_come_off_within_limits() {
        let plain = b"all work and no play ".repeat(10_000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&plain).unwrap();
        let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        bare.write_all(&plain).unwrap();
        let mut br = Vec::new();
        brotli::CompressorWriter::new(&mut br, 4096, 3, 20).write_all(&plain).unwrap();
        for (coding, coded) in [
            (Coding::Gzip, gzip.finish().unwrap()),
            (Coding::Deflate, zlib.finish().unwrap()),
            (Coding::Deflate, bare.finish().unwrap()),
            (Coding::Zstd, zstd::bulk::compress(&plain, 1).unwrap()),
            (Coding::Brotli, br),
        ] {
            assert_eq!(coding.decode(&coded, plain.len()).unwrap(), plain, "{coding:?}");
            assert!(coding.decode(&coded, plain.len() - 1).is_none(), "{coding:?}");
            assert!(coding.decode(&coded[..coded.len() / 2], plain.len()).is_none(), "{coding:?}");
            assert!(coding.decode(b"something else", plain.len()).is_none(), "{coding:?}");
            assert_eq!(coding.readable(&coded, plain.len()).unwrap(), plain, "{coding:?}");
            assert_eq!(coding.readable(&coded, 100).unwrap(), plain[..100], "{coding:?}");
        }
    }

    #[test]
    fn several_codings_are_named_in_their_order() {
        assert_eq!(Coding::list("gzip, BR"), Some(vec![Coding::Gzip, Coding::Brotli]));
        assert_eq!(Coding::list("identity,"), Some(vec![]));
        assert_eq!(Coding::list("gzip, sdch"), None);
    }
}
