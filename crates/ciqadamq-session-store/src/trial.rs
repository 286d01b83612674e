//! A disk that fails when a test wants it.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

struct Plan {
    dir: PathBuf,
    /// writes and syncs until one fails
    left: usize,
    /// all that come behind it fail too
    is_lasting: bool,
    has_failed: bool,
}

static PLANS: Mutex<Vec<Plan>> = Mutex::new(Vec::new());

/// From now on so many writes and syncs in this directory work, and the next one fails, or all of them.
pub(crate) fn fail_after(dir: &Path, left: usize, is_lasting: bool) {
    PLANS.lock().push(Plan { dir: dir.to_owned(), left, is_lasting, has_failed: false });
}

/// The disk works again. Whether it had failed.
pub(crate) fn heal(dir: &Path) -> bool {
    let mut plans = PLANS.lock();
    let at = plans.iter().position(|plan| plan.dir == dir).expect("it was planned");
    plans.swap_remove(at).has_failed
}

/// A write or a sync of this file.
pub(crate) fn step(path: &Path) -> io::Result<()> {
    let mut plans = PLANS.lock();
    let Some(plan) = plans.iter_mut().find(|plan| path.starts_with(&plan.dir)) else { return Ok(()) };
    if plan.left > 0 {
        plan.left -= 1;
        return Ok(());
    }
    if plan.has_failed && !plan.is_lasting {
        return Ok(());
    }
    plan.has_failed = true;
    Err(io::ErrorKind::StorageFull.into())
}
