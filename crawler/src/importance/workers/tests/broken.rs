//! Workers that go away, or say what makes no sense: an error that names them, and no hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use webbase_node::{Client, ClientSettings, Control, Server, Service, Settings as ServerSettings};

use super::super::message::{FromWorker, Page, Sweep, TOPIC, Task, ToWorker, Totals, decode, encode};
use super::super::slice::Loading;
use super::*;

/// What becomes of a worker's message number so and so; `None` ends the call.
type Spoil = fn(u32, FromWorker) -> Option<Bytes>;

/// Stands before a worker, and passes on what both say, but spoilt.
async fn before(worker: SocketAddr, spoil: Spoil) -> Server {
    let accept = move |_: &str, control: Control| {
        drop(tokio::spawn(async move {
            let client = Client::connect(worker, ClientSettings::default()).await.unwrap();
            let (mut to_worker, mut from_worker) = client.control(TOPIC).unwrap().split();
            let (mut to_coordinator, mut from_coordinator) = control.split();
            let there = async {
                while let Ok(Some(bytes)) = from_coordinator.receive(None).await {
                    if to_worker.send(bytes).await.is_err() {
                        break;
                    }
                }
            };
            let back = async {
                for number in 0.. {
                    let Ok(Some(bytes)) = from_worker.receive(None).await else { break };
                    let Some(bytes) = spoil(number, decode(&bytes).unwrap()) else { break };
                    if to_coordinator.send(bytes).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = there => {}
                () = back => {}
            }
        }));
    };
    let service = Service::default().with_control(Arc::new(accept));
    Server::start((Ipv4Addr::LOCALHOST, 0).into(), service, ServerSettings::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_breaks_is_named() {
    let (_workers, mut addresses) = start(3).await;
    let good = addresses[1];
    let graph = graph(500, false, 5);
    let e = Personalisation::uniform(graph.pages());
    let settings = Settings::default();
    let spoils: [(&str, Spoil, &str); 7] = [
        ("leaves", |number, message| (number < 20).then(|| encode(&message)), "gone"),
        ("leaves at once", |_, _| None, "gone"),
        (
            "says rubbish",
            |number, message| {
                Some(if number < 9 { encode(&message) } else { Bytes::from_static(b"\xff\xff") })
            },
            "a message that is none",
        ),
        (
            "tells too much",
            |_, message| {
                Some(encode(&match message {
                    FromWorker::Passing(told) => FromWorker::Passing([told, vec![0.0]].concat()),
                    other => other,
                }))
            },
            "that were announced",
        ),
        (
            "tells nothing",
            |_, message| {
                Some(encode(&match message {
                    FromWorker::Passing(_) => FromWorker::Passing(Vec::new()),
                    other => other,
                }))
            },
            "that were announced",
        ),
        (
            "adds up to no number",
            |_, message| {
                Some(encode(&match message {
                    FromWorker::Swept(totals) => FromWorker::Swept(Totals { all: f64::NAN, ..totals }),
                    other => other,
                }))
            },
            "no finite number",
        ),
        (
            "fails",
            |number, message| {
                Some(encode(&if number < 7 { message } else { FromWorker::Failed("no more memory".into()) }))
            },
            "no more memory",
        ),
    ];
    for (name, spoil, says) in spoils {
        for pace in PACES {
            let broken = before(good, spoil).await;
            addresses[1] = broken.address();
            let problem = Problem::Importance { e: &e };
            let error = solve(&addresses, &graph, problem, None, pace, &settings).await.unwrap_err();
            let named = matches!(
                error,
                WorkersError::Worker { worker: 1, .. } | WorkersError::Wire { worker: 1, .. }
            );
            let text = error.to_string();
            assert!(named, "{name}, {pace:?}: {text}");
            // Whether an end is one in good order or not is the wire's business.
            assert!(
                text.contains(says) || (says == "gone" && text.contains("ended")),
                "{name}, {pace:?}: {text}"
            );
        }
    }
    // The others have let go, and serve on.
    addresses[1] = good;
    let problem = Problem::Importance { e: &e };
    assert!(
        solve(&addresses, &graph, problem, None, Pace::Chaotic, &settings).await.unwrap().solution.converged
    );
}

/// A worker that ends in the middle, and one that was never there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_ends_is_named() {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let graph = graph(500, false, 6);
    let e = Personalisation::uniform(graph.pages());
    // It would go on for ever.
    let settings = Settings { epsilon: f64::MIN_POSITIVE, rounds_max: u32::MAX, ..Settings::default() };
    let counting: Spoil = |_, message| {
        SAID.fetch_add(1, Ordering::SeqCst);
        Some(encode(&message))
    };
    for pace in PACES {
        let (mut workers, mut addresses) = start(2).await;
        let counted = before(addresses[0], counting).await;
        addresses[0] = counted.address();
        SAID.store(0, Ordering::SeqCst);
        let (graph, e) = (graph.clone(), e.clone());
        let solving = tokio::spawn(async move {
            let problem = Problem::Importance { e: &e };
            solve(&addresses, &graph, problem, None, pace, &settings).await
        });
        while SAID.load(Ordering::SeqCst) < 50 {
            tokio::task::yield_now().await;
        }
        drop(workers.pop());
        let error = solving.await.unwrap().unwrap_err().to_string();
        assert!(error.starts_with("worker 1"), "{pace:?}: {error}");
    }
    let (_workers, addresses) = start(1).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let problem = Problem::Importance { e: &e };
    let gone = solve(&[addresses[0], free], &graph, problem, None, Pace::LockStep, &settings).await;
    assert!(matches!(gone, Err(WorkersError::Wire { worker: 1, .. })), "{gone:?}");
}

/// A worker believes nothing that it has not checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_what_makes_no_sense() {
    let (_workers, addresses) = start(1).await;
    let page = Page { before: 1.0, after: 1.0, own: 1.0, value: 1.0, linked: true };
    let task = ToWorker::Task(Task { pages: 1, foreign: 1, tells: 1, links: 2 });
    let rows =
        |sources: &[u32]| ToWorker::Rows { counts: vec![sources.len() as u32], sources: sources.to_vec() };
    let whole = || vec![task.clone(), rows(&[0, 1]), ToWorker::Pages(vec![page]), ToWorker::Tells(vec![0])];
    let with = |at: usize, message: ToWorker| {
        let mut messages = whole();
        messages[at] = message;
        messages.push(ToWorker::Loaded);
        messages
    };
    let loaded = || [whole(), vec![ToWorker::Loaded]].concat();
    let sweep = |by_links: f64| ToWorker::Sweep(Sweep { newest: true, by_links, by_own: 1.0 });
    let huge = Task { pages: u32::MAX, foreign: u32::MAX, tells: 0, links: 0 };
    let cases = [
        vec![ToWorker::Loaded],
        vec![ToWorker::Task(huge)],
        vec![ToWorker::Task(Task { pages: 1, tells: 2, ..Task::default() })],
        vec![ToWorker::Task(Task { pages: 1, links: u64::MAX, ..Task::default() })],
        vec![task.clone(), ToWorker::More(vec![0])],
        with(1, rows(&[0])),
        with(1, rows(&[0, 2])),
        with(1, rows(&[0, 1, 1])),
        with(1, ToWorker::Rows { counts: vec![3], sources: vec![0, 1] }),
        with(1, ToWorker::Rows { counts: vec![1, 1], sources: vec![0, 1] }),
        with(1, ToWorker::Rows { counts: vec![u32::MAX, 3], sources: vec![0, 1] }),
        with(2, ToWorker::Pages(vec![Page { value: f64::NAN, ..page }])),
        with(2, ToWorker::Pages(vec![page, page])),
        with(3, ToWorker::Tells(vec![1])),
        with(3, ToWorker::Tells(vec![])),
        with(3, ToWorker::Sweep(Sweep { newest: false, by_links: 0.0, by_own: 0.0 })),
        [loaded(), vec![ToWorker::Loaded]].concat(),
        [loaded(), vec![sweep(f64::INFINITY), ToWorker::Passing(vec![0.5])]].concat(),
        [loaded(), vec![sweep(0.5), ToWorker::Passing(vec![0.5, 0.5])]].concat(),
        [loaded(), vec![sweep(0.5), ToWorker::Values]].concat(),
    ];
    for messages in cases {
        let client = Client::connect(addresses[0], ClientSettings::default()).await.unwrap();
        let mut control = client.control(TOPIC).unwrap();
        for message in &messages {
            // It may have ended the call before the last.
            if control.send(encode(message)).await.is_err() {
                break;
            }
        }
        let mut last = None;
        while let Ok(Some(bytes)) = control.receive(None).await {
            last = Some(decode::<FromWorker>(&bytes).unwrap());
        }
        assert!(matches!(last, Some(FromWorker::Failed(_))), "{messages:?}: {last:?}");
    }
}

/// What a slice computes, by hand: page 0 links to itself and gets from a foreign page.
#[test]
fn a_slice_sweeps() {
    let mut loading = Loading::new(Task { pages: 2, foreign: 1, tells: 1, links: 3 }).unwrap();
    let page = |before: f64| Page { before, after: 1.0, own: 1.0, value: 2.0, linked: true };
    loading.rows(&[1, 1], vec![0, 0]).unwrap();
    loading.more(vec![2]).unwrap();
    loading.pages(vec![page(0.5), page(1.0)]).unwrap();
    loading.tells(vec![1]).unwrap();
    let mut slice = loading.finish().unwrap();
    let told = |totals: Totals| (totals.all, totals.changed, totals.largest, totals.changed_most);
    let sweep = |newest| Sweep { newest, by_links: 1.0, by_own: 1.0 };
    // 0: 1·1 + 1; 1: 1·(1 + 4) + 1.
    assert_eq!(told(slice.sweep(sweep(false), &[4.0]).unwrap()), (8.0, 4.0, 6.0, 4.0));
    assert_eq!((slice.values().collect(), slice.told().collect()), (vec![2.0, 6.0], vec![6.0]));
    slice.restart();
    // 0 is 0.5·x + 1, that is 2; 1 as before.
    assert_eq!(told(slice.sweep(sweep(true), &[4.0]).unwrap()), (8.0, 4.0, 6.0, 4.0));
    assert!(slice.sweep(sweep(true), &[]).is_err());
    assert_eq!(slice.values().collect::<Vec<f64>>(), [2.0, 6.0], "nothing was done");
}
