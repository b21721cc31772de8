//! What came of an import, over all files.

use serde_json::{Map, Value, json};

/// Damaged places of a file that are told at once; the report has all.
const TOLD_MAX: usize = 10;

#[derive(Default)]
pub(super) struct Summary {
    files: Vec<Value>,
    total: Map<String, Value>,
}

impl Summary {
    /// Takes a file's report; gives what is to be said about it.
    pub(super) fn add(&mut self, name: &str, report: Value) -> Vec<String> {
        let mut lines = Vec::new();
        let list = report.get("damage").and_then(Value::as_array);
        for place in list.into_iter().flatten().take(TOLD_MAX) {
            let (offset, what) = (place.get("offset").and_then(Value::as_u64), place.get("what"));
            let what = what.and_then(Value::as_str).unwrap_or_default();
            lines.push(format!("{name}: damaged at {}: {what}", offset.unwrap_or(0)));
        }
        let damaged = report.get("damaged").and_then(Value::as_u64).unwrap_or(0);
        if damaged > TOLD_MAX as u64 {
            lines.push(format!("{name}: {damaged} damaged places in all; --json names them"));
        }
        if report.get("sharing_member").and_then(Value::as_u64).unwrap_or(0) > 0 {
            lines.push(format!(
                "{name}: is packed as a whole, not record by record; it was read all the same"
            ));
        }
        for (why, count) in report.get("refused").and_then(Value::as_object).into_iter().flatten() {
            lines.push(format!("{name}: {count} not taken: {why}"));
        }
        if let Value::Object(report) = &report {
            sum(&mut self.total, report);
        }
        self.files.push(json!({"path": name, "report": report}));
        lines
    }

    pub(super) fn files(&self) -> &[Value] {
        &self.files
    }

    pub(super) fn total(&self) -> &Map<String, Value> {
        &self.total
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.total.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn numbers(&self, name: &str) -> Vec<(String, u64)> {
        let members = self.total.get(name).and_then(Value::as_object).into_iter().flatten();
        members.map(|(name, count)| (name.clone(), count.as_u64().unwrap_or(0))).collect()
    }

    pub(super) fn text(&self) -> String {
        let list = |name: &str| -> String {
            let all: Vec<String> =
                self.numbers(name).iter().map(|(name, count)| format!("{count} {name}")).collect();
            if all.is_empty() { "none".into() } else { all.join(", ") }
        };
        let records: u64 = self.numbers("records").iter().map(|(_, count)| count).sum();
        let mut text = format!(
            "{records} records ({}): {} captures of {} pages, {} superseded; {} durable",
            list("records"),
            self.number("captures"),
            self.number("pages"),
            self.number("superseded"),
            self.number("acknowledged"),
        );
        if !self.numbers("left_out").is_empty() {
            text.push_str(&format!("; left out: {}", list("left_out")));
        }
        if self.files.len() > 1 {
            text.push_str("; pages are counted file by file");
        }
        text
    }

    /// What is wrong, if something is.
    pub(super) fn incomplete(&self) -> Option<String> {
        let refused: u64 = self.numbers("refused").iter().map(|(_, count)| count).sum();
        let damaged = self.number("damaged");
        (refused + damaged > 0).then(|| {
            format!("{damaged} damaged places were passed over and {refused} captures not taken; the rest is imported")
        })
    }
}

/// Adds numbers to numbers, and those of objects in them.
fn sum(total: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (name, value) in more {
        match value {
            Value::Number(number) => {
                let before = total.get(name).and_then(Value::as_u64).unwrap_or(0);
                total.insert(name.clone(), (before + number.as_u64().unwrap_or(0)).into());
            }
            Value::Object(inner) => {
                let slot = total.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(slot) = slot {
                    sum(slot, inner);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up() {
        let mut summary = Summary::default();
        let report = json!({"records": {"response": 2}, "captures": 2, "pages": 1, "superseded": 1, "acknowledged": 2,
            "damaged": 1, "damage": [{"offset": 7, "what": "cut"}], "refused": {}, "sharing_member": 0});
        assert_eq!(summary.add("a", report.clone()), ["a: damaged at 7: cut"]);
        summary.add("b", report);
        assert!(
            summary
                .text()
                .starts_with("4 records (4 response): 4 captures of 2 pages, 2 superseded; 4 durable")
        );
        assert!(summary.incomplete().unwrap().starts_with("2 damaged"));
        assert_eq!(Summary::default().incomplete(), None);
    }
}
