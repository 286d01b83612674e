//! Reads a file's text and the environment into a [`Config`]: pure, and never stops at the first problem.

use std::collections::HashMap;
use std::path::Path;

use toml_edit::{Document, Item, TableLike, Value};

use super::keys::{self, KEYS};
use super::kinds::Input;
use super::model::Config;
use super::problem::{Place, Problem};

/// What was given: the values, where each came from, and what was wrong.
#[derive(Debug, Default)]
pub struct Reading {
    /// the values
    pub config: Config,
    /// where each key that was set got its value
    pub places: HashMap<&'static str, Place>,
    /// what was wrong
    pub problems: Vec<Problem>,
}

impl Reading {
    /// Where the value of a key came from.
    pub fn place(&self, key: &str) -> Place {
        self.places.get(key).cloned().unwrap_or(Place::Default)
    }

    /// Notes a problem with a key, at the place of its value.
    pub fn complain(&mut self, key: &str, text: impl Into<String>) {
        self.problems.push(Problem { place: self.place(key), key: key.into(), text: text.into() });
    }

    /// Reads the text of a file; `path` is for the messages.
    pub fn file(&mut self, path: &Path, text: &str) {
        let file = File { path, text };
        match Document::parse(text) {
            Ok(document) => self.table(&file, document.as_table(), ""),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let text = format!("is no valid TOML: {}", error.message().replace('\n', "; "));
                self.problems.push(Problem { place: file.place(at), key: String::new(), text });
            }
        }
    }

    /// Reads the environment through `lookup`; a value overrides the file's.
    pub fn environment(&mut self, lookup: impl Fn(&str) -> Option<std::ffi::OsString>) {
        for key in KEYS {
            let Some(name) = key.env else { continue };
            let Some(value) = lookup(name) else { continue };
            // `NAME=` is how a compose file or a unit unsets a variable.
            if value.is_empty() {
                continue;
            }
            self.places.insert(key.path, Place::Env(name));
            let result = match value.to_str() {
                Some(text) => (key.set)(&mut self.config, Input::Text(text)),
                None => Err("is not UTF-8; set it again".into()),
            };
            if let Err(text) = result {
                self.complain(key.path, text);
            }
        }
    }

    fn table(&mut self, file: &File<'_>, table: &dyn TableLike, above: &str) {
        for (name, item) in table.iter() {
            let path = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            let key_at = table.key(name).and_then(|key| key.span());
            let at = key_at.or_else(|| item.span()).map_or(0, |span| span.start);
            let place = file.place(at);
            let mut problem = |text: String| {
                self.problems.push(Problem { place: place.clone(), key: path.clone(), text });
            };
            match (keys::find(&path), item) {
                (Some(key), Item::Value(value)) => {
                    if let Err(text) = (key.set)(&mut self.config, Input::Toml(value)) {
                        problem(text);
                    }
                    self.places.insert(key.path, place);
                }
                (Some(_), _) => problem("expects a value, has a section; write `key = value`".into()),
                (None, _) if keys::is_section(&path) => match item.as_table_like() {
                    Some(inner) => self.table(file, inner, &path),
                    None => problem(format!("is a section; write `[{path}]` and its keys below")),
                },
                (None, item) => problem(unknown(&path, item)),
            }
        }
    }
}

fn unknown(path: &str, item: &Item) -> String {
    let what = match item {
        Item::Table(_) | Item::ArrayOfTables(_) | Item::Value(Value::InlineTable(_)) => "section",
        _ => "key",
    };
    match keys::nearest(path) {
        Some(near) if what == "key" => format!("unknown key; did you mean `{near}`?"),
        _ => match nearest_section(path) {
            Some(near) if what == "section" => format!("unknown section; did you mean `[{near}]`?"),
            _ => format!("unknown {what}; remove it, or see configs/ciqadamq.toml for all keys"),
        },
    }
}

fn nearest_section(path: &str) -> Option<&'static str> {
    let sections = KEYS.iter().filter_map(|key| key.path.rsplit_once('.').map(|(section, _)| section));
    let (distance, near) = sections.map(|section| (strsim::damerau_levenshtein(path, section), section)).min()?;
    (distance <= 2 && distance < path.len()).then_some(near)
}

/// A file's text, for counting lines.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn place(&self, at: usize) -> Place {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        Place::File {
            path: self.path.to_path_buf(),
            line: before.iter().filter(|b| **b == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
        }
    }
}
