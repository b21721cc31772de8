//! Content codings that a client takes.

use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;
use webbase_stream::http::Coding;

/// A body is never unpacked to more than this.
pub(super) const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// Whether a client takes a coding. One that says nothing takes none of them.
pub(super) fn accepts(headers: &HeaderMap, coding: Coding) -> bool {
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
        } else if Coding::from_name(name) == Some(coding) {
            return !refused;
        }
    }
    any.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(coding: Coding, text: &str) -> bool {
        accepts(&HeaderMap::from_iter([(ACCEPT_ENCODING, text.parse().unwrap())]), coding)
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
        assert!(!accepts(&HeaderMap::new(), Coding::Gzip));
    }
}
