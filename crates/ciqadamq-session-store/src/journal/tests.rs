//! A log whose last write has failed.

use super::*;

fn frame(byte: u8) -> Vec<u8> {
    [vec![0; FRAME_HEAD], vec![byte; 2 * FRAME_ALIGN]].concat()
}

#[test]
fn after_a_failure_nothing_is_written_and_nothing_counts_as_durable_until_the_next_segment_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(dir.path(), 1, 64 << 10);
    journal.rotate().unwrap();
    journal.append(&mut frame(1)).unwrap();
    journal.sync().unwrap();
    let end = journal.end();
    journal.soiled = true;
    assert!(journal.sync().is_err() && journal.append(&mut frame(2)).is_err());
    assert_eq!((journal.end(), journal.segments().end()), (end, end));
    assert_eq!(journal.rotate().unwrap(), end);
    journal.append(&mut frame(3)).unwrap();
    journal.sync().unwrap();
    let end = journal.end();
    drop(journal);

    let mut journal = Journal::new(dir.path(), 1, 64 << 10);
    let mut found = Vec::new();
    journal
        .replay(0, true, |payload, _| {
            found.push(payload[0]);
            Ok(())
        })
        .unwrap();
    assert_eq!((found, journal.segments().end()), (vec![1, 3], end));
}
