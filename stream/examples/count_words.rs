//! Counts the words of all HTML pages: one scan, a handler, all cores.
//!
//! `cargo run -p webbase-stream --example count_words [ADDRESS OF A MANAGEMENT SERVER]`

mod demo;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use demo::{Demo, Failed};
use webbase_stream::extract::{Content, Handlers, text};
use webbase_stream::{Repository, StreamSpec};

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let (repository, _demo) = match std::env::args().nth(1) {
        Some(address) => (Repository::connect(address.parse()?).await?, None),
        None => {
            let demo = Demo::start(folder.path()).await?;
            demo.fill().await?;
            (demo.repository.clone(), Some(demo))
        }
    };

    let counts: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let counting = counts.clone();
    let count = move |page: &Content<'_>| {
        // Counted for the page first, so that threads meet once a page and not once a word.
        let mut of_page: HashMap<String, u64> = HashMap::new();
        for word in text(page).split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            *of_page.entry(word.to_lowercase()).or_default() += 1;
        }
        let mut all = counting.lock().unwrap_or_else(PoisonError::into_inner);
        of_page.into_iter().for_each(|(word, count)| *all.entry(word).or_default() += count);
    };

    let stream = repository.stream(StreamSpec::all().mime("text/html")).await?;
    let dictionaries = stream.dictionaries().clone();
    let looked = Handlers::new().with(Arc::new(count)).run(stream, &dictionaries).await?;

    let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let mut words: Vec<(&String, &u64)> = counts.iter().collect();
    words.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    println!("{} pages, {} different words", looked.pages, words.len());
    for (word, count) in words.iter().take(10) {
        println!("{count:8} {word}");
    }
    if _demo.is_some() {
        assert_eq!((looked.pages, counts.get("the"), counts.get("zebra")), (200, Some(&400), Some(&20)));
    }
    Ok(())
}
