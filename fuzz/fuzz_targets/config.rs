//! The configuration file.
#![no_main]

#[allow(dead_code, unused_imports, unexpected_cfgs)]
#[path = "../../bin/src/config/mod.rs"]
mod config;

// What the configuration asks of the rest of the product, without the engine that the rest brings along: the sources that
// need none, under the names of the crates where they are.
#[allow(dead_code)]
#[path = "../../crates/ciqadamq-cluster/src/config.rs"]
mod cluster_config;
#[path = "../../bin/src/settings/cluster.rs"]
mod cluster_settings;
extern crate self as ciqadamq_cluster;
extern crate self as ciqadamq_gate;
pub use cluster_config::{ClusterConfig, RaftSettings};

mod settings {
    pub(crate) use crate::cluster_settings::cluster;
}

/// Only asked about files, which are not looked at here.
pub fn tls_config(_: &Path, _: &Path, _: Option<&Path>) -> Result<(), String> {
    unreachable!("a text alone names no files that are looked at")
}

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(data) else { return Corpus::Reject };
    match config::from_text(text, &["rmqtt-retainer", "rmqtt-http-api"]) {
        Ok(config) => {
            let shown = config::effective(&config);
            assert!(!shown.contains("hunter2"), "a secret shows");
            // Secrets are redacted, so they do not come back.
            if shown.contains("(redacted)") {
                return Corpus::Keep;
            }
            let again = config::from_text(&shown, &["rmqtt-retainer", "rmqtt-http-api"])
                .unwrap_or_else(|problems| panic!("{shown}\n{problems}"));
            assert_eq!(config::effective(&again), shown);
        }
        Err(problems) => {
            let told = problems.to_string();
            assert!(!told.is_empty() && told.lines().all(|line| line.len() < 4096), "{told}");
        }
    }
    Corpus::Keep
});
