//! The effective configuration as TOML, with the source of each value beside it.

use std::fmt::Write as _;

use super::{Config, KEYS, Source};

impl Config {
    /// A TOML file that says the same as this configuration; each line ends in the value's source.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for key in KEYS {
            let (folder, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if folder != section {
                let gap = if section.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}[{folder}]");
                section = folder;
            }
            let source = self.source(key.name);
            let _ = match (key.show)(self) {
                Some(value) => writeln!(text, "{name} = {value}  # {source}"),
                None => writeln!(text, "# {name} is not set  # {source}"),
            };
        }
        text
    }

    /// Where the value of `key` came from.
    #[must_use]
    pub fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }
}
