//! `webbase rank` from outside: a graph in, a line a page out, and what is wrong with the input said with its line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

fn rank(folder: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_webbase");
    Command::new(program).arg("rank").args(arguments).current_dir(folder).output().unwrap()
}

fn numbers(text: &str) -> Vec<(u32, f64, f64)> {
    let line = |line: &str| {
        let mut fields = line.split(' ').map(str::to_owned);
        let mut next = || fields.next().unwrap();
        (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn a_graph_is_ranked_however_it_is_packed() {
    let folder = tempfile::tempdir().unwrap();
    // Two pages link to 2, which links to 3, of interest; 4 is named by --nodes alone.
    let text = b"# from to\n0 2\n1 2\n2 3\n";
    std::fs::write(folder.path().join("links"), text).unwrap();
    std::fs::write(folder.path().join("links.zst"), zstd::encode_all(&text[..], 3).unwrap()).unwrap();
    std::fs::write(folder.path().join("xml"), "3\n").unwrap();
    let mut outs = Vec::new();
    for (graph, out, method) in
        [("links", "a", "power"), ("links.zst", "b", "power"), ("links", "c", "gauss-seidel")]
    {
        let done = rank(
            folder.path(),
            &["--graph", graph, "--nodes", "5", "--xml", "xml", "--out", out, "--method", method],
        );
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(done.stdout.is_empty(), "data goes to the file");
        outs.push(numbers(&std::fs::read_to_string(folder.path().join(out)).unwrap()));
    }
    assert_eq!(outs[0], outs[1]);
    let pages: Vec<u32> = outs[0].iter().map(|line| line.0).collect();
    assert_eq!(pages, [0, 1, 2, 3, 4]);
    // The fixed point `renorm`: it adds up to 1, and each page has r·(c·what it gets + (1 − c)/n).
    let i: Vec<f64> = outs[0].iter().map(|line| line.1).collect();
    let r = 1.0 / (0.85 * (i[0] + i[1] + i[2]) + 0.15);
    let expected = [0.03, 0.03, 0.03 + 0.85 * (i[0] + i[1]), 0.03 + 0.85 * i[2], 0.03];
    for page in 0..5 {
        assert!(
            (i[page] - r * expected[page]).abs() < 1e-9,
            "page {page}: {} against {}",
            i[page],
            expected[page]
        );
        assert!((outs[2][page].1 - i[page]).abs() < 1e-9);
    }
    // Usefulness goes back along single links, 0.85 at each.
    let j: Vec<f64> = outs[0].iter().map(|line| line.2).collect();
    assert!((j[3] - 0.15 * i[3]).abs() < 1e-12);
    assert!((j[2] - 0.85 * j[3]).abs() < 1e-12 && (j[0] - 0.85 * j[2]).abs() < 1e-12);
    assert_eq!(j[4], 0.0);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    write("good", b"0 1\n");
    write("bad", b"0 1\n1 zero\n");
    write("cut.zst", &zstd::encode_all(&b"0 1\n"[..], 3).unwrap()[..8]);
    write("words", b"zero\n");
    write("empty", b"");
    let failed = |arguments: &[&str]| {
        let mut all = vec!["--out", "out"];
        all.extend(arguments);
        let done = rank(folder.path(), &all);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
        assert!(!folder.path().join("out").exists());
        String::from_utf8(done.stderr).unwrap()
    };
    assert!(failed(&["--graph", "bad"]).contains("bad: line 2: expected two page numbers"));
    assert!(
        failed(&["--graph", "good", "--nodes", "1"])
            .contains("good: line 1: page 1 is beyond the last of 1 pages")
    );
    assert!(failed(&["--graph", "cut.zst"]).contains("cut.zst: cannot be read after line 0"));
    assert!(failed(&["--graph", "missing"]).contains("cannot read missing"));
    assert!(failed(&["--graph", "good", "--damping", "1"]).contains("damping is 1"));
    assert!(failed(&["--graph", "good", "--xml", "words"]).contains("words: line 1: expected a page number"));
    // A graph without pages has no lines, and that is no error.
    assert!(rank(folder.path(), &["--graph", "empty", "--out", "none"]).status.success());
    assert_eq!(std::fs::read(folder.path().join("none")).unwrap(), b"");
}

#[test]
fn top_pages_and_reasons_go_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("links"), "0 2\n1 2\n1 3\n2 3\n").unwrap();
    let done = rank(folder.path(), &["--graph", "links", "--top", "2", "--explain", "3"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[1].trim_start().starts_with("3 ") && lines[2].trim_start().starts_with("2 "), "{text}");
    assert!(
        lines[3].starts_with("page 3: importance") && lines[3].contains("place 1 of 4; 2 pages link to it")
    );
    assert!(
        lines[4].contains("from page 2, one of its 1 links")
            && lines[5].contains("from page 1, one of its 2 links")
    );
    assert_eq!(rank(folder.path(), &["--graph", "links", "--explain", "4"]).status.code(), Some(1));
}

/// Worker processes over loopback, in lock-step and each in its own time: the same vectors as one process.
#[test]
fn worker_processes_come_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for page in 0..2000u32 {
        for link in 0..page % 7 {
            text.push_str(&format!("{page} {}\n", (page * 31 + link * link * 97) % 2000));
        }
    }
    std::fs::write(folder.path().join("links"), text).unwrap();
    std::fs::write(folder.path().join("xml"), "3\n500\n1999\n").unwrap();
    let common = ["--graph", "links", "--nodes", "2000", "--xml", "xml", "--out"];
    let run = |name: &str, more: &[&str]| {
        let done = rank(folder.path(), &[&common, [name].as_slice(), more].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{more:?}: {said}");
        assert_eq!(said.contains("in their own time"), more.contains(&"--chaotic"), "{said}");
        numbers(&std::fs::read_to_string(folder.path().join(name)).unwrap())
    };
    for fixed_point in ["renorm", "uniform"] {
        let alone = run("alone", &["--fixed-point", fixed_point]);
        for more in [&["--workers", "2"][..], &["--workers", "3", "--chaotic"]] {
            let found = run("workers", &[more, &["--fixed-point", fixed_point]].concat());
            let off = |of: fn(&(u32, f64, f64)) -> f64| -> f64 {
                found.iter().zip(&alone).map(|(a, b)| (of(a) - of(b)).abs()).sum()
            };
            let off = (off(|line| line.1), off(|line| line.2));
            assert!(off.0 < 1e-9 && off.1 < 1e-9, "{fixed_point} {more:?}: {off:?}");
        }
    }
    let alone = rank(folder.path(), &[&common[..], &["x", "--chaotic"]].concat());
    assert!(!alone.status.success(), "nobody to be in their own time");
}
