//! The links of a page that a crawl follows: what its next pages are found by.

use url::Url;
use webbase_storage::Page;
use webbase_stream::extract::{self, Content};

/// The links of a page that lead to pages, resolved, in its order, each once; `body` is without its content coding.
pub(super) fn links(mime: &str, body: &[u8], base: &Url) -> Vec<Url> {
    let page = Page { url: base.as_str(), mime, body, ..Page::default() };
    extract::page_links(&Content::of_unpacked(&page)).into_iter().map(|link| link.url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_followed_and_what_they_are_made_of_is_not() {
        let base = Url::parse("http://a.example/x/y").unwrap();
        let body =
            b"<a href=1><img src=i.png><link rel=stylesheet href=s.css><link rel=next href=2><iframe src=/3>";
        let found: Vec<String> = links("text/html", body, &base).iter().map(Url::to_string).collect();
        assert_eq!(found, ["http://a.example/x/1", "http://a.example/x/2", "http://a.example/3"]);
        assert!(links("image/png", body, &base).is_empty());
    }
}
