//! A log whose last write has failed, and logs that a power cut or damage has been at.

use proptest::prelude::*;

use super::*;

const STORE: u64 = 1;
const SEGMENT: u64 = 64 << 10;
/// What a disk writes as a whole.
const PAGE: usize = 4096;

/// Its content says which one it is.
fn frame(n: u8, bytes: usize) -> Vec<u8> {
    vec![n; (FRAME_HEAD + bytes).next_multiple_of(FRAME_ALIGN)]
}

fn write(journal: &mut Journal, n: u8, bytes: usize) {
    journal.append(&mut frame(n, bytes)).unwrap();
}

fn replayed(dir: &Path) -> Result<(Vec<u8>, Journal), ReplayError> {
    let mut journal = Journal::new(dir, STORE, SEGMENT);
    let mut found = Vec::new();
    journal.replay(0, true, |payload, _| {
        found.push(payload[0]);
        Ok(())
    })?;
    Ok((found, journal))
}

fn segment(dir: &Path, base: u64) -> PathBuf {
    dir.join(format!("{base:016x}.log"))
}

fn change(path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    f(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn after_a_failure_nothing_is_written_and_nothing_counts_as_durable_until_the_next_segment_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 20);
    journal.sync().unwrap();
    let end = journal.end();
    journal.soiled = true;
    assert!(journal.sync().is_err() && journal.append(&mut frame(2, 20)).is_err());
    assert_eq!((journal.end(), journal.segments().end()), (end, end));
    assert_eq!(journal.rotate().unwrap(), end);
    write(&mut journal, 3, 20);
    journal.sync().unwrap();
    let end = journal.end();
    drop(journal);

    let (found, journal) = replayed(dir.path()).unwrap();
    assert_eq!((found, journal.segments().end()), (vec![1, 3], end));
}

/// A log, and which pages a power cut leaves of what was not synced.
#[derive(Debug, Clone)]
struct PowerCut {
    /// bytes of each frame, and whether it is synced
    frames: Vec<(usize, bool)>,
    /// by page behind the last sync, as often as there are pages
    kept: Vec<bool>,
}

fn power_cut() -> impl Strategy<Value = PowerCut> {
    let frames = prop::collection::vec((1..3 * PAGE, prop::bool::weighted(0.3)), 1..30);
    (frames, prop::collection::vec(any::<bool>(), 64)).prop_map(|(frames, kept)| PowerCut { frames, kept })
}

/// Writes all frames; returns how many of them are durable, and up to which offset.
fn fill_log(journal: &mut Journal, frames: &[(usize, bool)]) -> (usize, u64) {
    let mut durable = (0, 0);
    for (n, (bytes, is_synced)) in frames.iter().enumerate() {
        let before = journal.end();
        write(journal, n as u8, *bytes);
        if journal.durable == before {
            // Another segment has begun.
            durable = (n, before);
        }
        if *is_synced {
            journal.sync().unwrap();
            durable = (n + 1, journal.end());
        }
    }
    durable
}

/// Takes pages out of the last segment that were not durable.
fn cut(dir: &Path, journal: &Journal, durable: u64, kept: &[bool]) {
    let (base, _) = journal.current.as_ref().unwrap();
    let first = (HEADER + durable - base) as usize;
    change(&segment(dir, *base), |bytes| {
        let pages = bytes.chunks_mut(PAGE).enumerate();
        for ((n, page), is_kept) in pages.skip(first / PAGE).zip(kept.iter().cycle()) {
            // Of the page in which it begins the front was on the disk before.
            let front = first.saturating_sub(n * PAGE);
            if !is_kept && front < page.len() {
                page[front..].fill(0);
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_power_cut_that_leaves_any_pages_of_what_was_not_synced_is_no_damage(case in power_cut()) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
        journal.rotate().unwrap();
        let (durable, at) = fill_log(&mut journal, &case.frames);
        cut(dir.path(), &journal, at, &case.kept);
        let (found, mut journal) = replayed(dir.path()).unwrap();
        prop_assert!(found.len() >= durable, "{durable} were synced, and there are {found:?}");
        prop_assert!(found.iter().enumerate().all(|(n, frame)| n == usize::from(*frame)), "{found:?}");
        // It goes on behind that, and what came after the cut is not taken for what was in front of it.
        write(&mut journal, 255, PAGE);
        journal.sync().unwrap();
        let (again, _) = replayed(dir.path()).unwrap();
        prop_assert_eq!(again, [found, vec![255]].concat());
    }

    #[test]
    fn a_flipped_bit_in_what_is_said_to_be_durable_is_damage(
        sizes in prop::collection::vec(1..3 * PAGE, 1..30),
        place in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
        journal.rotate().unwrap();
        fill_log(&mut journal, &sizes.iter().map(|bytes| (*bytes, true)).collect::<Vec<_>>());
        let durable = journal.end();
        write(&mut journal, 255, 1);
        let at = place.index(durable as usize) as u64;
        let base = *journal.segments.all.read().range(..=at).next_back().unwrap().0;
        change(&segment(dir.path(), base), |bytes| bytes[(HEADER + at - base) as usize] ^= 1 << bit);
        let outcome = replayed(dir.path()).map(|(found, _)| found);
        prop_assert!(matches!(outcome, Err(ReplayError::Corrupt(_))), "{outcome:?}");
    }
}

#[test]
fn what_a_client_has_made_to_look_like_a_commit_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 100);
    journal.sync().unwrap();
    let torn = journal.end();
    write(&mut journal, 2, 100);
    // Heads of another store, each at its place, which say that all in front of them is durable.
    let mut forged = frame(3, 20 << 10);
    let end = journal.end() as usize;
    for at in (2 * FRAME_ALIGN..forged.len() - FRAME).step_by(2 * FRAME_ALIGN) {
        let head = &mut forged[at..at + FRAME];
        let offset = (end + at) as u64;
        head[..4].copy_from_slice(&16u32.to_le_bytes());
        head[8..16].copy_from_slice(&offset.to_le_bytes());
        head[16..24].copy_from_slice(&offset.to_le_bytes());
        let own = checksum(STORE + 1, offset, &head[..FRAME - 4]);
        head[FRAME - 4..].copy_from_slice(&own.to_le_bytes());
    }
    journal.append(&mut forged).unwrap();
    change(&segment(dir.path(), 0), |bytes| bytes[(HEADER + torn) as usize + FRAME] ^= 1);
    let (found, journal) = replayed(dir.path()).unwrap();
    assert_eq!((found, journal.end()), (vec![1], torn));
}

#[test]
fn what_an_fsync_failed_for_may_be_missing_in_front_of_a_segment_until_a_checkpoint_has_taken_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 20);
    journal.sync().unwrap();
    let durable = journal.end();
    write(&mut journal, 2, 20);
    journal.soiled = true;
    let cut = journal.rotate().unwrap();
    write(&mut journal, 3, 20);
    journal.sync().unwrap();
    write(&mut journal, 4, 20);
    let lose = || change(&segment(dir.path(), 0), |bytes| bytes[(HEADER + durable) as usize..].fill(0));
    lose();
    let (found, again) = replayed(dir.path()).unwrap();
    assert_eq!((found, again.end()), (vec![1], durable));
    assert!(!segment(dir.path(), cut).exists());

    // A checkpoint from there on, and what is behind it is durable again.
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 20);
    journal.soiled = true;
    let cut = journal.rotate().unwrap();
    write(&mut journal, 2, 20);
    journal.sync().unwrap();
    assert_eq!(journal.durable, 0);
    journal.forget_before(cut).unwrap();
    write(&mut journal, 3, 20);
    journal.sync().unwrap();
    assert_eq!(journal.durable, journal.end());
}

#[test]
fn a_log_of_another_version_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 20);
    let path = segment(dir.path(), 0);
    change(&path, |bytes| {
        bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..HEADER_FIRST - 4]);
        bytes[HEADER_FIRST - 4..HEADER_FIRST].copy_from_slice(&sum.to_le_bytes());
    });
    let before = fs::read(&path).unwrap();
    let outcome = replayed(dir.path()).map(|(found, _)| found);
    assert!(matches!(outcome, Err(ReplayError::Version(_))), "{outcome:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    // A number that was not written by any version is damage.
    change(&path, |bytes| bytes[8] ^= 4);
    assert!(matches!(replayed(dir.path()), Err(ReplayError::Corrupt(_))));
}

#[test]
fn what_may_not_be_durable_is_written_again_when_the_log_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), STORE, SEGMENT);
    journal.rotate().unwrap();
    write(&mut journal, 1, 20);
    journal.sync().unwrap();
    write(&mut journal, 2, 20);
    drop(journal);
    let before = fs::read(segment(dir.path(), 0)).unwrap();
    for (works, is_read) in [(0, false), (1, false), (2, true)] {
        crate::trial::fail_after(dir.path(), works, true);
        assert_eq!(replayed(dir.path()).is_ok(), is_read, "{works}");
        crate::trial::heal(dir.path());
        assert_eq!(fs::read(segment(dir.path(), 0)).unwrap(), before);
    }
}
