//! The shortest useful program: a node on a port of the system's choosing, and a client that adds, looks up and streams.
//!
//! `cargo run -p webbase-node --example node_quickstart -- FOLDER`

use webbase_node::{Client, ClientSettings, Server, Service, Settings, StreamRequest};
use webbase_storage::{Options, Organization, Page, RepositoryKey, create, open};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give a new folder")?;
    let folder = std::path::Path::new(&folder);
    create(folder, Organization::Log, RepositoryKey::random()?, &Options::default())?;
    let store = open(folder, &Options::default())?;
    let server = Server::start("127.0.0.1:0".parse()?, Service::of_store(store), Settings::default()).await?;

    let client = Client::connect(server.address(), ClientSettings::default()).await?;
    let mut add = client.add_pages()?;
    for n in 0..3 {
        let (url, body) = (format!("http://example.org/{n}"), format!("<p>page {n}"));
        add.page(&Page { url: &url, body: body.as_bytes(), ..Page::default() }).await?;
    }
    println!("durable: {} pages", add.finish().await?.added.new);

    let record = client.lookup_url(0, "https://example.org/1").await?.ok_or("it was just added")?;
    println!("found: {}", String::from_utf8_lossy(&record.body(client.dictionaries())?));

    let mut pages = client.stream(&StreamRequest::default())?;
    while let Some(record) = pages.next().await {
        println!("streamed: {}", record?.get().url());
    }
    server.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}
