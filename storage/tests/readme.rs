//! The README's example of the library compiles, runs, and is the one that stands there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::Path;

/// What is between the marks stands in the README, but for white space.
fn example(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    // begin
    use webbase_storage::{Options, Organization, Page, RepositoryKey, create, open};

    create(dir, Organization::Log, RepositoryKey::random()?, &Options::default())?;
    let store = open(dir, &Options::default())?;
    store.add(&[Page { url: "http://example.org/", body: b"<p>hello", ..Page::default() }])?;
    store.commit()?; // durable and visible from here on
    let page = store.lookup_url("https://EXAMPLE.org")?; // found, however it is spelled
    // end
    assert!(page.is_some());
    Ok(())
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_example_of_the_readme_runs() {
    let folder = tempfile::tempdir().unwrap();
    example(&folder.path().join("pages")).unwrap();
    let (own, readme) = (include_str!("readme.rs"), include_str!("../../README.md"));
    let block = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let shown = own.split("// begin\n").nth(1).and_then(|rest| rest.split("// end\n").next()).unwrap();
    assert_eq!(words(block), words(shown));
    assert_eq!(readme.matches("```rust\n").count(), 1, "another example needs a test of its own");
}
