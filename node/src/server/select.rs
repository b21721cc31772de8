//! Which pages a stream sends and what of them, as its specification says.

use std::sync::Arc;

use webbase_storage::PageKey;

use super::pages::Pages;
use crate::importance::{Importance, ImportanceReader};
use crate::wire::message::{Code, Fault};
use crate::wire::ranges::RangeSet;
use crate::wire::spec::{Seen, StreamSpec};

/// A specification, and what it takes to judge by it.
pub(super) struct Selection {
    pub(super) spec: StreamSpec,
    importance: Option<Arc<Importance>>,
}

impl Selection {
    /// Checks what came over the wire.
    pub(super) fn new(
        pages: &dyn Pages,
        spec: StreamSpec,
        importance: u64,
        ranges: &RangeSet,
    ) -> Result<Selection, Fault> {
        let spec = spec.checked().map_err(|e| Fault::new(Code::BadRequest, e))?;
        if !spec.needs_importance() {
            return Ok(Selection { spec, importance: None });
        }
        let none = || Fault::new(Code::BadRequest, "this node knows nothing of the importance of pages");
        let table = pages.importances().ok_or_else(none)?.get(importance)?;
        if !table.covers(ranges) {
            let text = format!(
                "version {importance} of the importance of pages does not have all these ranges here, which came to \
                 this node later; publish it anew"
            );
            return Err(Fault::new(Code::BadRequest, text));
        }
        Ok(Selection { spec, importance: Some(table) })
    }

    /// For one thread, for a while.
    pub(super) fn judge(&self) -> Judge<'_> {
        Judge { spec: &self.spec, importance: self.importance.clone().map(ImportanceReader::new) }
    }
}

/// Judges pages.
pub(super) struct Judge<'a> {
    spec: &'a StreamSpec,
    importance: Option<ImportanceReader>,
}

impl Judge<'_> {
    fn importance(&mut self, key: PageKey) -> Result<Option<f32>, Fault> {
        self.importance.as_mut().map_or(Ok(None), |table| table.of(key))
    }

    pub(super) fn wants(&mut self, page: &Seen<'_>) -> Result<bool, Fault> {
        let spec = self.spec;
        spec.wants(page, |key| self.importance(key))
    }

    /// Whether a damaged page may be wanted, by what its key says. The client looks at the rest when it has found it elsewhere.
    pub(super) fn may_want(&mut self, key: PageKey) -> Result<bool, Fault> {
        let spec = self.spec;
        spec.may_want(key, |key| self.importance(key))
    }

    /// Where a page stands in the order.
    pub(super) fn place(&mut self, page: &Seen<'_>) -> Result<Vec<u8>, Fault> {
        let importance = self.importance(page.key)?;
        Ok(self.spec.place(page, importance))
    }
}
