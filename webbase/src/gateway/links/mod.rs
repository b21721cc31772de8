//! `GET /links?url=`: where a page leads, and which pages lead to it.
//!
//! Where it leads stands in the page. Which pages lead to it is in no page: a [`Table`] of all links is made by one scan of a
//! generation, in the background, when somebody asks for the first time; until then nothing is known, and the answer says so. It is made anew
//! when somebody asks after another generation came, but not so often that the scans would be felt. What it takes is bounded (`table.rs`); beyond
//! that it has the links of the pages that came first, and says that, too.

mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use webbase_storage::{PageKey, Record};
use webbase_stream::extract::Content;

use super::Gateway;
use super::operation::{JSON, Operation, query};
use super::params::Params;
use super::problem::Problem;
use super::status::as_json_answer;

use self::table::{Table, links_of};

/// Links of a kind that are told.
const TOLD_MAX: usize = 1000;
/// Between two scans, at least; and so many times as long as the last one took.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_TIMES: u32 = 20;

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/links",
        method: "get",
        name: "links",
        summary: "Where a page leads, and which pages lead to it",
        parameters: vec![query("url", "string", "the page's URL, percent-encoded").required()],
        body: None,
        answers: &[(200, JSON, "Links out, and links in as far as they are known")],
        is_long: false,
        route: get(show),
    }]
}

/// What is known of links.
#[derive(Default)]
pub(super) struct Links {
    wanted: Notify,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    table: Option<Arc<Table>>,
    /// When the last scan ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Links {
    /// The table, as far as there is one. A better one is made if it is time to.
    fn table(&self, served: u64) -> Option<Arc<Table>> {
        let made = self.made.lock();
        let is_old = made.table.as_ref().is_none_or(|table| table.generation() != served);
        let rests = made.last.is_some_and(|(ended, took)| ended.elapsed() < PAUSE.max(took * PAUSE_TIMES));
        if is_old && !rests {
            self.wanted.notify_one();
        }
        made.table.clone()
    }
}

/// Makes tables when they are wanted, until the gateway ends.
pub(super) async fn keep(gateway: Arc<Gateway>, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            () = gateway.links.wanted.notified() => {}
        }
        let began = Instant::now();
        let table = tokio::select! {
            _ = stopped.changed() => return,
            table = Table::make(&gateway.cluster) => table,
        };
        let mut made = gateway.links.made.lock();
        made.last = Some((Instant::now(), began.elapsed()));
        match table {
            Ok(table) => made.table = Some(Arc::new(table)),
            Err(e) => gateway.console.error(format!("links are not gathered: {e}")),
        }
    }
}

async fn show(State(gateway): State<Arc<Gateway>>, mut params: Params) -> Result<Response, Problem> {
    let Some(url) = params.take("url")? else {
        return Err(Problem::bad("no-url", "of which page? /links?url=http%3A%2F%2Fexample.org%2F"));
    };
    params.finish()?;
    let key = gateway.cluster.page_key(&url)?;
    let found = gateway.cluster.lookup(key).await?;
    let out = match found.pages {
        Some(record) => Some(out(&gateway, record).await?),
        None => None,
    };
    let table = gateway.links.table(gateway.served.load(Ordering::Relaxed));
    let answer = json!({
        "url": url,
        "generation": found.generation,
        "out": out,
        "in": table.map(|table| links_in(&table, key)),
    });
    Ok(as_json_answer(StatusCode::OK, &answer))
}

/// The links of a page, in its order.
async fn out(gateway: &Gateway, record: Record) -> Result<Value, Problem> {
    let dictionaries = gateway.cluster.dictionaries().clone();
    let read = move || {
        let links = links_of(&Content::of_record(&record, &dictionaries)?);
        let told: Vec<&str> = links.iter().take(TOLD_MAX).map(|url| url.as_str()).collect();
        Ok::<Value, webbase_storage::StorageError>(json!({"count": links.len(), "urls": told}))
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|e| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("reading links ended: {e}"))
    })?;
    Ok(read?)
}

fn links_in(table: &Table, key: PageKey) -> Value {
    let told: Vec<&str> = table.to(key).take(TOLD_MAX).collect();
    json!({
        "count": table.to(key).count(),
        "urls": told,
        "generation": table.generation(),
        "pages": table.pages(),
        "is_whole": table.is_whole(),
    })
}
