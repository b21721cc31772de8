//! Proves that no batch is acknowledged that a failing disk has taken.

use webbase_storage::{
    Compacted, Dictionary, PageId, PageKey, PageStream, RepositoryKey, Stats, StorageError, StreamSpec,
    Verified,
};

use super::super::pages::Answer;
use super::*;
use crate::wire::message::Entry;
use crate::wire::ranges::RangeSet;

/// Counts the batches of a store whose first commit fails once a second batch is staged beside the first, and drops both
/// as stores do.
#[derive(Default)]
struct FailsOnce {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    commits: u64,
    staged: u64,
    stored: u64,
}

impl FailsOnce {
    fn wait(&self, until: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        while !until(&state) {
            self.changed.wait(&mut state);
        }
    }
}

impl Pages for FailsOnce {
    fn repository_key(&self) -> RepositoryKey {
        RepositoryKey::new([1; 32])
    }
    fn dictionary(&self, _: u64) -> Option<Arc<Dictionary>> {
        None
    }
    fn dictionaries(&self) -> Vec<Arc<Dictionary>> {
        Vec::new()
    }
    fn lookup_warm(&self, _: u64, _: PageKey) -> Option<Answer<Option<Record>>> {
        None
    }
    fn lookup(&self, _: u64, _: PageKey) -> Answer<Option<Record>> {
        Ok(None)
    }
    fn lookup_id(&self, _: u64, _: PageId) -> Answer<Vec<Record>> {
        Ok(Vec::new())
    }
    fn lookup_url(&self, _: u64, _: &str) -> Answer<Option<Record>> {
        Ok(None)
    }
    fn lookup_many(&self, _: u64, keys: &[PageKey]) -> Answer<Vec<Answer<Option<Record>>>> {
        Ok(keys.iter().map(|_| Ok(None)).collect())
    }
    fn stream(&self, _: u64, _: &StreamSpec) -> Answer<Box<dyn PageStream>> {
        Err(Fault::new(Code::BadRequest, "nothing is read here"))
    }
    fn list(&self, _: u64, _: PageKey, _: &RangeSet) -> Answer<Vec<Entry>> {
        Ok(Vec::new())
    }
    fn keys(&self, _: u64, _: PageKey, _: &RangeSet) -> Answer<Vec<PageKey>> {
        Ok(Vec::new())
    }
    fn add_dictionary(&self, _: &[u8]) -> webbase_storage::Result<u64> {
        Ok(0)
    }
    fn add(&self, _: &[Page<'_>]) -> Result<Added, NotAdded> {
        self.state.lock().staged += 1;
        self.changed.notify_all();
        Ok(Added { new: 1, ..Added::default() })
    }
    fn add_records(&self, _: &[Record]) -> Result<Added, NotAdded> {
        self.add(&[])
    }
    fn commit(&self) -> webbase_storage::Result<()> {
        self.state.lock().commits += 1;
        self.changed.notify_all();
        if self.state.lock().commits == 1 {
            self.wait(|state| state.staged == 2);
            self.state.lock().staged = 0;
            return Err(StorageError::NoSpace { path: "here".into() });
        }
        let mut state = self.state.lock();
        state.stored += std::mem::take(&mut state.staged);
        Ok(())
    }
    fn stats(&self) -> Stats {
        unreachable!("nobody asks")
    }
    fn compact(&self, _: u64) -> Answer<Compacted> {
        Ok(Compacted::default())
    }
    fn verify(&self) -> Answer<Verified> {
        Ok(Verified::default())
    }
}

#[test]
fn a_batch_staged_while_a_commit_fails_is_not_acknowledged() {
    let pages = Arc::new(FailsOnce::default());
    let adder = Adder::start(pages.clone()).unwrap();
    let first = adder.add(Form::Records, Batch::default());
    pages.wait(|state| state.commits == 1);
    let second = adder.add(Form::Records, Batch::default());
    assert_eq!(first.blocking_recv().unwrap().unwrap_err().code, Code::NoSpace);
    let second = second.blocking_recv().unwrap();
    assert!(second.is_err(), "it was dropped with the first one: {second:?}");
    let third = adder.add(Form::Records, Batch::default());
    assert!(third.blocking_recv().unwrap().is_ok(), "the store goes on");
    assert_eq!(pages.state.lock().stored, 1);
}
