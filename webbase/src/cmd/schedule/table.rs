//! A CSV file with a header, whose errors name the line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// A row longer than this is no table's.
const ROW_BYTES_MAX: usize = 1 << 20;

pub(super) struct Table<const N: usize> {
    rows: csv::Reader<Box<dyn Read>>,
    row: csv::StringRecord,
    /// Where each column stands; `None` for one that the table does not have.
    columns: [Option<usize>; N],
    path: String,
}

impl<const N: usize> Table<N> {
    /// Opens a table that has the first `required` of these columns, and perhaps the others.
    pub(super) fn open(path: &Path, names: [&str; N], required: usize) -> Result<Table<N>> {
        let shown = path.display().to_string();
        let input: Box<dyn Read> = if path == Path::new("-") {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(path).with_context(|| format!("cannot open {shown}"))?)
        };
        let mut rows = csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).from_reader(input);
        let header = rows.headers().with_context(|| format!("cannot read {shown}"))?.clone();
        let bare = |name: &str| name.trim_start_matches('\u{feff}').to_ascii_lowercase();
        let columns = names.map(|name| header.iter().position(|found| bare(found) == name));
        for (name, column) in names.iter().zip(&columns).take(required) {
            if column.is_none() {
                let expected = names.get(..required).unwrap_or(&names).join(", ");
                let found: Vec<&str> = header.iter().collect();
                let found = if found.is_empty() { "nothing".into() } else { found.join(", ") };
                bail!("{shown}: line 1 is no header with the columns {expected}: no {name}; found {found}");
            }
        }
        Ok(Table { rows, row: csv::StringRecord::new(), columns, path: shown })
    }

    /// Whether the table has a column.
    pub(super) fn has(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(Option::is_some)
    }

    /// Goes on to the next row; false at the end.
    pub(super) fn next(&mut self) -> Result<bool> {
        let found = self.rows.read_record(&mut self.row);
        let found = found.with_context(|| format!("{}: a row that is no CSV", self.path))?;
        if found && self.row.as_slice().len() > ROW_BYTES_MAX {
            bail!("{}: the row is longer than {ROW_BYTES_MAX} bytes", self.place());
        }
        Ok(found)
    }

    /// A field of the row; an empty text if the column or the field is not there.
    pub(super) fn field(&self, column: usize) -> &str {
        self.columns.get(column).copied().flatten().and_then(|at| self.row.get(at)).unwrap_or("")
    }

    /// File and line of the row.
    pub(super) fn place(&self) -> String {
        let line = self.row.position().map_or(0, csv::Position::line);
        format!("{}: line {line}", self.path)
    }
}
