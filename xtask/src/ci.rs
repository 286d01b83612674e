//! `cargo xtask ci`: everything a change has to pass.

use crate::{lint, test};

/// Tests first: they say more. A failure of one does not hide the other.
pub fn run() -> anyhow::Result<()> {
    let tested = test::run(&test::Args::default());
    let linted = lint::run();
    tested.and(linted)
}
