//! How fast links are taken out of pages: pages and megabytes a second on one core, beside tokenizers that do nothing else.
//!
//! `links [--corpus benches/work/pages.corpus] [--warc FILE,FILE] [--pages 20000] [--rounds 5]`, with the feature `tokenizers`.
//!
//! Ours makes links of bytes: it finds out the character set, decodes, tokenizes, resolves URLs and leaves repeated ones out. The others get
//! the text of the same pages, decoded before: lol_html counts `a[href]`, html5ever's tokenizer counts start tags `a` with an `href`. None of
//! them builds a tree. "Ours, of text" has the same text as UTF-8, so what the character set costs is the difference.

use std::cell::Cell;
use std::path::Path;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};
use lol_html::{HtmlRewriter, Settings, element};
use webbase_benches::arguments::Arguments;
use webbase_benches::corpus::Corpus;
use webbase_benches::measure::{Work, alternate, print_setting, print_table, timed};
use webbase_benches::warc::read_responses;
use webbase_storage::Page;
use webbase_stream::extract::{Content, links};

/// As the program has it.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NAMES: [&str; 4] = ["webbase, of bytes", "webbase, of text", "lol_html a[href]", "html5ever tokenizer"];

/// One page, its body without chunks and content codings.
struct Html {
    url: String,
    head: Vec<u8>,
    body: Vec<u8>,
    text: String,
}

impl Html {
    fn new(url: &str, head: &[u8], body: &[u8]) -> Html {
        let page = Page { url, status: 200, mime: "text/html", head, body, ..Page::default() };
        let content = Content::of_page(&page);
        let (body, text) = (content.body().to_vec(), content.text().to_owned());
        Html { url: url.to_owned(), head: head.to_vec(), body, text }
    }

    fn links(&self, head: &[u8], body: &[u8]) -> usize {
        let page = Page { url: &self.url, status: 200, mime: "text/html", head, body, ..Page::default() };
        links(&Content::of_unpacked(&page)).len()
    }
}

fn pages(arguments: &Arguments) -> Vec<Html> {
    let (most, mut pages) = (arguments.number("--pages", 20_000), Vec::new());
    if let Some(warcs) = arguments.value("--warc") {
        for warc in warcs.split(',') {
            let take = |found: webbase_benches::warc::Response| {
                if pages.len() < most {
                    pages.push(Html::new(&found.url, &found.head, &found.body));
                }
                Ok(())
            };
            read_responses(Path::new(warc), take).expect("a WARC file");
        }
        return pages;
    }
    let path = arguments.value("--corpus").unwrap_or("benches/work/pages.corpus");
    let corpus = Corpus::read(Path::new(path), most).expect("a corpus: benches/corpus.sh makes it");
    corpus.pages.iter().map(|page| Html::new(page.url, page.head, page.body)).collect()
}

fn count_lol_html(text: &str) -> usize {
    let found = Cell::new(0);
    let anchor = element!("a[href]", |_| {
        found.set(found.get() + 1);
        Ok(())
    });
    let settings = Settings::new().with_strict(false).append_element_content_handler(anchor);
    let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| {});
    rewriter.write(text.as_bytes()).expect("lol_html reads any page");
    rewriter.end().expect("lol_html reads any page");
    found.get()
}

/// Counts start tags, as html5ever hands them over.
#[derive(Default)]
struct Anchors {
    found: Cell<usize>,
}

impl TokenSink for Anchors {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        if let Token::TagToken(Tag { kind: TagKind::StartTag, name, attrs, .. }) = token
            && &*name == "a"
            && attrs.iter().any(|attribute| &*attribute.name.local == "href")
        {
            self.found.set(self.found.get() + 1);
        }
        TokenSinkResult::Continue
    }
}

fn count_html5ever(text: &str) -> usize {
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(text));
    let tokenizer = Tokenizer::new(Anchors::default(), TokenizerOpts::default());
    let _ = tokenizer.feed(&input);
    tokenizer.end();
    tokenizer.sink.found.get()
}

fn main() {
    let arguments = Arguments::from_env();
    let rounds = arguments.number("--rounds", 5);
    let pages = pages(&arguments);
    let bytes = pages.iter().map(|page| page.body.len() as u64).sum();
    let work = Work { pages: pages.len() as u64, bytes };
    print_setting(work, rounds);
    let mut found = [0; NAMES.len()];
    let samples = alternate(&NAMES, rounds, |contestant| {
        let (count, cost) = timed(|| {
            let of = |page: &Html| match contestant {
                0 => page.links(&page.head, &page.body),
                1 => page.links(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n",
                    page.text.as_bytes(),
                ),
                2 => count_lol_html(&page.text),
                _ => count_html5ever(&page.text),
            };
            pages.iter().map(of).sum()
        });
        found[contestant] = count;
        cost
    });
    print_table("Links of pages, one core", &samples, NAMES[2], work);
    println!();
    for (name, found) in NAMES.iter().zip(found) {
        println!("{name}: {found} links");
    }
}
