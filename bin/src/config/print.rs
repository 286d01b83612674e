//! The effective configuration as TOML, secrets redacted.

use super::keys::KEYS;
use super::model::Config;

/// Every key with its value; keys without a value as comments. Readable as a configuration file again, but for secrets.
pub fn effective(config: &Config) -> String {
    let mut text = String::new();
    let mut current = "";
    let defaults = Config::default();
    for key in KEYS {
        let (section, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if section != current {
            text.push_str(&format!("\n[{section}]\n"));
            current = section;
        }
        match (key.show)(config) {
            Some(value) => text.push_str(&format!("{name} = {}\n", value.trim())),
            // Left out it would have a value: it is switched off.
            None if (key.show)(&defaults).is_some() => text.push_str(&format!("{name} = \"\"\n")),
            None => text.push_str(&format!("# {name} is not set\n")),
        }
    }
    text
}
