//! How much it is said to be.

use super::*;
use crate::SessionRecord;

#[test]
fn what_sessions_hold_counts_as_long_as_they_hold_it() {
    let mut state = State::default();
    let record =
        |will: usize| SessionRecord { client_id: "c".into(), connection: vec![1; will], ..SessionRecord::default() };
    let filter = "f".repeat(1000);
    for n in 0..2 {
        state.apply(Command::Session { no: 1, record: record(5000) }, 0);
        state.apply(Command::Session { no: 1, record: record(2000) }, 0);
        let without = state.size();
        // Twice the same one, and one that goes.
        for options in [&[0; 50][..], &[0; 100]] {
            state.apply(Command::Subscribe { no: 1, filter: &filter, options }, 0);
        }
        state.apply(Command::Subscribe { no: 1, filter: "other", options: &[0; 100] }, 0);
        state.apply(Command::Unsubscribe { no: 1, filter: "other" }, 0);
        assert_eq!(state.size() - without, size_of_subscription(&filter, &[0; 100]));
        let encoded = state.sessions[&1].encode().len() as u64;
        assert!((encoded..encoded + 512).contains(&state.size()), "round {n}: {encoded}, and {}", state.size());
        let counted = state.size();
        state.count();
        assert_eq!(state.size(), counted);
        state.apply(Command::End { no: 1 }, 0);
        assert_eq!(state.size(), 0);
    }
}
