//! The configuration file.
#![no_main]

#[allow(dead_code, unused_imports)]
#[path = "../../bin/src/config/mod.rs"]
mod config;

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
