//! What the program says of its work, on stderr.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How traces are written.
#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// What is traced, and how.
#[derive(clap::Args)]
pub(crate) struct Traces {
    /// How messages of servers are written to stderr. WEBBASE_LOG says which: error, warn (the default), info, debug.
    #[arg(
        long,
        global = true,
        value_name = "text|json",
        default_value = "text",
        hide_possible_values = true
    )]
    log: Form,
}

impl Traces {
    pub(crate) fn start(&self) {
        let which = EnvFilter::try_from_env("WEBBASE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
        let traces = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(which);
        let started = match self.log {
            Form::Text => traces.with_ansi(console::user_attended_stderr()).try_init(),
            Form::Json => traces.json().try_init(),
        };
        // Somebody traces already: nothing is lost.
        drop(started);
    }
}
