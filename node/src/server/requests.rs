//! Requests as they come in: what memory can answer is answered at once, on the connection's own task; everything else
//! gets a task.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use webbase_storage::urls::encode_rows;
use webbase_storage::{Access, Cursor, Order, PageId, PageKey, Record, StreamSpec, Trust};

use super::pages::{Answer, Pages};
use super::select::Selection;
use super::workers::Lane;
use super::{Inner, add, importance, ordered, shared, slices, stream};
use crate::control::Control;
use crate::error::{NodeError, Result};
use crate::wire::driver::Accept;
use crate::wire::frame::{DATA_BYTES, DICTIONARY, END};
use crate::wire::message::{
    self, Code, DAMAGE_MAX, DUE_MAX, DueEntry, Fault, Figures, KEYS_MAX, Key, Request, SelectFrom,
    StreamOrder, URL_BYTES_MAX, URL_CUTS_MAX, URL_PARTS_MAX, URL_ROWS_MAX, UrlsHead, VerifyAnswer,
};
use crate::wire::mux::{Call, Mux};
use crate::wire::ranges::RangeSet;
use crate::wire::rotation::PREFIX;

/// Bytes of a SURT key in a request, at most: keys may be three times as long as their URLs.
const SURT_BYTES_MAX: usize = 3 * URL_BYTES_MAX;

/// Why a call ends early.
pub(super) enum Stop {
    /// There is nobody to answer any more.
    Gone,
    /// The client is told.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl From<NodeError> for Stop {
    fn from(e: NodeError) -> Stop {
        match e {
            NodeError::TooMuch { .. } => Stop::Fault(Fault::new(Code::BadRequest, e)),
            _ => Stop::Gone,
        }
    }
}

/// The requests of one connection.
pub(super) struct Requests {
    inner: Arc<Inner>,
}

/// Counts something under way, until it is dropped.
pub(super) struct Counted(Arc<Inner>, fn(&Inner) -> &AtomicUsize);

impl Counted {
    pub(super) fn new(inner: &Arc<Inner>, which: fn(&Inner) -> &AtomicUsize) -> (Counted, usize) {
        let before = which(inner).fetch_add(1, Ordering::Relaxed);
        (Counted(inner.clone(), which), before)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Requests {
    pub(super) fn new(inner: Arc<Inner>) -> Requests {
        Requests { inner }
    }

    /// Answers what can be answered without waiting; gives back the request otherwise.
    fn at_once(&self, mux: &Mux, id: u32, request: Request) -> Option<Request> {
        match request {
            Request::Ping => mux.answer_message(id, &[]),
            Request::Lookup { generation, key } => {
                let found = self.inner.service.pages.as_ref()?.lookup_warm(generation, key.into());
                match found {
                    Some(Ok(Some(record))) if self.answer(mux, id, &record) => {}
                    Some(Ok(None)) => mux.answer_message(id, &[]),
                    Some(Err(fault)) => mux.answer_fault(id, &fault),
                    _ => return Some(request),
                }
                self.inner.counters.lookups_answered.fetch_add(1, Ordering::Relaxed);
            }
            request => return Some(request),
        }
        None
    }

    fn answer(&self, mux: &Mux, id: u32, record: &Record) -> bool {
        let find = |digest| self.inner.service.pages.as_ref()?.dictionary(digest);
        mux.answer_record(id, record.bytes(), record.dictionary(), find)
    }
}

impl Accept for Requests {
    fn open(&mut self, mux: &Arc<Mux>, id: u32, end: bool, payload: &[u8]) -> Result<()> {
        if mux.is_leaving() {
            mux.answer_fault(id, &Fault::new(Code::ShuttingDown, "this node takes no more calls"));
            return Ok(());
        }
        let request = match message::decode::<Request>(payload) {
            Ok(request) => request,
            Err(e) => {
                mux.answer_fault(id, &Fault::new(Code::BadRequest, e));
                return Ok(());
            }
        };
        let Some(request) = self.at_once(mux, id, request) else { return Ok(()) };
        let Some(call) = mux.accept(id, end)? else { return Ok(()) };
        if let Request::Control { topic } = request {
            match &self.inner.service.control {
                Some(control) if topic.len() <= 200 => control.accept(&topic, Control::accepted(call)),
                _ => call.fail(&Fault::new(Code::BadRequest, "there are no control calls here")),
            }
            return Ok(());
        }
        let Some(pages) = self.inner.service.pages.clone() else {
            call.fail(&Fault::new(Code::BadRequest, "there are no pages here"));
            return Ok(());
        };
        let inner = self.inner.clone();
        tokio::spawn(async move {
            match serve(&inner, &pages, &call, request).await {
                Ok(()) | Err(Stop::Gone) => {}
                Err(Stop::Fault(fault)) => call.fail(&fault),
            }
        });
        Ok(())
    }
}

async fn serve(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    request: Request,
) -> std::result::Result<(), Stop> {
    let p = pages.clone();
    match request {
        Request::Lookup { generation, key } => {
            lookup(inner, pages, call, move || Ok(p.lookup(generation, key.into())?.into_iter().collect()))
                .await
        }
        Request::LookupId { generation, id } => {
            lookup(inner, pages, call, move || p.lookup_id(generation, PageId(id))).await
        }
        Request::LookupUrl { generation, url } => {
            bound("bytes of a URL", url.len(), URL_BYTES_MAX)?;
            lookup(inner, pages, call, move || Ok(p.lookup_url(generation, &url)?.into_iter().collect()))
                .await
        }
        Request::LookupMany { generation, keys } => {
            bound("keys in a multi-lookup", keys.len(), KEYS_MAX)?;
            slices::lookup_many(inner, pages, call, generation, None, keys).await
        }
        Request::LookupIn { generation, ranges, keys } => {
            check_ranges(&ranges)?;
            bound("keys in a multi-lookup", keys.len(), KEYS_MAX)?;
            slices::lookup_many(inner, pages, call, generation, Some(ranges), keys).await
        }
        Request::Stream { generation, order, from, direct, ranges } => {
            check_ranges(&ranges)?;
            let from = Cursor::from_str(&from).map_err(Fault::from)?;
            let order = match order {
                StreamOrder::Store => Order::Store,
                StreamOrder::Id => Order::Id,
                _ => return Err(Fault::new(Code::BadRequest, "such an order has to be selected").into()),
            };
            let access = if direct { Access::Direct } else { Access::Cached };
            let spec = StreamSpec { order, from, trust: Trust::Verify, access };
            stream::serve(
                inner,
                pages,
                call,
                generation,
                spec,
                stream::Which { ranges, ..Default::default() },
            )
            .await
        }
        Request::StreamAfter { generation, direct, ranges, after } => {
            check_ranges(&ranges)?;
            if !after.is_valid() {
                return Err(Fault::new(Code::BadRequest, "places that are none").into());
            }
            let access = if direct { Access::Direct } else { Access::Cached };
            let spec = StreamSpec { trust: Trust::Verify, access, ..StreamSpec::default() };
            let which = stream::Which { ranges, after: Some(after), ..Default::default() };
            stream::serve(inner, pages, call, generation, spec, which).await
        }
        Request::Select { generation, direct, ranges, spec, importance, from, shared } => {
            check_ranges(&ranges)?;
            let selection = Selection::new(&**pages, spec, importance, &ranges)?;
            let access = if direct { Access::Direct } else { Access::Cached };
            let scan = StreamSpec { trust: Trust::Verify, access, ..StreamSpec::default() };
            let (scan, after) = match from {
                SelectFrom::Place { after, went_on } => {
                    let asked = ordered::Asked { generation, ranges, selection, direct, after, went_on };
                    return ordered::serve(inner, pages, call, asked).await;
                }
                _ if selection.spec.order != StreamOrder::Store => {
                    return Err(
                        Fault::new(Code::BadRequest, "a place in this order is none of a store").into()
                    );
                }
                SelectFrom::After(after) if after.is_valid() => (scan, Some(after)),
                SelectFrom::After(_) => {
                    return Err(Fault::new(Code::BadRequest, "places that are none").into());
                }
                SelectFrom::Cursor(from) if shared || from.starts_with(PREFIX) => {
                    let from = from.parse()?;
                    return shared::serve(inner, pages, call, generation, scan, ranges, selection, from)
                        .await;
                }
                SelectFrom::Cursor(from) => {
                    (StreamSpec { from: Cursor::from_str(&from).map_err(Fault::from)?, ..scan }, None)
                }
            };
            let which = stream::Which { ranges, after, selection: Some(selection) };
            stream::serve(inner, pages, call, generation, scan, which).await
        }
        Request::PublishImportance { version, ranges } => {
            check_ranges(&ranges)?;
            importance::take(inner, pages, call, version, ranges).await
        }
        Request::ImportanceVersions => importance::versions(pages, call).await,
        Request::List { generation, from, ranges } => {
            check_ranges(&ranges)?;
            slices::list(inner, pages, call, generation, from.into()..=PageKey::MAX, ranges).await
        }
        Request::Keys { generation, from, ranges } => {
            check_ranges(&ranges)?;
            slices::keys(inner, pages, call, generation, from.into(), ranges).await
        }
        Request::Add { form } => add::serve(inner, call, form).await,
        Request::Dictionaries => {
            for dictionary in pages.dictionaries() {
                call.send(DICTIONARY, Bytes::copy_from_slice(dictionary.content())).await?;
            }
            call.end();
            Ok(())
        }
        Request::Stats => {
            let figures = inner.workers.run(Lane::Short, move || Figures::from(p.stats())).done().await?;
            finish(call, &figures).await
        }
        Request::Compact { budget_bytes } => {
            let done = inner.workers.run(Lane::Long, move || p.compact(budget_bytes)).done().await??;
            finish(call, &(done.read_bytes, done.written_bytes, done.freed_bytes, done.done)).await
        }
        Request::Verify => {
            let found = inner.workers.run(Lane::Long, move || p.verify()).done().await??;
            let place = |d: &webbase_storage::Damage| {
                (d.path.display().to_string(), d.offset, d.what.clone(), d.key.map(Key::from))
            };
            let answer = VerifyAnswer {
                good_records: found.good_records,
                checked_bytes: found.checked_bytes,
                damage_count: found.damage.len() as u64,
                damage: found.damage.iter().take(DAMAGE_MAX).map(place).collect(),
            };
            finish(call, &answer).await
        }
        Request::Tombstones { generation } => {
            let all = inner.workers.run(Lane::Short, move || p.tombstones(generation)).done().await??;
            for some in all.chunks(DATA_BYTES) {
                call.send(0, Bytes::copy_from_slice(some)).await?;
            }
            call.end();
            Ok(())
        }
        Request::Due { generation, now_ms, limit } => {
            let limit = (limit as usize).min(DUE_MAX);
            let due =
                inner.workers.run(Lane::Long, move || p.due(generation, now_ms, limit)).done().await??;
            let all: Vec<DueEntry> = due.iter().map(|(due, version)| DueEntry::new(due, *version)).collect();
            finish(call, &all).await
        }
        Request::ListBetween { generation, from, through, ranges } => {
            check_ranges(&ranges)?;
            slices::list(inner, pages, call, generation, from.into()..=through.into(), ranges).await
        }
        Request::Urls { generation, ranges, asked, limit } => {
            check_ranges(&ranges)?;
            bound("bytes of a SURT key", asked.longest(), SURT_BYTES_MAX)?;
            let limit = (limit as usize).min(URL_ROWS_MAX);
            let work = move || {
                let (rows, more) = p.urls(generation, &ranges, &asked.into(), limit)?;
                Ok::<_, Fault>((encode_rows(&rows)?, more))
            };
            let (rows, more) = inner.workers.run(Lane::Short, work).done().await??;
            let head = UrlsHead { bytes: rows.len() as u64, more };
            call.send(0, message::encode(&head).into()).await?;
            for some in rows.chunks(DATA_BYTES) {
                call.send(0, Bytes::copy_from_slice(some)).await?;
            }
            call.end();
            Ok(())
        }
        Request::UrlCount { generation, ranges, start, end } => {
            check_ranges(&ranges)?;
            let work = move || p.url_count(generation, &ranges, &start, end.as_deref());
            let counted = inner.workers.run(Lane::Short, work).done().await??;
            finish(call, &counted).await
        }
        Request::UrlCuts { generation, start, end, parts, wanted: (first, last) } => {
            bound("parts of an index", parts as usize, URL_PARTS_MAX as usize)?;
            bound("cuts in an answer", last.saturating_sub(first) as usize, URL_CUTS_MAX as usize)?;
            let work = move || p.url_cuts(generation, &start, end.as_deref(), parts, first..last);
            let cuts = inner.workers.run(Lane::Long, work).done().await??;
            finish(call, &cuts).await
        }
        Request::Renewed { generation, ranges } => {
            check_ranges(&ranges)?;
            slices::renewed(inner, pages, call, generation, ranges).await
        }
        Request::Ping | Request::Control { .. } => {
            call.end();
            Ok(())
        }
    }
}

fn bound(what: &str, found: usize, max: usize) -> std::result::Result<(), Fault> {
    if found <= max {
        return Ok(());
    }
    Err(Fault::new(Code::BadRequest, format!("{what}: {found}, the limit is {max}")))
}

fn check_ranges(ranges: &RangeSet) -> std::result::Result<(), Fault> {
    if ranges.is_valid() { Ok(()) } else { Err(Fault::new(Code::BadRequest, "a set of ranges that is none")) }
}

/// Sends the last message of a call.
pub(super) async fn finish<T: serde::Serialize>(call: &Call, answer: &T) -> std::result::Result<(), Stop> {
    call.send(END, message::encode(answer).into()).await?;
    call.forget();
    Ok(())
}

async fn lookup(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    work: impl FnOnce() -> Answer<Vec<Record>> + Send + 'static,
) -> std::result::Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.lookups);
    let records = inner.workers.run(Lane::Short, work).done().await??;
    inner.counters.lookups_answered.fetch_add(1, Ordering::Relaxed);
    send_records(pages, call, &records).await?;
    call.end();
    Ok(())
}

pub(super) async fn send_records(
    pages: &Arc<dyn Pages>,
    call: &Call,
    records: &[Record],
) -> std::result::Result<(), Stop> {
    for record in records {
        call.mux().send_dictionary(record.get().dictionary(), |digest| pages.dictionary(digest));
    }
    let bytes: Vec<Bytes> = records.iter().map(|record| record.bytes().clone()).collect();
    Ok(call.send_records(&bytes, 0).await?)
}
