//! Settings of the commands that serve, from a file and from the environment.
//!
//! ```toml
//! [node]                      # the command: up, mgmt or node
//! dir = "/srv/webbase/r1"     # its flags, without the dashes
//! role = "read"
//! ```
//!
//! A flag on the command line counts before the environment (`--read-nodes` is `WEBBASE_READ_NODES`), and that before the file
//! (`--config`, or `WEBBASE_CONFIG`). All three become flags before the command line is parsed, so that a setting means the same and
//! is checked the same wherever it stands.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Command;
use toml::{Table, Value};

use crate::exit::Failure;

/// Commands that have settings.
pub(crate) const COMMANDS: [&str; 3] = ["up", "mgmt", "node"];
/// Flags that are no settings.
const NOT_SETTINGS: [&str; 3] = ["help", "version", "config"];

/// Where the settings are.
#[derive(clap::Args)]
pub(crate) struct ConfigFile {
    /// A file with settings, in TOML: the flags of this command under its name. Flags and WEBBASE_… variables count before it.
    #[arg(id = "config", long, value_name = "FILE", env = "WEBBASE_CONFIG")]
    _config: Option<PathBuf>,
}

/// The command line, with the flags that the environment and the file add to it.
pub(crate) fn expand(
    args: Vec<OsString>,
    program: Command,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>> {
    let named = args.iter().position(|arg| COMMANDS.iter().any(|name| arg == OsStr::new(name)));
    let Some((at, name)) = named.and_then(|at| Some((at, args.get(at)?.to_str()?.to_owned()))) else {
        return Ok(args);
    };
    let (before, after) = args.split_at(at + 1);
    let mut settings: BTreeMap<String, OsString> = BTreeMap::new();
    let file = given(after, "config").or_else(|| environment("WEBBASE_CONFIG"));
    if let Some(file) = file {
        settings =
            section(&read(Path::new(&file))?, &name, &program).with_context(|| file.display().to_string())?;
    }
    // WEBBASE_LOG says what is traced, --log how.
    for flag in flags(&program, &name).into_iter().filter(|flag| flag != "log") {
        if let Some(value) = environment(&format!("WEBBASE_{}", flag.to_uppercase().replace('-', "_"))) {
            settings.insert(flag, value);
        }
    }
    let mut all = before.to_vec();
    for (flag, value) in settings {
        let said = after.iter().any(|arg| {
            let arg = arg.as_encoded_bytes();
            arg.strip_prefix(b"--")
                .and_then(|arg| arg.strip_prefix(flag.as_bytes()))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
        });
        if !said {
            all.extend(as_flag(&program, &name, &flag, value));
        }
    }
    all.extend_from_slice(after);
    Ok(all)
}

/// The value of a flag on a command line.
fn given(args: &[OsString], flag: &str) -> Option<OsString> {
    let dashed = format!("--{flag}");
    let with_value = format!("{dashed}=");
    args.iter().enumerate().find_map(|(at, arg)| match arg.to_str() {
        Some(text) if text == dashed => args.get(at + 1).cloned(),
        Some(text) => text.strip_prefix(&with_value).map(Into::into),
        None => None,
    })
}

fn read(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parsed: std::result::Result<Table, _> = text.parse();
    parsed.map_err(|e| Failure::Usage(format!("{}: {e}", path.display())).into())
}

fn subcommand(program: &Command, name: &str) -> Option<Command> {
    let mut program = program.clone();
    program.build();
    program.find_subcommand(name).cloned()
}

/// What can be set for a command.
fn flags(program: &Command, name: &str) -> Vec<String> {
    let command = subcommand(program, name);
    let all = command.iter().flat_map(Command::get_arguments).filter(|arg| !arg.is_hide_set());
    let named = all.filter_map(|arg| arg.get_long()).filter(|flag| !NOT_SETTINGS.contains(flag));
    named.map(str::to_owned).collect()
}

/// Whether a flag stands alone.
fn is_switch(program: &Command, name: &str, flag: &str) -> bool {
    let command = subcommand(program, name);
    let arg = command.as_ref().and_then(|c| c.get_arguments().find(|arg| arg.get_long() == Some(flag)));
    arg.is_some_and(|arg| !arg.get_action().takes_values())
}

fn as_flag(program: &Command, name: &str, flag: &str, value: OsString) -> Vec<OsString> {
    let mut dashed = OsString::from(format!("--{flag}"));
    if is_switch(program, name, flag) {
        let on = !matches!(value.to_str(), Some("" | "0" | "false" | "no"));
        return on.then_some(dashed).into_iter().collect();
    }
    dashed.push("=");
    dashed.push(value);
    vec![dashed]
}

/// The settings of a command in a file.
fn section(file: &Table, name: &str, program: &Command) -> Result<BTreeMap<String, OsString>> {
    if let Some(other) = file.keys().find(|key| !COMMANDS.contains(&key.as_str())) {
        bail!(Failure::Usage(format!("there is no section [{other}]; there are [up], [mgmt] and [node]")));
    }
    let Some(section) = file.get(name) else { return Ok(BTreeMap::new()) };
    let Value::Table(section) = section else {
        bail!(Failure::Usage(format!("{name} is a section: [{name}]")));
    };
    let known = flags(program, name);
    let mut settings = BTreeMap::new();
    for (key, value) in section {
        if !known.contains(key) {
            let known = known.join(", ");
            bail!(Failure::Usage(format!("[{name}] has no setting {key:?}; it has {known}")));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(yes) => yes.to_string(),
            other => {
                let kind = other.type_str();
                bail!(Failure::Usage(format!(
                    "[{name}] {key} is a text, a number or true or false, not {kind}"
                )));
            }
        };
        settings.insert(key.clone(), text.into());
    }
    Ok(settings)
}

/// Checks all sections of a file, and says which there are.
pub(crate) fn check(path: &Path, program: &Command) -> Result<Vec<&'static str>> {
    let file = read(path)?;
    let mut found = Vec::new();
    for name in COMMANDS {
        let settings = section(&file, name, program).with_context(|| path.display().to_string())?;
        if !file.contains_key(name) {
            continue;
        }
        let mut args: Vec<OsString> = vec!["webbase".into(), name.into()];
        args.extend(settings.into_iter().flat_map(|(flag, value)| as_flag(program, name, &flag, value)));
        if let Err(e) = program.clone().try_get_matches_from(args) {
            let text = e.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            bail!(Failure::Usage(format!("{}: [{name}] {line}", path.display())));
        }
        found.push(name);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn expanded(line: &str, file: &str, environment: &[(&str, &str)]) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("webbase.toml");
        std::fs::write(&path, file).unwrap();
        let line = line.replace("FILE", path.to_str().unwrap());
        let args = line.split_whitespace().map(OsString::from).collect();
        let look = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let all = expand(args, crate::Program::command(), look)?;
        let all: Vec<String> = all.into_iter().map(|arg| arg.into_string().unwrap()).collect();
        Ok(all.join(" ").replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn flags_count_before_the_environment_and_that_before_the_file() {
        let file = "[node]\nrole = \"read\"\ndir = \"/a\"\nmgmt = \"10.0.0.1:1\"\n[up]\ndemo = true\n";
        let none: [(&str, &str); 0] = [];
        assert_eq!(
            expanded("webbase node --config FILE", file, &none).unwrap(),
            "webbase node --dir=/a --mgmt=10.0.0.1:1 --role=read --config FILE"
        );
        let environment = [("WEBBASE_ROLE", "update"), ("WEBBASE_DIR", "/b")];
        assert_eq!(
            expanded("webbase --log json node --config=FILE --dir /c", file, &environment).unwrap(),
            "webbase --log json node --mgmt=10.0.0.1:1 --role=update --config=FILE --dir /c"
        );
        assert_eq!(
            expanded("webbase up --config FILE", file, &none).unwrap(),
            "webbase up --demo --config FILE"
        );
        assert_eq!(expanded("webbase status", file, &environment).unwrap(), "webbase status");
    }

    #[test]
    fn what_a_file_has_too_much_is_named() {
        for (file, named) in [
            ("[node]\nrolle = \"read\"\n", "no setting \"rolle\""),
            ("[nodes]\n", "no section [nodes]"),
            ("[node]\nrole = [1]\n", "not array"),
            ("node = 1\n", "node is a section"),
            ("[node\n", "TOML parse error"),
        ] {
            let e = expanded("webbase node --config FILE", file, &[]).unwrap_err();
            assert!(format!("{e:#}").contains(named), "{e:#}");
        }
    }

    #[test]
    fn the_example_is_right() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/webbase.toml"));
        assert_eq!(check(path, &crate::Program::command()).unwrap(), ["up", "mgmt", "node"]);
    }
}
