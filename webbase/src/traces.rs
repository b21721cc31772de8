//! What the program says of its work, on stderr.

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

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
        let which = std::env::var("WEBBASE_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
        let which = which.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
        let layer = fmt::layer().with_writer(std::io::stderr);
        let layer = match self.log {
            Form::Text => layer.with_ansi(console::user_attended_stderr()).boxed(),
            Form::Json => layer.json().boxed(),
        };
        let started = tracing_subscriber::registry().with(layer.with_filter(which)).try_init();
        // Somebody traces already: nothing is lost.
        drop(started);
    }
}
