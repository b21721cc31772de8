//! Management server and nodes as processes: start, kill, stop, continue, restart.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{NodeState, NodeStatus, Status};
use webbase_node::{Cluster, ClusterSettings};
use webbase_storage::Compression;

/// Nothing in these tests takes longer, on a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const PROGRAM: &str = env!("CARGO_BIN_EXE_webbase");

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A process that listens.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts it and waits until it says where it listens.
    fn start(args: &[String], errors: &Path) -> Process {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(errors).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut child = command.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (said, hear) = mpsc::channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = String::new();
            let read = out.read_line(&mut line);
            let _ = said.send(read.map(|_| line));
            // Whatever else it says must not block it.
            let _ = out.read_to_end(&mut Vec::new());
        });
        let line = match hear.recv_timeout(LIMIT) {
            Ok(Ok(line)) => line,
            other => {
                let _ = child.kill();
                panic!("{args:?} said {other:?}; {}", read(errors));
            }
        };
        let address = line.trim().strip_prefix("listening on ").and_then(|text| text.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{args:?} said {line:?}; {}", read(errors));
        };
        Process { child, address }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A process and what is needed to start it again.
pub(crate) struct Member {
    name: String,
    args: Vec<String>,
    dir: PathBuf,
    errors: PathBuf,
    process: Option<Process>,
}

impl Member {
    fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let mut args = self.args.clone();
        args.extend(["--dir".to_owned(), self.dir.display().to_string()]);
        self.process = Some(Process::start(&args, &self.errors));
    }
}

/// A repository.
pub(crate) struct Fleet {
    members: Vec<Member>,
    management: SocketAddr,
    folder: TempDir,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Fleet {
    /// A management server without nodes.
    pub(crate) fn new(replicas: u32, settings: &[&str]) -> Fleet {
        let one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fleet = Fleet {
            members: Vec::new(),
            management: "127.0.0.1:0".parse().unwrap(),
            folder: tempfile::tempdir().unwrap(),
            _one_at_a_time: one_at_a_time,
        };
        let replicas = replicas.to_string();
        let mut args = vec!["mgmt", "--replicas", &replicas];
        if !settings.contains(&"--range-bits") {
            args.extend(["--range-bits", "6"]);
        }
        args.extend(["--down-after-ms", "1500", "--resend-ms", "300", "--lease-ms", "10000"]);
        args.extend(["--seal-limit-ms", "5000", "--switch-limit-ms", "5000", "--begin-limit-ms", "20000"]);
        args.extend(settings);
        fleet.add("mgmt", &args, &["--listen", "127.0.0.1:0"]);
        fleet.management = fleet.process("mgmt").address;
        // A management server that starts again must be found where it was.
        let listen = fleet.management.to_string();
        fleet.member("mgmt").args.extend(["--listen".to_owned(), listen]);
        fleet
    }

    /// A management server with one node for each of these organizations: update nodes u0, u1…, read nodes r0, r1….
    pub(crate) async fn with(replicas: u32, update: &[&str], read: &[&str]) -> Fleet {
        let mut fleet = Fleet::new(replicas, &[]);
        for (n, organization) in update.iter().enumerate() {
            fleet.node(&format!("u{n}"), &["--role", "update", "--organization", organization]);
        }
        for (n, organization) in read.iter().enumerate() {
            fleet.node(&format!("r{n}"), &["--role", "read", "--organization", organization]);
        }
        fleet.settled(&fleet.client().await).await;
        fleet
    }

    /// Starts a node in a new folder.
    pub(crate) fn node(&mut self, name: &str, args: &[&str]) {
        let management = self.management.to_string();
        let mut all = vec!["node", "--mgmt", &management, "--heartbeat-ms", "200", "--answer-ms", "3000"];
        all.extend(args);
        self.add(name, &all, &[]);
    }

    fn add(&mut self, name: &str, args: &[&str], only_first: &[&str]) {
        let owned = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let mut member = Member {
            name: name.to_owned(),
            args: owned(&[args, only_first].concat()),
            dir: self.folder.path().join(name),
            errors: self.folder.path().join(format!("{name}.errors")),
            process: None,
        };
        member.start();
        member.args = owned(args);
        self.members.push(member);
    }

    fn member(&mut self, name: &str) -> &mut Member {
        self.members.iter_mut().find(|member| member.name == name).unwrap()
    }

    /// The folder of a node.
    pub(crate) fn dir(&self, name: &str) -> &Path {
        &self.members.iter().find(|member| member.name == name).unwrap().dir
    }

    /// Where a node listens.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        self.process(name).address
    }

    fn process(&self, name: &str) -> &Process {
        let member = self.members.iter().find(|member| member.name == name).unwrap();
        member.process.as_ref().unwrap_or_else(|| panic!("{name} does not run"))
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) {
        self.member(name).process = None;
    }

    /// SIGSTOP.
    pub(crate) fn pause(&self, name: &str) {
        self.process(name).signal(Signal::STOP);
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self, name: &str) {
        self.process(name).signal(Signal::CONT);
    }

    /// SIGTERM: it has to end by itself, and well.
    pub(crate) fn stop(&mut self, name: &str) {
        let member = self.member(name);
        let mut process = member.process.take().unwrap();
        process.signal(Signal::TERM);
        let until = Instant::now() + LIMIT;
        let status = loop {
            match process.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() >= until => panic!("{name} does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert!(status.success(), "{name} ended with {status}; {}", read(&member.errors));
    }

    /// Starts it again, in the same folder.
    pub(crate) fn start(&mut self, name: &str) {
        self.member(name).start();
    }

    /// Starts it again with another value of a flag.
    pub(crate) fn start_with(&mut self, name: &str, flag: &str, value: &str) {
        let member = self.member(name);
        let at = member.args.iter().position(|arg| arg == flag).unwrap();
        member.args[at + 1] = value.to_owned();
        member.start();
    }

    /// Runs a client command.
    pub(crate) fn command(&self, args: &[&str]) -> Output {
        let management = self.management.to_string();
        program(&[args, &["--mgmt", &management]].concat())
    }

    pub(crate) async fn client(&self) -> Cluster {
        self.client_that_packs(Compression::default()).await
    }

    pub(crate) async fn client_that_packs(&self, compression: Compression) -> Cluster {
        let mut settings = ClusterSettings {
            attempt: Duration::from_millis(800),
            refresh: Duration::from_millis(200),
            compression,
            ..ClusterSettings::default()
        };
        settings.client.connect = Duration::from_millis(800);
        settings.client.answer = Duration::from_secs(3);
        settings.client.limits.credit_bytes = 512 << 10;
        Cluster::connect(self.management, settings).await.unwrap()
    }

    /// The node that runs under this name.
    pub(crate) async fn id(&self, cluster: &Cluster, name: &str) -> NodeId {
        let address = self.process(name).address;
        let known = |s: &Status| s.nodes.iter().any(|n| n.address == Some(address));
        let status = until(cluster, &format!("{name} is known"), known).await;
        status.nodes.iter().find(|n| n.address == Some(address)).unwrap().id
    }

    /// Waits until all running nodes are there and stand at the committed generation, and nothing goes on.
    pub(crate) async fn settled(&self, cluster: &Cluster) -> Status {
        let nodes = self.members.iter().filter(|m| m.name != "mgmt").filter_map(|m| m.process.as_ref());
        let addresses: Vec<SocketAddr> = nodes.map(|process| process.address).collect();
        let settled = |status: &Status| {
            let at_rest = |n: &NodeStatus| {
                let up_to_date = !n.read || n.generation == Some(status.committed);
                n.state != NodeState::Down && n.state != NodeState::Updating && up_to_date
            };
            let there = |a: &SocketAddr| status.nodes.iter().any(|n| n.address == Some(*a) && at_rest(n));
            status.cycle.is_none() && status.serving == status.committed && addresses.iter().all(there)
        };
        until(cluster, "the nodes have settled", settled).await
    }

    /// What all processes wrote to stderr.
    pub(crate) fn errors(&self) -> String {
        self.members.iter().map(|m| format!("{}: {}\n", m.name, read(&m.errors))).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the processes said:\n{}", self.errors());
        }
    }
}

/// Runs a command to its end.
pub(crate) fn program(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

/// Looks at the status until it is as wanted.
pub(crate) async fn until(cluster: &Cluster, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    let end = Instant::now() + LIMIT;
    loop {
        let status = cluster.status().await;
        match &status {
            Ok(status) if wanted(status) => return status.clone(),
            _ if Instant::now() >= end => panic!("{what}: not within {LIMIT:?}: {status:#?}"),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
