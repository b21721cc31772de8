//! Takes the importance of pages.

use std::sync::Arc;

use super::Inner;
use super::pages::Pages;
use super::requests::{Stop, finish};
use super::workers::Lane;
use crate::wire::message::{Code, Fault};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;

fn none() -> Fault {
    Fault::new(Code::BadRequest, "this node keeps no importance of pages: it serves no readers")
}

/// The versions there are.
pub(super) async fn versions(pages: &Arc<dyn Pages>, call: &Call) -> Result<(), Stop> {
    finish(call, &pages.importances().ok_or_else(none)?.versions()).await
}

/// Takes a version.
pub(super) async fn take(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    version: u64,
    ranges: RangeSet,
) -> Result<(), Stop> {
    let importances = pages.importances().ok_or_else(none)?;
    let begin = move || {
        importances.write(version, ranges).map_err(|e| Fault::new(Code::Store, format!("cannot write: {e}")))
    };
    let mut writer = inner.workers.run(Lane::Short, begin).done().await??;
    while let Some(item) = call.receive(None).await? {
        let taken = inner.workers.run(Lane::Short, move || {
            writer.take(&item.payload)?;
            Ok::<_, Fault>(writer)
        });
        writer = taken.done().await??;
    }
    let entries = inner.workers.run(Lane::Long, move || writer.finish()).done().await??;
    finish(call, &entries).await
}
