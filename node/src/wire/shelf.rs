//! The shelf: memory that a server shares with its clients on the same machine, so that the pages of a shared scan reach all of them without
//! passing through the system, once in and once out for each.
//!
//! ```text
//!   a file in memory, sealed: nobody but the server ever writes to it, and it never shrinks
//!   ┌────────┬────────┬────────┬───   ───┬────────┐
//!   │  uses  │ slot 0 │ slot 1 │    …    │ slot n │     a slot has one batch, records end to end, or is free
//!   │  4 KiB │  2 MiB │        │         │        │     uses: of each slot, in 64 bytes, how often it was used (4 bytes)
//!   └────────┴────────┴────────┴───   ───┴────────┘
//!
//!   places, the payload of a data frame with the flag `placed`: one run of records or more, all in one slot
//!   OFFSET  SIZE  FIELD
//!        0     4  slot
//!        4     4  its use
//!        8     4  where in the slot
//!       12     4  bytes
//! ```
//!
//! 1. The scan puts a batch into a free slot; from then on its records are bytes like all others, which happen to lie there. The slot is free again when
//!    the last of them is dropped. Where no slot is free, or the batch is too large for one, they stay where they are.
//! 2. A client that comes by the door and asks for it is handed the file before its welcome. Records on the shelf are not sent to it: it is told their
//!    places, copies them out, and says so (`taken`). Until then the connection holds them, so nothing is written over them.
//! 3. What a connection holds is bounded, in bytes and in slots ([`TOLD_BYTES_MAX`], [`TOLD_SLOTS_MAX`]): a client that does not say what it took gets its records
//!    by the socket, like everybody else. So do small frames: a slot is not to be held for a page.
//! 4. A connection that ends holds nothing any more, while the client may still read from its socket what it was told. So before a slot is written to, its use
//!    is counted, and a client that finds another use than it was told of, once it has copied, throws the copy away: the connection is over for it.
//! 5. A client checks records after it has copied them, as it does with what comes by a socket: it need not trust that nobody writes meanwhile.

#![expect(unsafe_code, reason = "the memory is mapped, and another process has it mapped, too")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

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
/// The queues of a few clients that have stopped reading, with the shelf or without, and what those need that have not. A slot takes memory as far as it was used; the
/// one that became free last is used next, so that there are few while all keep up, and the processor has them in its cache.
const SLOTS: u32 = 48;
/// Bytes before the first slot, and between two uses.
const USES_BYTES: usize = 4 << 10;
const USE_BYTES: usize = 64;
/// The most slots that a client maps.
const SLOTS_MAX: usize = USES_BYTES / USE_BYTES;
const SHELF_BYTES: usize = USES_BYTES + SLOT_BYTES * SLOTS as usize;
const _: () = assert!(SLOTS as usize <= SLOTS_MAX && SHELF_BYTES < u32::MAX as usize);
/// Bytes of records that one connection may be told of and has not taken, and slots that they lie in.
pub(crate) const TOLD_BYTES_MAX: usize = 4 << 20;
pub(crate) const TOLD_SLOTS_MAX: usize = 6;
/// Frames with less are sent: that costs little, and to be told of them would hold a slot.
const PLACED_BYTES_MIN: usize = 32 << 10;
/// So are those with more places than one to so many bytes.
const RUN_BYTES_MIN: usize = 256;
/// Bytes of one place.
const PLACE_BYTES: usize = 16;
/// The byte that the file comes with. No frame begins with it.
const WITH_FILE: u8 = 0;

const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A server's shelf.
pub(crate) struct Shelf {
    memory: MmapRaw,
    file: OwnedFd,
    free: Mutex<Vec<u32>>,
    taken_bytes: AtomicU64,
}

/// Where records of one frame lie.
pub(crate) struct Placed {
    /// As the client is told.
    pub(crate) places: Vec<u8>,
    pub(crate) slot: u32,
    /// One of the records: as long as it is held all stay.
    pub(crate) held: Bytes,
}

impl Shelf {
    /// Makes one, where the system can. Without it clients get everything by their sockets.
    pub(crate) fn open() -> Option<Arc<Shelf>> {
        let none =
            |why: &io::Error| tracing::debug!("no memory to share with clients on this machine: {why}");
        Shelf::make().inspect_err(none).ok().map(Arc::new)
    }

    fn make() -> io::Result<Shelf> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Some systems want it to be said that this is no program; older ones do not know how.
        let file = memfd_create("webbase-shelf", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("webbase-shelf", flags))?;
        ftruncate(&file, SHELF_BYTES as u64)?;
        let memory = MmapOptions::new().len(SHELF_BYTES).map_raw(&file)?;
        // What is mapped already stays writable; nothing else ever is.
        fcntl_add_seals(&file, SEALS)?;
        let free = Mutex::new((0..SLOTS).rev().collect());
        Ok(Shelf { memory, file, free, taken_bytes: AtomicU64::new(0) })
    }

    /// How often a slot was used.
    fn uses(&self, slot: u32) -> &AtomicU32 {
        assert!(slot < SLOTS, "a slot that is here");
        // SAFETY: it lies in the map, before the slots, which lives as long as `self` does; it is aligned, and in this process nobody comes to it but by this.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(slot as usize * USE_BYTES).cast()) }
    }

    /// Puts these end to end into a slot, if they fit and one is free.
    pub(crate) fn put<'a>(self: &Arc<Self>, items: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Bytes> {
        let bytes: usize = items.clone().map(<[u8]>::len).sum();
        if bytes == 0 || bytes > SLOT_BYTES {
            return None;
        }
        let number = self.free.lock().pop()?;
        let mut slot = Slot { shelf: self.clone(), number, bytes: 0 };
        self.uses(number).fetch_add(1, Ordering::Relaxed);
        // Whoever sees anything of what is written now sees that, too.
        fence(Ordering::Release);
        for item in items {
            slot.append(item);
        }
        Some(Bytes::from_owner(slot))
    }

    /// The slot that bytes lie in, and where in it, if they are here.
    fn place(&self, bytes: &Bytes) -> Option<(usize, usize)> {
        let place = bytes.as_ptr().addr().checked_sub(self.memory.as_ptr().addr() + USES_BYTES)?;
        (place < SHELF_BYTES - USES_BYTES && !bytes.is_empty())
            .then_some((place / SLOT_BYTES, place % SLOT_BYTES))
    }

    /// The places of records, if all of them lie in one slot here, and are worth it.
    pub(crate) fn places(&self, records: &[Bytes]) -> Option<Placed> {
        let held = records.first()?;
        let bytes: usize = records.iter().map(Bytes::len).sum();
        if bytes < PLACED_BYTES_MIN {
            return None;
        }
        let (slot, _) = self.place(held)?;
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for record in records {
            let (_, place) = self.place(record).filter(|(its, _)| *its == slot)?;
            match runs.last_mut() {
                Some((from, bytes)) if *from + *bytes == place => *bytes += record.len(),
                _ => runs.push((place, record.len())),
            }
        }
        if runs.len() * RUN_BYTES_MIN > bytes {
            return None;
        }
        let slot = slot as u32;
        let its_use = self.uses(slot).load(Ordering::Relaxed);
        let places = runs.iter().flat_map(|(from, bytes)| [slot, its_use, *from as u32, *bytes as u32]);
        Some(Placed { places: places.flat_map(u32::to_le_bytes).collect(), slot, held: held.clone() })
    }

    /// A client has taken so much.
    pub(crate) fn count_taken(&self, bytes: usize) {
        self.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that clients have taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u64 {
        u64::from(SLOTS) - self.free.lock().len() as u64
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
        self.shelf.memory.as_mut_ptr().wrapping_add(USES_BYTES + self.number as usize * SLOT_BYTES)
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
        // What can shrink, or get holes, would end this process when it is read there.
        let seals = fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) || !seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE)
        {
            return Err(wrong("a shelf that is not sealed"));
        }
        let bytes = usize::try_from(fstat(file)?.st_size).unwrap_or_default();
        let slots = bytes.saturating_sub(USES_BYTES) / SLOT_BYTES;
        if slots == 0 || slots > SLOTS_MAX {
            return Err(wrong("a shelf of a wrong size"));
        }
        Ok(View { memory: MmapOptions::new().len(bytes).map_raw_read_only(file)? })
    }

    /// How often a slot was used.
    fn uses(&self, slot: usize) -> u32 {
        assert!(slot < SLOTS_MAX, "a slot's use lies before the slots");
        // SAFETY: it lies in the map, which is longer than all uses, and is aligned. The server may write there, so it is read as what others write is, in one access.
        unsafe { self.memory.as_ptr().add(slot * USE_BYTES).cast::<u32>().read_volatile() }
    }

    /// Copies records out.
    pub(crate) fn take(&self, places: &[u8]) -> Result<Bytes, Untaken> {
        let wrong = |what: String| Untaken::Wrong(what);
        let (runs, []) = places.as_chunks::<PLACE_BYTES>() else { return Err(wrong("half a place".into())) };
        let runs = runs.iter().map(|run| {
            let (fields, _) = run.as_chunks::<4>();
            let mut fields = fields.iter().map(|field| u32::from_le_bytes(*field));
            std::array::from_fn::<u32, 4, _>(|_| fields.next().unwrap_or_default())
        });
        let bytes: u64 = runs.clone().map(|[.., bytes]| u64::from(bytes)).sum();
        if bytes > u64::from(DATA_BYTES_MAX) {
            return Err(wrong(format!("places of {bytes} bytes, at most {DATA_BYTES_MAX} are taken")));
        }
        let small = (bytes as usize) < PLACED_BYTES_MIN;
        let mut out = if small { Vec::with_capacity(bytes as usize) } else { pool::take(bytes as usize) };
        let slots = (self.memory.len() - USES_BYTES) / SLOT_BYTES;
        for [slot, its_use, from, bytes] in runs {
            let (slot, from, bytes) = (slot as usize, from as usize, bytes as usize);
            if slot >= slots || from.checked_add(bytes).is_none_or(|end| end > SLOT_BYTES) {
                let what = format!("a place at {from} in slot {slot}, {bytes} bytes long, is outside of it");
                return Err(wrong(what));
            }
            out.reserve(bytes);
            let len = out.len();
            // SAFETY: the bytes lie in the map, whose file cannot shrink, and `out` has room for them. The server may write there meanwhile, if it counts the
            // connection as over or breaks the protocol: no reference to the map is ever made, and what was copied is checked, here and as records.
            unsafe {
                let into = out.as_mut_ptr().add(len);
                let here = self.memory.as_ptr().add(USES_BYTES + slot * SLOT_BYTES + from);
                std::ptr::copy_nonoverlapping(here, into, bytes);
                out.set_len(len + bytes);
            }
            // If any of it was of a later use, that use was counted before.
            fence(Ordering::Acquire);
            if self.uses(slot) != its_use {
                return Err(Untaken::Gone);
            }
        }
        Ok(pool::share(out))
    }
}

/// Why records could not be taken off the shelf.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Untaken {
    /// The places make no sense.
    Wrong(String),
    /// The server has let go of them: for it the connection is over.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(shelf: &Shelf) -> View {
        View::of(&shelf.file.try_clone().unwrap()).unwrap()
    }

    /// Records that are worth telling their places, of sizes that differ.
    fn records() -> Vec<Vec<u8>> {
        (1..=200_u8).map(|n| vec![n; 1000 + usize::from(n)]).collect()
    }

    fn on_shelf(batch: &Bytes, records: &[Vec<u8>]) -> Vec<Bytes> {
        let mut rest = batch.clone();
        records.iter().map(|record| rest.split_to(record.len())).collect()
    }

    #[test]
    fn what_is_put_there_is_seen_by_others_and_stays_until_it_is_dropped() {
        let shelf = Shelf::open().unwrap();
        let (view, records) = (view_of(&shelf), records());
        let batch = shelf.put(records.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(batch, records.concat());
        let here = on_shelf(&batch, &records);
        let all = shelf.places(&here).unwrap();
        assert_eq!(all.places.len(), PLACE_BYTES, "end to end they are one run");
        assert_eq!(view.take(&all.places).unwrap(), batch);
        drop(all);
        // Every other one.
        let some: Vec<Bytes> = here.iter().step_by(2).cloned().collect();
        let told = shelf.places(&some).unwrap();
        assert_eq!(told.places.len(), PLACE_BYTES * 100);
        assert_eq!(view.take(&told.places).unwrap(), some.concat());
        let expected = some.concat();
        drop((batch, here, some));
        // What is held is not written over, though its slot would be the next.
        let others: Vec<Bytes> =
            (1..SLOTS).map(|n| shelf.put([&[n as u8; 64][..]].into_iter()).unwrap()).collect();
        assert!(shelf.put([&b"no room"[..]].into_iter()).is_none());
        assert_eq!(view.take(&told.places).unwrap(), expected);
        let Placed { places, held, .. } = told;
        drop(held);
        assert_eq!(view.take(&places).unwrap(), expected, "nothing has come there yet");
        let next = shelf.put(records.iter().rev().map(Vec::as_slice)).unwrap();
        assert_eq!(view.take(&places), Err(Untaken::Gone), "other records are there, and whole ones");
        drop((others, next));
        assert_eq!(shelf.used(), 0);
        assert_eq!(view.take(&places), Err(Untaken::Gone));
    }

    #[test]
    fn what_is_not_worth_it_has_no_places() {
        let shelf = Shelf::open().unwrap();
        let records = records();
        let batch = shelf.put(records.iter().map(Vec::as_slice)).unwrap();
        let here = on_shelf(&batch, &records);
        assert!(shelf.places(&here[..10]).is_none(), "a few pages");
        assert!(shelf.places(&here[..40]).is_some());
        assert!(shelf.places(&[]).is_none());
        let crumbs: Vec<Bytes> =
            (0..PLACED_BYTES_MIN / 100).map(|n| batch.slice(n * 200..n * 200 + 101)).collect();
        assert!(shelf.places(&crumbs).is_none(), "places that are as much as what lies there");
        let full = vec![1; SLOT_BYTES];
        let other = shelf.put([&full[..]].into_iter()).unwrap();
        assert!(shelf.places(&[batch, other]).is_none(), "of two slots");
        assert!(shelf.put([&full[..], &[1][..]].into_iter()).is_none(), "too large");
        assert!(shelf.put(std::iter::empty()).is_none(), "nothing");
    }

    #[test]
    fn what_lies_elsewhere_has_no_place() {
        let (shelf, other) = (Shelf::open().unwrap(), Shelf::open().unwrap());
        let text = vec![7; PLACED_BYTES_MIN];
        let here = shelf.put([&text[..]].into_iter()).unwrap();
        let there = other.put([&text[..]].into_iter()).unwrap();
        assert!(shelf.places(std::slice::from_ref(&here)).is_some());
        for elsewhere in [there, Bytes::from(text.clone()), here.slice(0..0)] {
            assert!(shelf.places(&[here.clone(), elsewhere]).is_none());
        }
    }

    #[test]
    fn wrong_places_are_errors() {
        let shelf = Shelf::open().unwrap();
        let view = view_of(&shelf);
        let place = |slot: u32, from: u32, bytes: u32| {
            [slot, 0, from, bytes].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        let (last, end) = (SLOTS - 1, SLOT_BYTES as u32);
        assert_eq!(view.take(&place(last, end - 10, 10)).unwrap().len(), 10);
        assert_eq!(view.take(&[]).unwrap().len(), 0);
        for wrong in [
            place(last, end - 10, 11),
            place(last, end + 1, 0),
            place(last + 1, 0, 1),
            place(u32::MAX, 0, 1),
            place(0, u32::MAX, u32::MAX),
            place(0, 0, DATA_BYTES_MAX + 1),
            [place(0, 0, DATA_BYTES_MAX), place(0, 0, 1)].concat(),
            place(0, 0, 1)[..15].to_vec(),
        ] {
            assert!(matches!(view.take(&wrong), Err(Untaken::Wrong(_))), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn clients_may_look_and_not_touch() {
        let shelf = Shelf::open().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        shelf.hand_over(&near).await.unwrap();
        let view = View::receive(&far).await.unwrap().ok().unwrap();
        let text = vec![7; PLACED_BYTES_MIN];
        let batch = shelf.put([&text[..]].into_iter()).unwrap();
        assert_eq!(view.take(&shelf.places(&[batch]).unwrap().places).unwrap(), text);
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
        ftruncate(&loose, SHELF_BYTES as u64).unwrap();
        for seals in [SealFlags::GROW, SealFlags::SHRINK] {
            fcntl_add_seals(&loose, seals).unwrap();
            assert!(View::of(&loose).is_err(), "{seals:?} is not enough");
        }
        fcntl_add_seals(&loose, SealFlags::FUTURE_WRITE).unwrap();
        assert!(View::of(&loose).is_ok());
    }
}
