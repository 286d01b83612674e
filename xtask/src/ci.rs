//! `cargo xtask ci`: everything a change has to pass.

use crate::{fuzz, lint, test};

/// Tests first: they say most. A failure of one does not hide the others.
pub fn run() -> anyhow::Result<()> {
    let tested = test::run(&test::Args::default());
    let linted = lint::run();
    let fuzzed = fuzz::run(&fuzz::Args::short());
    tested.and(linted).and(fuzzed)
}
