//! Copies one repository into another. Pages get new keys there, so they are copied as pages, not as records.
//!
//! `cargo run -p webbase-stream --example copy_repository [FROM TO]`, both addresses of management servers.

mod demo;

use demo::{Demo, Failed};
use webbase_stream::{Repository, StreamSpec};

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let (folder, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut demos = Vec::new();
    let (from, to) = match (std::env::args().nth(1), std::env::args().nth(2)) {
        (Some(from), Some(to)) => {
            (Repository::connect(from.parse()?).await?, Repository::connect(to.parse()?).await?)
        }
        _ => {
            for dir in [folder.path(), other.path()] {
                demos.push(Demo::start(dir).await?);
            }
            let [from, to] = demos.as_slice() else { return Err("two repositories were started".into()) };
            from.fill().await?;
            (from.repository.clone(), to.repository.clone())
        }
    };

    let mut pages = from.stream(StreamSpec::all()).await?.pages();
    let mut adder = to.adder();
    while let Some(page) = pages.next().await {
        adder.page(page?).await?;
    }
    let added = adder.finish().await?;
    for (url, why) in &added.refused {
        eprintln!("{url} was refused: {why}");
    }
    to.cluster().cycle(|_| {}).await?; // visible from here on
    println!("{} pages copied, {} refused", added.acknowledged, added.refused.len());

    if !demos.is_empty() {
        let url = "http://site3.example/10.html";
        let (here, there) = (from.lookup(url).await?, to.lookup(url).await?);
        let (Some(here), Some(there)) = (here, there) else { return Err("the page is not there".into()) };
        assert_eq!((added.acknowledged, &here.body, &here.head), (200, &there.body, &there.head));
        assert_ne!(here.key, there.key, "each repository names its pages by a secret of its own");
        let many = to.lookup_many(&[url, "http://nowhere.example/", "no url"]).await?;
        let found: Vec<_> = many.iter().map(|page| page.as_ref().map(Option::is_some).ok()).collect();
        assert_eq!(found, [Some(true), Some(false), None]);
    }
    Ok(())
}
