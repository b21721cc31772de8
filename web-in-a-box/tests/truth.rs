//! The world keeps what it promises: the same from the same seed, everything reached, changes, births and deaths at their rates,
//! and answers that agree with the truth.

use std::collections::BTreeSet;

use webbase_web_in_a_box::{Asked, DAY_MS, Dates, Kind, Plan, Sitemaps, World};

const BEGAN: u64 = 1_700_000_000_000;

#[test]
fn a_seed_always_makes_the_same_world() {
    let (a, b, other) = (World::new(7, 500, BEGAN), World::new(7, 500, BEGAN), World::new(8, 500, BEGAN));
    assert_eq!(a.pages(), 500);
    assert!(a.sites() > 10, "{}", a.sites());
    let at = BEGAN + 10 * DAY_MS;
    assert!((0..500).all(|page| a.fetch(page, at) == b.fetch(page, at)));
    assert!((0..500).any(|page| a.fetch(page, at) != other.fetch(page, at)));
    let urls: BTreeSet<String> = (0..500).map(|page| a.url(page)).collect();
    assert_eq!(urls.len(), 500, "every page has a URL of its own");
    let kinds: BTreeSet<Kind> = (0..500).map(|page| a.kind(page)).collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

#[test]
fn every_page_is_found_at_its_own_url_and_all_are_reached_from_the_first() {
    let world = World::planned(Plan { site_scale: 5, ..Plan::new(3, 2000, BEGAN) });
    for page in 0..world.pages() {
        let site = world.site_of_host(&world.host(world.site_of(page)));
        assert_eq!(site, Some(world.site_of(page)));
        assert_eq!(world.page_at(world.site_of(page), &world.path(page)), Some(page));
    }
    let mut found = BTreeSet::from([0]);
    let mut open = vec![0];
    while let Some(page) = open.pop() {
        for link in world.links(page) {
            assert!(link < world.pages() && link != page);
            if found.insert(link) {
                open.push(link);
            }
        }
    }
    assert_eq!(found.len(), world.pages());
    assert_eq!(world.site_of_host("nothing.example"), None);
    assert_eq!(world.page_at(0, "/nowhere/1.html"), None);
}

#[test]
fn pages_change_at_their_rates_and_never_back() {
    let world = World::planned(Plan::new(5, 300, BEGAN).eternal());
    let days = 1000_u64;
    for page in 0..300 {
        let (early, late) = (world.version(page, BEGAN + DAY_MS), world.version(page, BEGAN + days * DAY_MS));
        assert!(early.0 <= late.0 && early.1 <= late.1 && late.1 <= BEGAN + days * DAY_MS);
        let expected = world.changes_a_day(page) * days as f64;
        let found = f64::from(late.0);
        assert!(
            (found - expected).abs() <= 6.0 * expected.sqrt() + 3.0,
            "page {page}: {found} of {expected}"
        );
    }
}

#[test]
fn pages_appear_and_die_at_their_rates() {
    let world = World::new(11, 20_000, BEGAN);
    let plan = world.plan();
    let after = 100 * DAY_MS;
    let later = (0..20_000).filter(|page| world.born_at_ms(*page) > BEGAN).count() as f64;
    let born =
        (0..20_000).filter(|page| (BEGAN + 1..=BEGAN + after).contains(&world.born_at_ms(*page))).count();
    let expected = later * (1.0 - (-100.0 * plan.births_a_day).exp());
    assert!((born as f64 - expected).abs() < 5.0 * expected.sqrt(), "{born} of {expected}");
    let mortal: Vec<usize> = (0..20_000).filter(|page| world.died_at_ms(*page).is_some()).collect();
    let died = mortal
        .iter()
        .filter(|page| world.died_at_ms(**page).is_some_and(|died| died - world.born_at_ms(**page) <= after));
    let expected = mortal.len() as f64 * (1.0 - (-100.0 * plan.deaths_a_day).exp());
    let died = died.count() as f64;
    assert!(mortal.len() > 2000 && (died - expected).abs() < 5.0 * expected.sqrt(), "{died} of {expected}");
}

#[test]
fn answers_agree_with_the_truth() {
    let world = World::new(13, 2000, BEGAN);
    let at = BEGAN + 80 * DAY_MS;
    let mut seen = BTreeSet::new();
    for page in 0..world.pages() {
        let (site, path) = (world.site_of(page), world.path(page));
        let host = world.host(site);
        let asked = Asked { host: &host, path: &path, ..Asked::default() };
        let answer = world.answer(&asked, at);
        let header =
            |name: &str| answer.headers.iter().find(|(one, _)| *one == name).map(|(_, value)| value.as_str());
        seen.insert(answer.status);
        match answer.status {
            200 => assert!(world.lives(page, at)),
            404 => assert!(world.born_at_ms(page) > at),
            _ => assert!(world.died_at_ms(page).is_some_and(|died| died <= at)),
        }
        if answer.status != 200 {
            continue;
        }
        assert_eq!(header("last-modified").is_some(), world.dates(site) == Dates::Both);
        let again =
            Asked { if_none_match: header("etag"), if_modified_since: header("last-modified"), ..asked };
        let same = world.answer(&again, at).status == 304;
        assert_eq!(same, world.dates(site) != Dates::Neither);
        let changed = world.changes(page).find(|moment| *moment > at).unwrap_or(u64::MAX);
        if world.lives(page, changed) {
            assert_eq!(world.answer(&again, changed).status, 200, "{}", world.url(page));
        }
    }
    assert_eq!(seen, BTreeSet::from([200, 404, 410]));
}

#[test]
fn sitemaps_have_the_living_pages_with_their_dates() {
    let world = World::new(17, 1500, BEGAN);
    let at = BEGAN + 40 * DAY_MS;
    let site = (0..world.sites())
        .find(|site| {
            *site % 3 != 1 && world.sitemaps(*site) == Sitemaps::True && world.pages_of(*site).len() > 15
        })
        .unwrap();
    let host = world.host(site);
    let get = |path: &str| {
        let answer = world.answer(&Asked { host: &host, path, ..Asked::default() }, at);
        (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
    };
    assert!(get("/robots.txt").1.contains(&format!("Sitemap: http://{host}/sitemap.xml")));
    assert!(get("/sitemap.xml").1.contains(&format!("<loc>http://{host}/sitemap-0.xml</loc>")));
    let (status, map) = get("/sitemap-0.xml");
    assert_eq!((status, get("/sitemap-1.xml").0), (200, 404));
    for page in world.pages_of(site) {
        let there = map.contains(&format!("<loc>{}</loc>", world.url(page)));
        assert_eq!(there, world.lives(page, at) && world.is_allowed(page), "{}", world.url(page));
    }
}
