//! Command lines of the benchmarks: `--name value`, nothing else.

/// The arguments of this program.
pub struct Arguments(Vec<String>);

impl Arguments {
    /// As the program was started.
    pub fn from_env() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    /// What follows `name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// What follows `name`, as a number.
    pub fn number(&self, name: &str, default: usize) -> usize {
        self.value(name).map_or(default, |text| text.parse().expect("a number"))
    }

    /// Whether the comma-separated `list` has this name, or is not given.
    pub fn lists(&self, list: &str, name: &str) -> bool {
        self.value(list).is_none_or(|names| names.split(',').any(|listed| listed == name))
    }
}
