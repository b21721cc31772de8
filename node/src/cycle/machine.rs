//! The node as a whole: an update side, a read side, or both, and its reports.

use super::message::{ToManagement, ToNode};
use super::read_node::Step;
use super::{Done, Intent, IntentId, ReadDurable, ReadNode, UpdateDurable, UpdateNode};
use crate::plan::Update;

/// What a node is started with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A report goes out at least this often.
    pub heartbeat_ms: u64,
    /// How pages get to readers.
    pub update: Update,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { heartbeat_ms: 1000, update: Update::Batch }
    }
}

/// What a node finds on its disk when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDurable {
    /// Counts the starts; the runner makes the next number durable before it starts the machine.
    pub boot: u64,
    /// The update side, if the node has that role.
    pub update: Option<UpdateDurable>,
    /// The read side, if the node has that role.
    pub read: Option<ReadDurable>,
}

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The management server says.
    Message(ToNode),
    /// An intent has ended.
    Done(IntentId, Done),
    /// The connection to the management server is new: it gets a report.
    Connected,
    /// Time passes; at least once in a heartbeat.
    Tick,
    /// So much of the running pull, if there is one, is done: the next report says so.
    Progress {
        /// Pages fetched.
        pages: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the management server.
    Send(ToManagement),
    /// Carry out, then say [`Event::Done`].
    Do(IntentId, Intent),
    /// End this intent early if that can be; it says [`Event::Done`] all the same.
    Cancel(IntentId),
    /// Serve nothing any more.
    Stop,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    settings: Settings,
    boot: u64,
    sequence: u64,
    next_id: IntentId,
    reported_ms: u64,
    update: Option<UpdateNode>,
    read: Option<ReadNode>,
    update_intent: Option<IntentId>,
    read_intent: Option<IntentId>,
    release_intent: Option<IntentId>,
    dismissed: bool,
}

impl Node {
    /// Starts with what is on disk, and reports.
    pub fn start(now_ms: u64, durable: NodeDurable, settings: Settings) -> (Self, Vec<Action>) {
        let mut node = Node {
            settings,
            boot: durable.boot,
            sequence: 0,
            next_id: 1,
            reported_ms: 0,
            update: durable.update.map(|update| UpdateNode::new(update, settings.update)),
            read: durable.read.map(ReadNode::new),
            update_intent: None,
            read_intent: None,
            release_intent: None,
            dismissed: false,
        };
        let report = node.report(now_ms);
        (node, vec![report])
    }

    /// The update side.
    pub fn update(&self) -> Option<&UpdateNode> {
        self.update.as_ref().filter(|_| !self.dismissed)
    }

    /// The read side.
    pub fn read(&self) -> Option<&ReadNode> {
        self.read.as_ref().filter(|_| !self.dismissed)
    }

    /// Takes an event.
    pub fn on(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            _ if self.dismissed => {}
            Event::Message(ToNode::Dismissed) => {
                self.dismissed = true;
                actions.push(Action::Stop);
            }
            Event::Message(message) => self.on_message(message, &mut actions),
            Event::Done(id, done) => {
                self.on_done(id, done, &mut actions);
                actions.push(self.report(now_ms));
            }
            Event::Connected => actions.push(self.report(now_ms)),
            Event::Progress { pages, bytes } => {
                if let Some(read) = &mut self.read {
                    read.on_progress(pages, bytes);
                }
            }
            Event::Tick => {
                if now_ms >= self.reported_ms.saturating_add(self.settings.heartbeat_ms) {
                    actions.push(self.report(now_ms));
                }
            }
        }
        actions
    }

    fn on_message(&mut self, message: ToNode, actions: &mut Vec<Action>) {
        if let Some(intent) = self.update.as_mut().and_then(|update| update.on_message(&message)) {
            self.update_intent = Some(self.carry_out(intent, actions));
        }
        if let Some(steps) = self.read.as_mut().map(|read| read.on_message(message)) {
            self.take(steps, actions);
        }
    }

    fn on_done(&mut self, id: IntentId, done: Done, actions: &mut Vec<Action>) {
        if self.update_intent == Some(id) {
            self.update_intent = None;
            if let Some(update) = &mut self.update {
                update.on_done(&done);
            }
        } else if self.release_intent == Some(id) {
            self.release_intent = None;
            if let Some(read) = &mut self.read {
                read.on_released(&done);
            }
        } else if self.read_intent == Some(id) {
            self.read_intent = None;
            if let Some(steps) = self.read.as_mut().map(|read| read.on_done(done)) {
                self.take(steps, actions);
            }
        }
    }

    fn take(&mut self, steps: Vec<Step>, actions: &mut Vec<Action>) {
        for step in steps {
            match step {
                Step::Do(intent) => self.read_intent = Some(self.carry_out(intent, actions)),
                Step::Beside(intent) => self.release_intent = Some(self.carry_out(intent, actions)),
                Step::Cancel => actions.extend(self.read_intent.map(Action::Cancel)),
                Step::Send(message) => actions.push(Action::Send(message)),
            }
        }
    }

    fn carry_out(&mut self, intent: Intent, actions: &mut Vec<Action>) -> IntentId {
        let id = self.next_id;
        self.next_id += 1;
        actions.push(Action::Do(id, intent));
        id
    }

    fn report(&mut self, now_ms: u64) -> Action {
        self.reported_ms = now_ms;
        self.sequence += 1;
        Action::Send(ToManagement::Report {
            boot: self.boot,
            sequence: self.sequence,
            welcomed: self.update.as_ref().is_none_or(UpdateNode::welcomed),
            update: self.update.as_ref().map(UpdateNode::report),
            read: self.read.as_ref().map(ReadNode::report),
        })
    }
}
