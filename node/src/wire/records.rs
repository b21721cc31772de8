//! Records end to end in a payload, taken apart and verified.

use bytes::Bytes;
use webbase_storage::{Record, record_len};

use super::message::{Code, Fault};

/// Takes records off the front of a payload, verifying each.
pub(crate) fn take_verified(payload: &mut Bytes) -> Option<Result<Record, Fault>> {
    take(payload).map(|bytes| {
        let bytes = bytes?;
        Record::new(bytes).map_err(|e| Fault::new(Code::Damaged, format!("a record damaged on its way: {e}")))
    })
}

/// Takes records off the front of a payload without verifying: for a store, which does that itself.
pub(crate) fn take_unverified(payload: &mut Bytes) -> Option<Result<Record, Fault>> {
    take(payload).map(|bytes| Record::new_unverified(bytes?).map_err(|e| Fault::new(Code::BadPage, e)))
}

fn take(payload: &mut Bytes) -> Option<Result<Bytes, Fault>> {
    if payload.is_empty() {
        return None;
    }
    let length = match record_len(payload) {
        Ok(length) if length <= payload.len() as u64 => length as usize,
        Ok(length) => {
            let what = format!("a record of {length} bytes in {} bytes", payload.len());
            payload.clear();
            return Some(Err(Fault::new(Code::Damaged, what)));
        }
        Err(e) => {
            payload.clear(); // where the next record would be is unknown
            return Some(Err(Fault::new(Code::Damaged, format!("a record damaged on its way: {e}"))));
        }
    };
    Some(Ok(payload.split_to(length)))
}
