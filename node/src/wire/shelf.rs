//! The shelf: memory that a server shares with its clients on the same machine, so that the pages of a shared scan reach all of them without
//! passing through the system, once in and once out for each.
//!
//! ```text
//!   a file in memory, sealed: nobody but the server ever writes to it, and it never shrinks
//!   ┌────────┬────────┬────────┬───   ───┬────────┐
//!   │ slot 0 │ slot 1 │ slot 2 │    …    │ slot n │     each has one batch, records end to end, or is free
//!   └────────┴────────┴────────┴───   ───┴────────┘
//!
//!   places, the payload of a data frame with the flag `placed`: one run of records or more
//!   OFFSET  SIZE  FIELD
//!        0     4  where in the file
//!        4     4  bytes
//! ```
//!
//! 1. The scan puts a batch into a free slot; from then on its records are bytes like all others, which happen to lie there. The slot is free again when
//!    the last of them is dropped. Where no slot is free, or the batch is too large for one, they stay where they are.
//! 2. A client that comes by the door and asks for it is handed the file before its welcome. Records on the shelf are not sent to it: it is told their
//!    places, copies them out, and says so (`taken`). Until then the connection holds them, so nothing is written over them.
//! 3. What a connection holds is bounded ([`TOLD_BYTES_MAX`]): a client that does not say so gets its records by the socket, like everybody else.
//! 4. A client checks records after it has copied them, as it does with what comes by a socket: it need not trust that nobody writes meanwhile.

#![expect(unsafe_code, reason = "the memory is mapped, and another process has it mapped, too")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::frame::DATA_BYTES_MAX;
use super::pool;

/// Bytes of a slot: a batch of a shared scan, which ends with the record that makes it a megabyte.
const SLOT_BYTES: usize = 2 << 20;
/// The queues of a few clients that have stopped reading, and what those need that have not. A slot takes memory as far as it was used; the one that became free last is
/// used next, so that there are few while all keep up, and the processor has them in its cache.
const SLOTS: u32 = 48;
const SHELF_BYTES: usize = SLOT_BYTES * SLOTS as usize;
/// The largest that a client maps.
const VIEW_BYTES_MAX: u64 = 1 << 30;
/// Bytes of records that one connection may be told of and has not taken.
pub(crate) const TOLD_BYTES_MAX: usize = 4 << 20;
/// The byte that the file comes with. No frame begins with it.
const WITH_FILE: u8 = 0;

const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A server's shelf.
pub(crate) struct Shelf {
    memory: MmapRaw,
    file: OwnedFd,
    free: Mutex<Vec<u32>>,
}

impl Shelf {
    /// Makes one, where the system can. Without it clients get everything by their sockets.
    pub(crate) fn open() -> Option<Arc<Shelf>> {
        let none =
            |why: &io::Error| tracing::debug!("no memory to share with clients on this machine: {why}");
        Shelf::make().inspect_err(none).ok().map(Arc::new)
    }

    fn make() -> io::Result<Shelf> {
        let file = memfd_create("webbase-shelf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, SHELF_BYTES as u64)?;
        let memory = MmapOptions::new().len(SHELF_BYTES).map_raw(&file)?;
        // What is mapped already stays writable; nothing else ever is.
        fcntl_add_seals(&file, SEALS)?;
        Ok(Shelf { memory, file, free: Mutex::new((0..SLOTS).rev().collect()) })
    }

    /// Puts these end to end into a slot, if they fit and one is free.
    pub(crate) fn put<'a>(self: &Arc<Self>, items: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Bytes> {
        let bytes: usize = items.clone().map(<[u8]>::len).sum();
        if bytes == 0 || bytes > SLOT_BYTES {
            return None;
        }
        let number = self.free.lock().pop()?;
        let mut slot = Slot { shelf: self.clone(), number, bytes: 0 };
        for item in items {
            slot.append(item);
        }
        Some(Bytes::from_owner(slot))
    }

    /// Where bytes lie, if that is here.
    fn place(&self, bytes: &Bytes) -> Option<usize> {
        let place = bytes.as_ptr().addr().checked_sub(self.memory.as_ptr().addr())?;
        (place < SHELF_BYTES && !bytes.is_empty()).then_some(place)
    }

    /// The places of records, if all of them lie here, and what keeps them there.
    pub(crate) fn places(&self, records: &[Bytes]) -> Option<(Vec<u8>, Vec<Bytes>)> {
        let (mut runs, mut held): (Vec<(usize, usize)>, Vec<Bytes>) = (Vec::new(), Vec::new());
        for record in records {
            let place = self.place(record)?;
            match runs.last_mut() {
                Some((from, bytes))
                    if *from + *bytes == place && *from / SLOT_BYTES == place / SLOT_BYTES =>
                {
                    *bytes += record.len();
                }
                _ => {
                    runs.push((place, record.len()));
                    held.push(record.clone());
                }
            }
        }
        let places =
            runs.iter().flat_map(|(place, bytes)| [*place as u32, *bytes as u32].map(u32::to_le_bytes));
        Some((places.flatten().collect(), held))
    }

    /// Hands the file to a client.
    pub(crate) async fn hand_over(&self, socket: &UnixStream) -> io::Result<()> {
        let files = [self.file.as_fd()];
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            let flags = SendFlags::NOSIGNAL;
            Ok(sendmsg(socket, &[IoSlice::new(&[WITH_FILE])], &mut control, flags).map(drop)?)
        };
        socket.async_io(Interest::WRITABLE, send).await
    }
}

/// One batch on the shelf.
struct Slot {
    shelf: Arc<Shelf>,
    number: u32,
    bytes: usize,
}

impl Slot {
    fn start(&self) -> *mut u8 {
        self.shelf.memory.as_mut_ptr().wrapping_add(self.number as usize * SLOT_BYTES)
    }

    fn append(&mut self, item: &[u8]) {
        assert!(item.len() <= SLOT_BYTES - self.bytes, "a slot holds what was measured before");
        // SAFETY: the slot lies in the map, which lives as long as `shelf` does, and the item fits into what is left of it. Numbers leave the list of free ones
        // once, so nobody else has this slot: nobody writes, and no reference to it is left in this process, or it would not be free.
        unsafe { std::ptr::copy_nonoverlapping(item.as_ptr(), self.start().add(self.bytes), item.len()) };
        self.bytes += item.len();
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: these bytes were written by `append`, and are not written again before this is dropped: the file is sealed, so no other map of it is writable.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shelf.free.lock().push(self.number);
    }
}

/// A server's shelf, as a client sees it.
pub(crate) struct View {
    memory: MmapRaw,
}

impl View {
    /// Takes what comes before the welcome: the file, or the first byte of another frame.
    pub(crate) async fn receive(socket: &UnixStream) -> io::Result<Result<View, u8>> {
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut first = [0];
            let mut into = [IoSliceMut::new(&mut first)];
            let received = recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let file = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                _ => None,
            });
            Ok((received.bytes, first, file))
        };
        match socket.async_io(Interest::READABLE, receive).await? {
            (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, [WITH_FILE], Some(file)) => View::of(&file).map(Ok),
            (_, [WITH_FILE], None) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a shelf was announced and did not come"))
            }
            (_, [first], _) => Ok(Err(first)),
        }
    }

    fn of(file: &OwnedFd) -> io::Result<View> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        // What can shrink would end this process when it is read behind its end.
        if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(wrong("a shelf that is not sealed"));
        }
        let bytes = u64::try_from(fstat(file)?.st_size).unwrap_or_default();
        if bytes == 0 || bytes > VIEW_BYTES_MAX {
            return Err(wrong("a shelf of a wrong size"));
        }
        Ok(View { memory: MmapOptions::new().len(bytes as usize).map_raw_read_only(file)? })
    }

    /// Copies records out.
    ///
    /// # Errors
    /// When the places make no sense.
    pub(crate) fn take(&self, places: &[u8]) -> Result<Bytes, String> {
        let (runs, []) = places.as_chunks::<8>() else { return Err("half a place".into()) };
        let runs = runs.iter().map(|run| {
            let both = u64::from_le_bytes(*run);
            (both as u32, (both >> 32) as u32)
        });
        let bytes: u64 = runs.clone().map(|(_, bytes)| u64::from(bytes)).sum();
        if bytes > u64::from(DATA_BYTES_MAX) {
            return Err(format!("places of {bytes} bytes, at most {DATA_BYTES_MAX} are taken"));
        }
        let mut out = pool::take(bytes as usize);
        for (from, bytes) in runs {
            let (from, bytes) = (from as usize, bytes as usize);
            let inside = self.memory.len().checked_sub(from).is_some_and(|left| bytes <= left);
            if !inside {
                return Err(format!("a place at {from}, {bytes} bytes long, is outside of the shelf"));
            }
            out.reserve(bytes);
            let len = out.len();
            // SAFETY: the bytes lie in the map, whose file cannot shrink, and `out` has room for them. The server may write there, if it breaks the protocol: no
            // reference to the map is ever made, and what was copied is checked.
            unsafe {
                let into = out.as_mut_ptr().add(len);
                std::ptr::copy_nonoverlapping(self.memory.as_ptr().add(from), into, bytes);
                out.set_len(len + bytes);
            }
        }
        Ok(pool::share(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(shelf: &Shelf) -> View {
        View::of(&shelf.file.try_clone().unwrap()).unwrap()
    }

    #[test]
    fn what_is_put_there_is_seen_by_others_and_stays_until_it_is_dropped() {
        let shelf = Shelf::open().unwrap();
        let view = view_of(&shelf);
        let records: Vec<Vec<u8>> = (1..=200_u8).map(|n| vec![n; 1000 + usize::from(n)]).collect();
        let batch = shelf.put(records.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(batch, records.concat());
        let mut rest = batch.clone();
        let on_shelf: Vec<Bytes> = records.iter().map(|record| rest.split_to(record.len())).collect();
        let (places, held) = shelf.places(&on_shelf).unwrap();
        assert_eq!((places.len(), held.len()), (8, 1), "end to end they are one run");
        assert_eq!(view.take(&places).unwrap(), batch);
        drop((held, rest));
        // Every other one.
        let some: Vec<Bytes> = on_shelf.iter().step_by(2).cloned().collect();
        let (places, held) = shelf.places(&some).unwrap();
        assert_eq!((places.len(), held.len()), (8 * 100, 100));
        assert_eq!(view.take(&places).unwrap(), some.concat());
        drop((batch, on_shelf, some));
        // What is held is not written over, though its slot would be the next.
        let others: Vec<Bytes> =
            (1..SLOTS).map(|n| shelf.put([&[n as u8; 64][..]].into_iter()).unwrap()).collect();
        assert!(shelf.put([&b"no room"[..]].into_iter()).is_none());
        assert_eq!(
            view.take(&places).unwrap(),
            records.iter().step_by(2).flatten().copied().collect::<Vec<_>>()
        );
        drop(held);
        assert_eq!(shelf.put([&b"room"[..]].into_iter()).unwrap(), &b"room"[..]);
        drop(others);
        assert_eq!(shelf.free.lock().len(), SLOTS as usize);
    }

    #[test]
    fn slots_side_by_side_are_not_one_run() {
        let shelf = Shelf::open().unwrap();
        let full = vec![1; SLOT_BYTES];
        let batches =
            [shelf.put([&full[..]].into_iter()).unwrap(), shelf.put([&full[..]].into_iter()).unwrap()];
        assert_eq!(shelf.place(&batches[1]).unwrap() - shelf.place(&batches[0]).unwrap(), SLOT_BYTES);
        assert_eq!(shelf.places(&batches).unwrap().1.len(), 2, "each is held");
        assert!(shelf.put([&full[..], &[1][..]].into_iter()).is_none(), "too large");
        assert!(shelf.put(std::iter::empty()).is_none(), "nothing");
    }

    #[test]
    fn what_lies_elsewhere_has_no_place() {
        let (shelf, other) = (Shelf::open().unwrap(), Shelf::open().unwrap());
        let here = shelf.put([&b"here"[..]].into_iter()).unwrap();
        let there = other.put([&b"there"[..]].into_iter()).unwrap();
        assert!(shelf.places(std::slice::from_ref(&here)).is_some());
        for elsewhere in [there, Bytes::from_static(b"elsewhere"), here.slice(0..0)] {
            assert!(shelf.places(&[here.clone(), elsewhere]).is_none());
        }
    }

    #[test]
    fn wrong_places_are_errors() {
        let shelf = Shelf::open().unwrap();
        let view = view_of(&shelf);
        let place = |from: u32, bytes: u32| [from.to_le_bytes(), bytes.to_le_bytes()].concat();
        let end = SHELF_BYTES as u32;
        assert_eq!(view.take(&place(end - 10, 10)).unwrap().len(), 10);
        assert_eq!(view.take(&[]).unwrap().len(), 0);
        for wrong in [
            place(end - 10, 11),
            place(end + 1, 0),
            place(u32::MAX, u32::MAX),
            place(0, DATA_BYTES_MAX + 1),
            [place(0, DATA_BYTES_MAX), place(0, 1)].concat(),
            place(0, 1)[..7].to_vec(),
        ] {
            assert!(view.take(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn clients_may_look_and_not_touch() {
        let shelf = Shelf::open().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        shelf.hand_over(&near).await.unwrap();
        let view = View::receive(&far).await.unwrap().ok().unwrap();
        let batch = shelf.put([&b"hello"[..]].into_iter()).unwrap();
        assert_eq!(view.take(&shelf.places(&[batch]).unwrap().0).unwrap(), &b"hello"[..]);
        // What a client has is the same file.
        assert!(rustix::io::write(&shelf.file, b"x").is_err());
        assert!(ftruncate(&shelf.file, 10).is_err());
        assert!(
            MmapOptions::new().len(10).map_raw(&shelf.file).is_err(),
            "it cannot be mapped to be written"
        );
        // Another frame came first: its first byte is not lost.
        rustix::io::write(&near, &[6]).unwrap();
        assert_eq!(View::receive(&far).await.unwrap().err(), Some(6));
        // Announced, and nothing there.
        rustix::io::write(&near, &[WITH_FILE]).unwrap();
        assert!(View::receive(&far).await.is_err());
        drop(near);
        assert!(View::receive(&far).await.is_err());
        // A file that its owner could take the ground from.
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert!(View::of(&loose).is_err());
    }
}
