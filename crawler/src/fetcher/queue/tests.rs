//! Turns of sites and addresses, by a clock that stands.

use super::*;

fn politeness() -> Politeness {
    Politeness { delay: Duration::from_secs(2), address_delay: None, urls_max: 5, ..Politeness::default() }
}

fn asked(next: Next<u32>) -> u32 {
    match next {
        Next::Ask(_, _, url) => url,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_site_is_asked_once_at_a_time_and_then_after_its_delay() {
    let (mut queue, now) = (Queue::new(politeness()), Instant::now());
    for url in 0..3 {
        assert_eq!(queue.push("a", Priority::Discovery, url, now), None);
    }
    queue.push("b", Priority::Discovery, 9, now);
    assert_eq!((asked(queue.next(now)), asked(queue.next(now))), (0, 9));
    assert_eq!(queue.next(now), Next::Nothing, "both sites are being asked");
    let later = now + Duration::from_secs(5);
    queue.done("a", &Went::Well, later);
    assert_eq!(queue.next(later), Next::Wait(later + Duration::from_secs(2)));
    assert_eq!(asked(queue.next(later + Duration::from_secs(2))), 1);
    assert_eq!(queue.len(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_urgent_come_first_and_the_most_crowded_site_gives_way() {
    let (mut queue, now) = (Queue::new(politeness()), Instant::now());
    for url in 0..4 {
        queue.push("big", Priority::Discovery, url, now);
    }
    queue.push("small", Priority::Discovery, 8, now);
    assert_eq!(queue.push("small", Priority::Discovery, 9, now), Some(3));
    assert_eq!(queue.push("big", Priority::User, 10, now), Some(2));
    assert_eq!(asked(queue.next(now)), 10);
    assert_eq!(queue.len(), (4, 2));
    assert_eq!(queue.push("third", Priority::Refresh, 11, now), None);
    assert_eq!(asked(queue.next(now)), 11, "more urgent than what waited longer");
    assert_eq!(asked(queue.next(now)), 8);
}

#[tokio::test(start_paused = true)]
async fn an_address_serves_one_site_at_a_time() {
    let second = Duration::from_secs(1);
    let politeness = Politeness { address_delay: Some(second), ..politeness() };
    let (mut queue, now) = (Queue::new(politeness), Instant::now());
    let address: IpAddr = "192.0.2.1".parse().unwrap();
    for (url, name) in ["a", "b", "c"].into_iter().enumerate() {
        queue.push(name, Priority::Discovery, url as u32, now);
    }
    asked(queue.next(now));
    assert!(queue.take("a", address, now));
    for name in ["b", "c"] {
        let url = asked(queue.next(now));
        assert!(!queue.take(name, address, now));
        queue.put_back(name, Priority::Discovery, url, now);
    }
    assert_eq!(queue.next(now), Next::Nothing);
    queue.leave("a", address, now);
    queue.done("a", &Went::Well, now);
    assert_eq!(queue.next(now), Next::Wait(now + second));
    assert_eq!(asked(queue.next(now + second)), 1);
    assert!(queue.take("b", address, now + second));
    queue.leave("b", address, now + second);
    queue.done("b", &Went::Well, now + second);
    assert_eq!(asked(queue.next(now + 2 * second)), 2);
    assert_eq!(queue.len(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn trouble_slows_a_site_down_and_an_answer_ends_it() {
    let (mut queue, now) = (Queue::new(politeness()), Instant::now());
    let wait = |queue: &Queue<u32>| queue.view("a", now).unwrap().next_in.as_secs();
    queue.push("a", Priority::Discovery, 1, now);
    queue.next(now);
    queue.done("a", &Went::Badly(None), now);
    assert_eq!(wait(&queue), 4);
    queue.done("a", &Went::Badly(None), now);
    assert_eq!(wait(&queue), 8);
    queue.done("a", &Went::Badly(Some(Duration::from_secs(100_000))), now);
    assert_eq!((wait(&queue), queue.view("a", now).unwrap().pace), (3600, Pace::RetryAfter));
    queue.done("a", &Went::Well, now);
    assert_eq!((wait(&queue), queue.view("a", now).unwrap().pace), (2, Pace::Usual));
    queue.pace("a", Some(Duration::from_secs(1000)), now);
    let view = queue.view("a", now).unwrap();
    assert_eq!(view.delay, Duration::from_secs(60));
    assert_eq!(view.pace, Pace::CrawlDelay { asked: Some(Duration::from_secs(1000)) });
}

/// Sites of one address, some of whose turns come to nothing: every URL gets its turn.
#[tokio::test(start_paused = true)]
async fn no_site_waits_for_ever_for_its_address() {
    let address = IpAddr::from([127, 0, 0, 1]);
    for seed in 0..500_u64 {
        let mut state = seed;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut queue = Queue::new(Politeness {
            address_delay: Some(Duration::from_secs(1)),
            urls_max: 1000,
            ..politeness()
        });
        let mut now = Instant::now();
        for url in 0..40_u32 {
            queue.push(&format!("s{}", below(8)), Priority::Discovery, url, now);
        }
        let (mut told, mut out) = (0, Vec::new());
        loop {
            if !out.is_empty() && below(3) == 0 {
                let name: Name = out.remove(below(out.len() as u64) as usize);
                queue.leave(&name, address, now);
                queue.done(&name, &Went::Well, now);
                told += 1;
                continue;
            }
            match queue.next(now) {
                Next::Ask(name, _, _) if below(3) == 0 => {
                    queue.done(&name, &Went::NotAsked, now);
                    told += 1;
                }
                Next::Ask(name, priority, url) => match queue.take(&name, address, now) {
                    true => out.push(name),
                    false => queue.put_back(&name, priority, url, now),
                },
                Next::Wait(until) => now = until,
                Next::Nothing if out.is_empty() => break,
                Next::Nothing => now += Duration::from_millis(100),
            }
            assert!(out.len() <= 1, "seed {seed}: an address is asked twice at once");
        }
        assert_eq!((told, queue.len().0), (40, 0), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_keeps_the_delay_goes_first_and_never_meets_another() {
    let (mut queue, now) = (Queue::new(politeness()), Instant::now());
    let (address, delay) = (IpAddr::from([127, 0, 0, 1]), Duration::from_secs(2));
    for url in 0..2 {
        queue.push("a", Priority::Discovery, url, now);
    }
    // The site's own turn has begun, and nothing is on the wire: a guest may come, and the turn gives way.
    let url = asked(queue.next(now));
    queue.guest_came("a", now);
    assert_eq!(queue.visit("a", address, now), Ok(()));
    assert!(!queue.take("a", address, now));
    queue.put_back("a", Priority::Discovery, url, now);
    queue.guest_came("a", now);
    assert_eq!(queue.visit("a", address, now), Err(now + GUEST_WAIT), "one at a time");
    let now = now + delay;
    queue.leave("a", address, now);
    queue.guest_went("a", &Went::NotAsked, now);
    assert_eq!(queue.visit("a", address, now), Err(now + delay));
    let now = now + delay;
    assert_eq!(queue.next(now), Next::Nothing, "the other guest goes first");
    assert_eq!(queue.visit("a", address, now), Ok(()));
    queue.leave("a", address, now);
    queue.guest_went("a", &Went::NotAsked, now);
    assert_eq!(queue.next(now), Next::Wait(now + delay));
    let now = now + delay;
    assert_eq!(asked(queue.next(now)), 0);
    assert!(queue.take("a", address, now));
    queue.leave("a", address, now);
    queue.done("a", &Went::Well, now);
    // A site that waits in the heap for its time: that moves with a guest's visit.
    let now = now + delay;
    queue.guest_came("a", now);
    assert_eq!(queue.visit("a", address, now), Ok(()));
    let now = now + delay;
    queue.leave("a", address, now);
    queue.guest_went("a", &Went::Badly(Some(2 * delay)), now);
    assert_eq!(queue.next(now), Next::Wait(now + 2 * delay));
    assert_eq!(asked(queue.next(now + 2 * delay)), 1);
}
