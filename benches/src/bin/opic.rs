//! OPIC's error against the exact vector, over time, and after links change.
//!
//! `opic [--pages 10000] [--seed 5] [--plots benches/plots]`. A web with ten links a page: half of them near, half of them anywhere, but the
//! more likely the lower a page's number. Pages are read in random order. After 60 readings a page, one in five pages gets other links.
//! Errors are L1 distances to the exact vector (the fixed point that OPIC has: what pages without links have is spread).

use std::path::Path;

use webbase_benches::arguments::Arguments;
use webbase_benches::corpus::Random;
use webbase_benches::plot::{Axis, Plot};
use webbase_crawler::importance::{
    FixedPoint, Graph, GraphBuilder, Method, Opic, Personalisation, Settings, Window, importance,
};

const LINKS: u64 = 10;
/// Readings a page before links change, and altogether.
const CALM: u32 = 60;
const ALL: u32 = 180;
/// One page in so many changes its links, and one in so many has none.
const CHANGED: u32 = 5;
const DANGLING: u32 = 8;
const WINDOWS: [(&str, Window); 4] = [
    ("window of 4", Window::Time(4.0)),
    ("window of 16", Window::Time(16.0)),
    ("window of 64", Window::Time(64.0)),
    ("adaptive", Window::Adaptive),
];
/// Readings a page at which the table has a row.
const ROWS: [u32; 12] = [1, 5, 10, 20, 40, 60, 61, 65, 70, 80, 120, 180];

fn links(random: &mut Random, page: u32, pages: u32) -> Vec<u32> {
    (0..LINKS)
        .map(|_| {
            if random.below(2) == 0 {
                return (page + random.below(50) as u32) % pages;
            }
            let below = random.below(u64::from(pages)) + 1;
            random.below(below) as u32
        })
        .collect()
}

fn web(rows: &[Vec<u32>]) -> Graph {
    let mut builder = GraphBuilder::new();
    for (page, row) in (0u32..).zip(rows) {
        row.iter().for_each(|link| builder.add(page, *link));
    }
    builder.build(Some(rows.len())).expect("pages there are")
}

fn off(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).sum()
}

fn main() {
    let arguments = Arguments::from_env();
    let (pages, seed) = (arguments.number("--pages", 10_000) as u32, arguments.number("--seed", 5) as u64);
    let folder = Path::new(arguments.value("--plots").unwrap_or("benches/plots"));
    let mut random = Random(seed);
    let mut rows: Vec<Vec<u32>> = (0..pages)
        .map(|page| if page % DANGLING == 3 { Vec::new() } else { links(&mut random, page, pages) })
        .collect();
    let calm = web(&rows);
    for page in (0..pages).filter(|page| page % DANGLING != 3 && page % CHANGED == 0) {
        rows[page as usize] = links(&mut random, page, pages);
    }
    let changed = web(&rows);
    let settings = Settings { fixed_point: FixedPoint::Spread, ..Settings::default() };
    let e = Personalisation::uniform(pages as usize);
    let exact = |graph: &Graph| {
        importance(graph, &e, None, Method::GaussSeidel, &settings).expect("settings that are fine").values
    };
    let (before, after) = (exact(&calm), exact(&changed));
    let apart = off(&before, &after);
    println!(
        "{pages} pages, {} links, seed {seed}; the exact vectors before and after are {apart:.4} apart",
        calm.links()
    );
    println!("uniform is {:.4} off", off(&e.to_vec(), &before));

    let mut errors: Vec<Vec<f64>> = Vec::new();
    for (_, window) in WINDOWS {
        // Everybody reads the same pages.
        let mut random = Random(seed + 1);
        let mut opic = Opic::new(e.clone(), window, &settings).expect("settings that are fine");
        let mut of_window = Vec::new();
        for turn in 0..ALL {
            let (graph, truth) = if turn < CALM { (&calm, &before) } else { (&changed, &after) };
            for reading in 0..pages {
                let page = random.below(u64::from(pages)) as u32;
                opic.read(
                    page,
                    graph.links_of(page),
                    f64::from(turn) + f64::from(reading) / f64::from(pages),
                );
            }
            of_window.push(off(&opic.importance(), truth));
        }
        errors.push(of_window);
    }
    println!("\n| readings a page | {} |", WINDOWS.map(|(name, _)| name).join(" | "));
    println!("|---:|{}", "---:|".repeat(WINDOWS.len()));
    for row in ROWS {
        let cells: Vec<String> =
            errors.iter().map(|errors| format!("{:.4}", errors[row as usize - 1])).collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
    let title = format!("OPIC: one page in {CHANGED} changes its links after {CALM} readings a page");
    let mut plot =
        Plot::new(&title, Axis::linear("readings a page"), Axis::log("L1 distance to the exact vector"));
    for ((name, _), errors) in WINDOWS.iter().zip(&errors) {
        plot = plot.line(name, (1..).zip(errors).map(|(turn, error)| (f64::from(turn), *error)).collect());
    }
    let ends = [f64::from(CALM), f64::from(ALL)];
    plot = plot.dashed("the vector before the change", ends.map(|turn| (turn, apart)).to_vec());
    plot.write(folder.join("opic.svg")).expect("a plot");
}
