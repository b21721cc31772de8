//! Published indexes: made by somebody of one generation, and useful only together with it.
//!
//! ```text
//!   builder:  lease on a generation ──▶ streams it ──▶ makes its index ──▶ publishes (name, generation, place)
//!   readers:  open an index by name ──▶ a lease on its generation, and where the index is
//! ```
//!
//! Publishing is one decision: readers who open the index before it get the old one with its generation, after it the new one
//! with its own, never one with the other. The generation of a published index is kept like one with a lease: until the
//! next is published, or until it has to go because two younger old ones are held.

use webbase_node::plan::{Index, Lease, ReadPlan};

use crate::coordinator::{Action, Answer, Command, Coordinator, Decision, Refusal};

/// At most so many indexes.
pub const INDEXES_MAX: usize = 100;
/// The most bytes of an index's name, and of its place.
const TEXT_MAX: usize = 1000;

impl Coordinator {
    /// Whether an index needs this generation.
    pub(crate) fn is_indexed(&self, generation: u64) -> bool {
        self.state.indexes.iter().any(|index| index.generation == generation)
            && !self.is_wanted_back(generation)
    }

    /// Publishes an index, or takes one back.
    pub(crate) fn decide_indexes(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let ours = |c: &Command| matches!(c, Command::Publish(_) | Command::Unpublish(_));
        let place = self.waiting.iter().position(|w| ours(&w.command))?;
        let waiting = self.waiting.remove(place);
        let mut state = self.state.clone();
        let changed = match waiting.command {
            Command::Publish(index) => self.check_index(&index).map(|()| {
                state.indexes.retain(|old| old.name != index.name);
                state.indexes.push(index);
            }),
            Command::Unpublish(name) => match state.indexes.iter().position(|old| old.name == name) {
                Some(at) => {
                    state.indexes.remove(at);
                    Ok(())
                }
                None => Err(Refusal::NoIndex { name }),
            },
            _ => return None,
        };
        match changed {
            Ok(()) => Some(Decision { state, answers: vec![(waiting.id, Ok(Answer::Done))] }),
            Err(refusal) => {
                actions.push(Action::Answer(waiting.id, Err(refusal)));
                None
            }
        }
    }

    fn check_index(&self, index: &Index) -> Result<(), Refusal> {
        let Index { name, generation, place } = index;
        if name.is_empty() || name.len() > TEXT_MAX || place.len() > TEXT_MAX {
            return Err(Refusal::TooLong { max: TEXT_MAX });
        }
        if !self.is_kept(*generation) {
            return Err(Refusal::NotKept { generation: *generation });
        }
        match self.state.indexes.iter().find(|old| old.name == *name) {
            Some(old) if old.generation > *generation => {
                Err(Refusal::OlderIndex { name: name.clone(), generation: old.generation })
            }
            None if self.state.indexes.len() >= INDEXES_MAX => Err(Refusal::TooMany { max: INDEXES_MAX }),
            _ => Ok(()),
        }
    }

    /// An index, with a lease on its generation and the plan for that.
    ///
    /// # Errors
    /// When there is none of this name, or its generation had to go.
    pub fn open_index(&mut self, now_ms: u64, name: &str) -> Result<(Index, Lease, ReadPlan), Refusal> {
        let index = self.state.indexes.iter().find(|index| index.name == name).cloned();
        let index = index.ok_or_else(|| Refusal::NoIndex { name: name.to_owned() })?;
        let (lease, plan) = self.lease_on(now_ms, index.generation)?;
        Ok((index, lease, plan))
    }
}
