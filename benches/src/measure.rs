//! Measuring: time, memory, disk reads, and fair comparison on a noisy machine.
//!
//! Contestants take turns, round after round; the first round only warms up. A ratio is taken inside each round,
//! against the baseline of that same round, and the median of those ratios is reported: a disk that is slow for a
//! minute is slow for everybody.

use std::{
    fs::{self, File},
    os::{linux::fs::MetadataExt, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::Instant,
};

use crate::corpus::shuffled;

/// Reads one word of every cache line: what a consumer does at the very least, and what *every* contestant does
/// with every page it delivers. Pass the result to [`std::hint::black_box`].
pub fn touch(bytes: &[u8]) -> u64 {
    let mut lines = bytes.chunks_exact(64);
    let mut sum = 0u64;
    for line in &mut lines {
        sum = sum.wrapping_add(u64::from_le_bytes([
            line[0], line[1], line[2], line[3], line[4], line[5], line[6], line[7],
        ]));
    }
    lines.remainder().first().map_or(sum, |&byte| sum.wrapping_add(u64::from(byte)))
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Time on the clock.
    pub wall_s: f64,
    /// User and system time of all threads of this process.
    pub cpu_s: f64,
}

/// Runs the work and measures it.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let (started, cpu_before_s) = (Instant::now(), cpu_s());
    let result = work();
    (result, Cost { wall_s: started.elapsed().as_secs_f64(), cpu_s: cpu_s() - cpu_before_s })
}

/// As getrusage's user and system time together, but to the nanosecond.
/// CPU seconds of this process so far.
pub fn cpu_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Resident memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Heap and stacks: what the program asked for.
    pub anonymous_bytes: u64,
    /// Mapped files: page cache that the kernel can take back.
    pub file_bytes: u64,
}

/// Reads `/proc/self/status`.
pub fn memory() -> Memory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |name| field(&status, name) * 1024;
    Memory { anonymous_bytes: kilobytes("RssAnon:"), file_bytes: kilobytes("RssFile:") }
}

/// Reads so far; subtract two of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskReads {
    /// Bytes this process made the disk deliver.
    pub bytes: u64,
    /// Read system calls of this process (io_uring and page faults do not count).
    pub calls: u64,
    /// Reads the device finished, whoever asked.
    pub device_reads: u64,
}

impl DiskReads {
    /// Reads `/proc/self/io`, and the statistics of the device that holds `path`.
    pub fn now(path: &Path) -> DiskReads {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let device = fs::metadata(path).map(|meta| meta.st_dev()).unwrap_or_default();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
        DiskReads {
            bytes: field(&io, "read_bytes:"),
            calls: field(&io, "syscr:"),
            device_reads: stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0),
        }
    }

    /// Reads since `before`.
    pub fn since(self, before: DiskReads) -> DiskReads {
        DiskReads {
            bytes: self.bytes - before.bytes,
            calls: self.calls - before.calls,
            device_reads: self.device_reads - before.device_reads,
        }
    }
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// All files below a path, or the file itself.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return vec![path.to_owned()] };
    entries.flatten().flat_map(|entry| files(&entry.path())).collect()
}

/// Disk space below a path, holes not counted.
pub fn disk_bytes(path: &Path) -> u64 {
    files(path).iter().filter_map(|file| fs::metadata(file).ok()).map(|meta| meta.blocks() * 512).sum()
}

/// Makes the files below `path` cold. Nobody may have them mapped. As root, all other caches are emptied as well.
pub fn drop_caches(path: &Path) {
    for file in files(path) {
        if let Ok(file) = File::open(file) {
            file.sync_all().expect("sync before dropping caches");
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
}

/// How much work one run of a contestant does.
#[derive(Clone, Copy)]
pub struct Work {
    /// Pages added, found or scanned.
    pub pages: u64,
    /// Bytes of those pages, unpacked.
    pub bytes: u64,
}

/// The costs of one contestant, round by round.
pub struct Samples {
    /// Name of the contestant.
    pub name: String,
    /// One cost per counted round.
    pub costs: Vec<Cost>,
}

/// Runs every contestant `rounds` times in turn, after one round that is not counted. `run` gets the contestant's
/// number. What others left to write back is written before each turn. Every round has its own order all the same,
/// because the neighbour before also leaves memory behind: a virtual machine may have to get fresh pages for its page
/// cache from the hypervisor, which costs more than the write, and not everybody pays it in every round.
pub fn alternate(names: &[&str], rounds: usize, mut run: impl FnMut(usize) -> Cost) -> Vec<Samples> {
    let mut samples: Vec<Samples> =
        names.iter().map(|&name| Samples { name: name.to_owned(), costs: Vec::new() }).collect();
    for round in 0..=rounds {
        for n in shuffled(names.len(), round as u64) {
            rustix::fs::sync();
            let cost = run(n);
            eprintln!("  round {round} {:24} {:9.3} s wall {:9.3} s cpu", names[n], cost.wall_s, cost.cpu_s);
            if round > 0 {
                samples[n].costs.push(cost);
            }
        }
    }
    samples
}

/// The name with the best median: of several raw ways to do a thing, the limit. (The best of each *round* would be
/// the luckiest of several samples, and no way to do anything.)
pub fn fastest(samples: &[Samples]) -> &str {
    let wall_s = |row: &Samples| median(row.costs.iter().map(|cost| cost.wall_s));
    let best = samples.iter().min_by(|a, b| wall_s(a).total_cmp(&wall_s(b)));
    best.map_or("", |row| &row.name)
}

/// Prints a Markdown table: speed as median and range, and how many times the speed of `baseline` that is, by wall
/// and by CPU time.
pub fn print_table(title: &str, samples: &[Samples], baseline: &str, work: Work) {
    println!("\n### {title}\n");
    println!(
        "| contestant | pages/s | min – max | MB/s | of {baseline} | CPU µs/page | of {baseline}'s CPU speed |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let base = samples.iter().find(|row| row.name == baseline);
    for row in samples {
        let walls = sorted(row.costs.iter().map(|cost| cost.wall_s));
        let (fastest, slowest) = (walls[0], walls[walls.len() - 1]);
        let pages = work.pages as f64;
        let ratio = |of: fn(&Cost) -> f64| {
            let base = base?.costs.iter().zip(&row.costs).map(|(base, own)| of(base) / of(own).max(1e-9));
            Some(format!("{:.2}", median(base)))
        };
        println!(
            "| {} | {:.0} | {:.0} – {:.0} | {:.0} | {} | {:.2} | {} |",
            row.name,
            pages / median(walls.iter().copied()),
            pages / slowest,
            pages / fastest,
            work.bytes as f64 / 1e6 / median(walls.iter().copied()),
            ratio(|cost| cost.wall_s).unwrap_or_default(),
            median(row.costs.iter().map(|cost| cost.cpu_s)) * 1e6 / pages,
            ratio(|cost| cost.cpu_s).unwrap_or_default(),
        );
    }
}

/// Prints the command, the machine and the work, for a table to stand below.
pub fn print_setting(total: Work, rounds: usize) {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let cpu_info = text("/proc/cpuinfo");
    let cpu = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    println!("- command: `{}`", [program].into_iter().chain(arguments).collect::<Vec<_>>().join(" "));
    println!(
        "- machine: {}, {} threads",
        cpu.trim_start_matches([' ', '\t', ':']),
        std::thread::available_parallelism().map_or(0, |n| n.get())
    );
    println!("- kernel: {}", text("/proc/version").split(" (").next().unwrap_or(""));
    println!(
        "- pages: {}, {:.1} MB; rounds: {rounds} after one to warm up",
        total.pages,
        total.bytes as f64 / 1e6
    );
}

/// The middle value; of an even number, the mean of the two in the middle. Zero for none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    (values[last / 2] + values[values.len() / 2]) / 2.0
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_is_not_counted() {
        let mut runs = Vec::new();
        let samples = alternate(&["a", "b"], 2, |n| {
            runs.push(n);
            Cost { wall_s: runs.len() as f64, cpu_s: 0.0 }
        });
        assert_eq!(runs.len(), 6);
        let mut counted: Vec<f64> =
            samples.iter().flat_map(|row| &row.costs).map(|cost| cost.wall_s).collect();
        counted.sort_by(f64::total_cmp);
        assert_eq!(counted, [3.0, 4.0, 5.0, 6.0]);
        assert_eq!((samples[0].costs.len(), samples[1].costs.len()), (2, 2));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    #[test]
    fn touch_sees_the_whole_page() {
        assert_eq!(touch(&[1; 64]), 0x0101_0101_0101_0101);
        assert_eq!(touch(&[1; 65]), 0x0101_0101_0101_0102);
        assert_eq!(touch(&[]), 0);
    }
}
