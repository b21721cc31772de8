//! Content codings: which of them a client takes, and taking one off a stored body, within limits.

use std::io::Read;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;

/// A body is never unpacked to more than this.
pub(super) const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// How a body is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coding {
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
    pub(super) fn from_name(name: &str) -> Option<Coding> {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Coding::Gzip),
            "deflate" => Some(Coding::Deflate),
            "br" => Some(Coding::Brotli),
            "zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    /// Whether a client takes it. One that says nothing takes none of them.
    pub(super) fn is_accepted(self, headers: &HeaderMap) -> bool {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut any = None;
        for entry in lists.flat_map(|list| list.split(',')) {
            let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
            let refused = parameters.split(';').any(|parameter| {
                let quality = parameter.trim().strip_prefix("q=").and_then(|q| q.trim().parse::<f32>().ok());
                quality.is_some_and(|quality| quality <= 0.0)
            });
            if name.trim() == "*" {
                any = Some(!refused);
            } else if Coding::from_name(name) == Some(self) {
                return !refused;
            }
        }
        any.unwrap_or(false)
    }

    /// Takes the coding off; none if that does not come out whole within the limit.
    pub(super) fn decode(self, coded: &[u8], max: usize) -> Option<Bytes> {
        match self {
            Coding::Gzip => read(flate2::read::MultiGzDecoder::new(coded), max),
            Coding::Deflate => read(flate2::read::ZlibDecoder::new(coded), max)
                .or_else(|| read(flate2::read::DeflateDecoder::new(coded), max)),
            Coding::Brotli => read(brotli::Decompressor::new(coded, 64 << 10), max),
            Coding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(coded).ok()?;
                // What RFC 8878 asks of decoders for the web: 8 MiB.
                decoder.window_log_max(23).ok()?;
                read(decoder, max)
            }
        }
    }
}

fn read(from: impl Read, max: usize) -> Option<Bytes> {
    let mut out = Vec::new();
    let read = from.take(max as u64 + 1).read_to_end(&mut out).ok()?;
    (read <= max).then(|| out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn accepted(coding: Coding, text: &str) -> bool {
        coding.is_accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, text.parse().unwrap())]))
    }

    #[test]
    fn clients_say_what_they_take() {
        for (text, gzip, zstd) in [
            ("gzip, deflate, br, zstd", true, true),
            ("gzip;q=0, *", false, true),
            ("*;q=0, X-GZIP;q=0.1", true, false),
            ("identity", false, false),
            ("zstd; q=0.5", false, true),
            ("zstd;q=0.000", false, false),
            ("", false, false),
        ] {
            assert_eq!((accepted(Coding::Gzip, text), accepted(Coding::Zstd, text)), (gzip, zstd), "{text}");
        }
        assert!(!Coding::Gzip.is_accepted(&HeaderMap::new()));
    }

    #[test]
    fn codings_come_off_within_limits() {
        let plain = b"all work and no play ".repeat(1000);
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
        }
    }
}
