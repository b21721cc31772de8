//! Builds an inverted index: which pages have which word. Pages come in URL order, so the lists are sorted as they grow; the
//! cursor is what a long-running builder would keep to go on after a crash.
//!
//! `cargo run -p webbase-stream --example inverted_index [ADDRESS OF A MANAGEMENT SERVER [WORD…]]`

mod demo;

use std::collections::{BTreeMap, BTreeSet};

use demo::{Demo, Failed};
use webbase_stream::extract::{Content, text};
use webbase_stream::{Repository, StreamOrder, StreamSpec};

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

    let spec = StreamSpec::all().mime("text/html").ordered(StreamOrder::Url);
    let mut stream = repository.stream(spec).await?;
    let (mut urls, mut index): (Vec<String>, BTreeMap<String, Vec<u32>>) = Default::default();
    let mut cursor = None;
    while let Some(record) = stream.next().await {
        let record = record?;
        let content = Content::of_record(&record, stream.dictionaries())?;
        let (number, text) = (urls.len() as u32, text(&content));
        let words: BTreeSet<String> = text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
            .map(str::to_lowercase)
            .collect();
        words.into_iter().for_each(|word| index.entry(word).or_default().push(number));
        urls.push(content.url().to_owned());
        if urls.len() == 100 {
            cursor = Some(stream.cursor()?); // kept with the index so far
        }
    }
    println!("{} words in {} pages of generation {}", index.len(), urls.len(), stream.generation());
    let mut words: Vec<String> = std::env::args().skip(2).map(|word| word.to_lowercase()).collect();
    if words.is_empty() {
        words.push("zebra".to_owned());
    }
    for word in words {
        let pages = index.get(&word).map(Vec::as_slice).unwrap_or_default();
        println!("{word}: {} pages", pages.len());
        for number in pages.iter().take(5) {
            println!("  {}", urls.get(*number as usize).map_or("", String::as_str));
        }
    }

    // As if it had crashed after page 100: exactly the rest comes.
    if let Some(cursor) = cursor {
        let (mut rest, mut left) = (repository.resume(&cursor.to_string().parse()?).await?, 0);
        while let Some(record) = rest.next().await {
            record?;
            left += 1;
        }
        println!("behind page 100 there are {left} more");
        assert_eq!(left + 100, urls.len());
    }
    if _demo.is_some() {
        assert_eq!((urls.len(), index.get("zebra").map(Vec::len)), (200, Some(20)));
    }
    Ok(())
}
