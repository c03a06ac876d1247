//! The four sources, weakest first, laid over each other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use super::check::check;
use super::problem::{Problem, Problems, Source};
use super::{Config, KEYS, Key};

const CONFIG_VARIABLE: &str = "SHUFFLE_CONFIG";

const AFTER_HELP: &str = "\
Every flag is also an environment variable (--buffer-size is SHUFFLE_BUFFER_SIZE) and a key of the TOML
file (pool.buffer_size); flags win over the environment, the environment over the file. --print-config
shows all keys and where each value came from.

When the server serves, one line goes to standard output: ready node=HOST:PORT socket=PATH
SIGTERM or SIGINT drains: no new partitions, readers finish. A second signal ends the server at once.

Exit status:
  0  stopped after draining, or answered (--help, --version, --print-config)
  1  the server failed
  2  wrong arguments or configuration
  3  the socket or the port could not be taken
  4  the buffer pool could not be allocated
  5  the drain time ended before the last reader had finished
  6  ended by a second signal while draining
  7  the storage directories could not be taken";

/// Why [`load`] gave no configuration.
#[derive(Debug)]
pub enum LoadError {
    /// The arguments asked for a text (`--help`, `--version`, `--print-config`): print it, exit 0.
    Answered {
        /// For standard output.
        text: String,
        /// What is odd about the configuration but no error, for standard error.
        warnings: Vec<String>,
    },
    /// The arguments cannot be read; the text says why and how they look.
    Usage(String),
    /// The configuration is wrong.
    Invalid(Problems),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Answered { text, .. } | Self::Usage(text) => f.write_str(text),
            Self::Invalid(problems) => problems.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

/// Reads the configuration of this process: `args` (the program's name first), its environment and
/// the TOML file they name.
///
/// # Errors
/// [`LoadError`]; a wrong configuration is reported as a whole.
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Config, LoadError> {
    load_from(args, std::env::vars_os())
}

/// [`load`] with an environment passed in.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, LoadError> {
    let matches = command().try_get_matches_from(args).map_err(|error| {
        if error.use_stderr() {
            LoadError::Usage(error.render().to_string())
        } else {
            LoadError::Answered {
                text: error.render().to_string(),
                warnings: Vec::new(),
            }
        }
    })?;
    let environment: BTreeMap<String, OsString> = environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("SHUFFLE_"))
        .collect();

    let mut layers = Layers::default();
    if let Some(path) = config_path(&matches, &environment) {
        layers.read_file(&path);
    }
    layers.read_environment(&environment);
    layers.read_flags(&matches);
    let config = layers.finish().map_err(LoadError::Invalid)?;
    if matches.get_flag("print-config") {
        return Err(LoadError::Answered {
            text: config.to_toml(),
            warnings: config.warnings,
        });
    }
    Ok(config)
}

fn command() -> Command {
    let defaults = Config::default();
    let keys = KEYS.iter().map(|key| {
        let help = match (key.show)(&defaults) {
            Some(value) if value.as_array().is_none_or(|ids| !ids.is_empty()) => {
                format!("{} [default: {}]", key.help, plain(&value))
            }
            _ => key.help.to_owned(),
        };
        let heading = match key.name.split_once('.').map_or("", |(section, _)| section) {
            "node" => "Node",
            "executor" => "Executors",
            "security" => "Security",
            "pool" => "Buffer pool",
            "limits" => "Limits",
            "timeouts" => "Timeouts",
            "transport" => "Transport",
            "storage" => "Storage",
            _ => "Logs",
        };
        Arg::new(key.flag)
            .long(key.flag)
            .value_name(key.metavar)
            .help(help)
            .help_heading(heading)
            .overrides_with(key.flag)
            .allow_hyphen_values(true)
    });
    Command::new("shuffle-server")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The shuffle service of one node: holds the network buffer pool and serves subpartitions")
        .after_help(AFTER_HELP)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .help("TOML file [environment: SHUFFLE_CONFIG]"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the effective configuration with the source of each value, and exit"),
        )
        .args(keys)
}

fn config_path(matches: &ArgMatches, environment: &BTreeMap<String, OsString>) -> Option<PathBuf> {
    matches.get_one::<String>("config").map(PathBuf::from).or_else(|| {
        environment
            .get(CONFIG_VARIABLE)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    })
}

#[derive(Default)]
struct Layers {
    config: Config,
    // The strongest value of each key so far.
    values: BTreeMap<&'static str, (String, Source)>,
    problems: Problems,
}

impl Layers {
    fn read_file(&mut self, path: &Path) {
        let source = Source::File(path.to_owned());
        let table = match std::fs::read_to_string(path).map_err(|error| error.to_string()) {
            Ok(text) => text.parse::<toml::Table>().map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let table = match table {
            Ok(table) => table,
            Err(error) => {
                let remedy = format!("cannot be read: {}; give a TOML file or none", error.trim_end());
                return self.problem("config", String::new(), source, remedy);
            }
        };
        for (section, value) in table {
            let Value::Table(entries) = value else {
                self.unknown(&section, plain(&value), &source);
                continue;
            };
            for (name, value) in entries {
                let name = format!("{section}.{name}");
                match KEYS.iter().find(|key| key.name == name) {
                    Some(key) => self.set(key, plain(&value), source.clone()),
                    None => self.unknown(&name, plain(&value), &source),
                }
            }
        }
    }

    fn read_environment(&mut self, environment: &BTreeMap<String, OsString>) {
        for key in KEYS {
            let variable = key.variable();
            if let Some(value) = environment.get(&variable) {
                self.set(key, value.to_string_lossy().into_owned(), Source::Environment(variable));
            }
        }
        // Other programs may own other SHUFFLE_ variables, so an unknown one is no error; one that looks like a slip is said.
        for name in environment.keys().filter(|name| *name != CONFIG_VARIABLE) {
            let nearest = KEYS.iter().map(Key::variable).min_by_key(|known| distance(known, name));
            if let Some(known) = nearest.filter(|known| (1..=2).contains(&distance(known, name))) {
                self.config.warnings.push(format!(
                    "environment variable {name} is not known; did you mean {known}?"
                ));
            }
        }
    }

    fn read_flags(&mut self, matches: &ArgMatches) {
        for key in KEYS {
            if let Some(value) = matches.get_one::<String>(key.flag) {
                self.set(key, value.clone(), Source::Flag(key.flag.to_owned()));
            }
        }
    }

    fn set(&mut self, key: &'static Key, value: String, source: Source) {
        self.values.insert(key.name, (value, source));
    }

    fn unknown(&mut self, name: &str, value: String, source: &Source) {
        let nearest = KEYS
            .iter()
            .map(|key| key.name)
            .min_by_key(|known| distance(known, name));
        let remedy = format!("no such key; the nearest is {}", nearest.unwrap_or("none"));
        self.problem(name, value, source.clone(), remedy);
    }

    fn problem(&mut self, key: &str, value: String, source: Source, remedy: String) {
        self.problems.0.push(Problem {
            key: key.to_owned(),
            value,
            source,
            remedy,
        });
    }

    fn finish(mut self) -> Result<Config, Problems> {
        for key in KEYS {
            let Some((value, source)) = self.values.remove(key.name) else {
                continue;
            };
            if let Err(remedy) = (key.set)(&mut self.config, &value) {
                self.problem(key.name, value, source.clone(), remedy);
            }
            self.config.sources.insert(key.name, source);
        }
        check(&mut self.config, &mut self.problems);
        if self.problems.0.is_empty() {
            Ok(self.config)
        } else {
            Err(self.problems)
        }
    }
}

/// A TOML value as one would write it on the command line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Edits (insert, delete, replace) that turn `left` into `right`.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.chars().count()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}
