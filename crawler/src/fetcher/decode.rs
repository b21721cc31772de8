//! A body without its content coding, for those who look into it. What is stored stays as it came.

use std::borrow::Cow;
use std::io::Read;

/// How far a body is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct UnpackLimits {
    /// At most this many bytes.
    pub bytes_max: usize,
    /// At most this many times what came, once that is more than a mebibyte.
    pub ratio_max: usize,
}

impl Default for UnpackLimits {
    fn default() -> UnpackLimits {
        UnpackLimits { bytes_max: 32 << 20, ratio_max: 200 }
    }
}

/// A body unpacked, as far as it goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Unpacked<'a> {
    /// The bytes.
    pub bytes: Cow<'a, [u8]>,
    /// What was wrong, if anything was: a bomb, a torn or broken body, a coding that is not known.
    pub trouble: Option<String>,
}

/// Unpacks a body by its `Content-Encoding`.
pub fn unpack<'a>(body: &'a [u8], coding: &str, limits: UnpackLimits) -> Unpacked<'a> {
    let mut bytes = Cow::Borrowed(body);
    let mut trouble = None;
    let codings: Vec<&str> = coding.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
    // The last one was put on last. Nobody honest uses more than two.
    for coding in codings.iter().rev().take(2) {
        let reader: Box<dyn Read + '_> = match coding.to_ascii_lowercase().as_str() {
            "identity" => continue,
            "gzip" | "x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(&*bytes)),
            // Called deflate, it is zlib by the book and raw deflate by habit.
            "deflate" if bytes.first().is_some_and(|first| first & 0x0f == 8) => {
                Box::new(flate2::read::ZlibDecoder::new(&*bytes))
            }
            "deflate" => Box::new(flate2::read::DeflateDecoder::new(&*bytes)),
            "br" => Box::new(brotli::Decompressor::new(&*bytes, 4096)),
            "zstd" => match zstd::stream::read::Decoder::new(&*bytes) {
                Ok(mut decoder) => {
                    // RFC 9659: no window over 8 MiB.
                    if let Err(e) = decoder.window_log_max(23) {
                        trouble = Some(format!("zstd: {e}"));
                        break;
                    }
                    Box::new(decoder)
                }
                Err(e) => {
                    trouble = Some(format!("zstd: {e}"));
                    break;
                }
            },
            other => {
                trouble = Some(format!("content coding {other} is not known"));
                break;
            }
        };
        let most = limits.bytes_max.min((body.len().saturating_mul(limits.ratio_max)).max(1 << 20));
        let mut out = Vec::new();
        match reader.take(most as u64 + 1).read_to_end(&mut out) {
            Err(e) => trouble = Some(format!("{coding}: {e}")),
            Ok(_) if out.len() > most => {
                out.truncate(most);
                trouble = Some(format!("{coding}: unpacks to more than {most} bytes"));
            }
            Ok(_) => {}
        }
        bytes = Cow::Owned(out);
    }
    Unpacked { bytes, trouble }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn every_coding_comes_back() {
        let text = b"some text, some text, some more of it".repeat(20);
        let mut br = Vec::new();
        brotli::BrotliCompress(&mut &text[..], &mut br, &brotli::enc::BrotliEncoderParams::default())
            .unwrap();
        let packed = [
            ("gzip", gzip(&text)),
            ("x-gzip, identity", gzip(&text)),
            ("br", br),
            ("zstd", zstd::encode_all(&text[..], 3).unwrap()),
            ("gzip, gzip", gzip(&gzip(&text))),
            ("", text.clone()),
        ];
        for (coding, body) in &packed {
            let unpacked = unpack(body, coding, UnpackLimits::default());
            assert_eq!((unpacked.bytes.as_ref(), &unpacked.trouble), (&text[..], &None), "{coding}");
        }
    }

    #[test]
    fn bombs_and_broken_bodies_stop_at_the_limit() {
        let bomb = gzip(&vec![0; 64 << 20]);
        let unpacked = unpack(&bomb, "gzip", UnpackLimits { bytes_max: 4 << 20, ratio_max: 200 });
        assert_eq!(unpacked.bytes.len(), 4 << 20);
        assert!(unpacked.trouble.is_some());
        let torn = gzip(b"whole");
        assert!(unpack(&torn[..torn.len() - 9], "gzip", UnpackLimits::default()).trouble.is_some());
        let none = unpack(b"text", "compress", UnpackLimits::default());
        assert_eq!(none.bytes.as_ref(), b"text");
        assert!(none.trouble.is_some());
    }
}
