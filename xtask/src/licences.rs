//! The part of `deny.toml` that needs no tool and no network: licences, and crates that must be there once.
//!
//! The lists stand in `deny.toml` alone, so that this and cargo-deny cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, bail};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, TableLike};

use crate::cargo::{metadata, root};
use crate::spdx;

/// Checks every package of the lock file that is not ours.
pub fn check() -> anyhow::Result<()> {
    let path = root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let policy = Policy::read(&text)?;
    let read = |args: &[&str]| -> anyhow::Result<Vec<Package>> {
        let metadata = metadata(args)?;
        Ok(metadata["packages"].as_array().into_iter().flatten().filter_map(Package::read).collect())
    };
    let packages = read(&["--locked"])?;
    let mut problems: Vec<String> =
        policy.licences(&packages).into_iter().chain(policy.duplicates(&packages)).collect();
    // A workspace of its own; nothing of it goes into the broker.
    problems.extend(policy.licences(&read(&["--locked", "--manifest-path", "perf/Cargo.toml"])?));
    if problems.is_empty() {
        eprintln!("licences: {} packages checked", packages.len());
        return Ok(());
    }
    bail!("deny.toml does not allow:\n  {}", problems.join("\n  "))
}

fn list(item: Option<&Item>) -> BTreeSet<String> {
    item.and_then(Item::as_array).into_iter().flatten().filter_map(|value| value.as_str().map(Into::into)).collect()
}

/// Tables, however they are written.
fn tables(item: Option<&Item>) -> Vec<&dyn TableLike> {
    match item {
        Some(Item::ArrayOfTables(tables)) => tables.iter().map(|table| table as &dyn TableLike).collect(),
        item => {
            let values = item.and_then(Item::as_array).into_iter().flatten();
            values.filter_map(|value| value.as_inline_table().map(|table| table as &dyn TableLike)).collect()
        }
    }
}

/// A package from a registry.
#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
}

impl Package {
    /// `None` for the members of the workspace.
    fn read(value: &Value) -> Option<Self> {
        value["source"].as_str()?;
        Some(Self {
            name: value["name"].as_str()?.into(),
            version: value["version"].as_str()?.into(),
            licence: value["license"].as_str().map(Into::into),
        })
    }
}

#[derive(Debug, Default)]
struct Policy {
    allow: BTreeSet<String>,
    // package -> licences allowed for it alone
    exceptions: BTreeMap<String, BTreeSet<String>>,
    // package -> what its licence is, where the manifest does not say it
    clarify: BTreeMap<String, String>,
    once: BTreeSet<String>,
}

impl Policy {
    fn read(text: &str) -> anyhow::Result<Self> {
        let file: DocumentMut = text.parse().context("deny.toml is no TOML")?;
        let licenses = file.get("licenses").and_then(Item::as_table_like).context("deny.toml has no [licenses]")?;
        let bans = file.get("bans").and_then(Item::as_table_like);
        let text_of = |table: &dyn TableLike, key: &str| table.get(key).and_then(Item::as_str).map(String::from);
        let name = |table: &dyn TableLike| text_of(table, "crate");
        Ok(Self {
            allow: list(licenses.get("allow")),
            exceptions: tables(licenses.get("exceptions"))
                .into_iter()
                .filter_map(|table| Some((name(table)?, list(table.get("allow")))))
                .collect(),
            clarify: tables(licenses.get("clarify"))
                .into_iter()
                .filter_map(|table| Some((name(table)?, text_of(table, "expression")?)))
                .collect(),
            once: tables(bans.and_then(|bans| bans.get("deny")))
                .into_iter()
                .filter(|table| table.get("deny-multiple-versions").and_then(Item::as_bool) == Some(true))
                .filter_map(name)
                .collect(),
        })
    }

    fn licences(&self, packages: &[Package]) -> Vec<String> {
        packages.iter().filter_map(|package| self.licence(package)).collect()
    }

    fn licence(&self, package: &Package) -> Option<String> {
        let Package { name, version, licence } = package;
        let Some(expression) = self.clarify.get(name).or(licence.as_ref()) else {
            return Some(format!("{name} {version}: names no licence"));
        };
        let own = self.exceptions.get(name);
        let allowed = |licence: &str| self.allow.contains(licence) || own.is_some_and(|own| own.contains(licence));
        match spdx::is_satisfied(expression, &allowed) {
            Ok(true) => None,
            Ok(false) => Some(format!("{name} {version}: licence {expression}")),
            Err(error) => Some(format!("{name} {version}: licence {expression}: {error}")),
        }
    }

    fn duplicates(&self, packages: &[Package]) -> Vec<String> {
        let versions = |name: &str| -> Vec<&str> {
            packages.iter().filter(|p| p.name == name).map(|p| p.version.as_str()).collect()
        };
        let found = self.once.iter().map(|name| (name, versions(name))).filter(|(_, versions)| versions.len() > 1);
        found.map(|(name, versions)| format!("{name}: several versions: {}", versions.join(", "))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_licences_and_second_versions_are_named() -> anyhow::Result<()> {
        let policy = Policy::read(
            r#"
            [licenses]
            allow = ["MIT"]
            exceptions = [{ crate = "special", allow = ["MPL-2.0"] }]
            [[licenses.clarify]]
            crate = "silent"
            expression = "MIT"
            [bans]
            deny = [{ crate = "twice", deny-multiple-versions = true }, { crate = "never" }]
            "#,
        )?;
        let package = |name: &str, version: &str, licence: Option<&str>| Package {
            name: name.into(),
            version: version.into(),
            licence: licence.map(Into::into),
        };
        let packages = [
            package("fine", "1.0.0", Some("MIT OR GPL-3.0")),
            package("special", "1.0.0", Some("MPL-2.0")),
            package("silent", "1.0.0", None),
            package("unknown", "1.0.0", None),
            package("viral", "1.0.0", Some("GPL-3.0")),
            package("twice", "1.0.0", Some("MIT")),
            package("twice", "2.0.0", Some("MIT")),
        ];
        let licences = policy.licences(&packages);
        assert_eq!(licences, ["unknown 1.0.0: names no licence", "viral 1.0.0: licence GPL-3.0"]);
        assert_eq!(policy.duplicates(&packages), ["twice: several versions: 1.0.0, 2.0.0"]);
        Ok(())
    }
}
