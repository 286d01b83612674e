//! The bounds of the queue, and the end.

use ciqadamq_core::{Command, ExecuteError, PasswordHash, UserChange, UserDirectory, UserObserver};
use ciqadamq_user_store::{StoreConfig, UserStore};
use std::sync::Arc;
use tokio::task::JoinSet;

use crate::support::{Gate, Recorder, create, open, settle};

#[tokio::test]
async fn a_full_queue_is_busy_and_what_was_queued_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { queue: 3, ..StoreConfig::at(dir.path().join("users")) };
    let store = UserStore::open(config).unwrap();
    let (at_gate, go) = Gate::on(&store);
    let mut waiting = JoinSet::new();
    for name in ["gate", "a", "b", "c"] {
        let store = store.clone();
        waiting.spawn(async move { store.execute(create(name, "u")).await });
        settle().await;
        if name == "gate" {
            at_gate.recv().unwrap();
        }
    }
    assert!(matches!(store.execute(create("d", "u")).await, Err(ExecuteError::Busy)));
    assert_eq!(store.counters().busy, 1);
    go.send(()).unwrap();
    assert!(waiting.join_all().await.iter().all(Result::is_ok));
    assert!(store.get("c").unwrap().is_some() && store.get("d").unwrap().is_none());
}

#[tokio::test]
async fn closing_finishes_what_waits_and_refuses_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    let store = open(&path);
    let (at_gate, go) = Gate::on(&store);
    let mut waiting = JoinSet::new();
    for at in 0..100 {
        let store = store.clone();
        let name = if at == 0 { "gate".to_owned() } else { format!("n{at}") };
        waiting.spawn(async move { store.execute(create(&name, "u")).await });
    }
    settle().await;
    at_gate.recv().unwrap();
    go.send(()).unwrap();
    store.close();
    store.close();
    assert!(waiting.join_all().await.iter().all(Result::is_ok));
    assert!(matches!(store.execute(create("late", "u")).await, Err(ExecuteError::Unavailable(_))));
    assert!(store.status().read_only.is_some());
    assert!(store.get("n99").unwrap().is_some() && store.get("late").unwrap().is_none());
    drop(store);
    assert_eq!(open(&path).status().users, 100);
}

#[tokio::test]
async fn a_panicking_observer_stops_neither_the_others_nor_the_writer() {
    struct Panics;
    impl UserObserver for Panics {
        fn user_changed(&self, _: &UserChange) {
            panic!("an observer of this test panics");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    store.observe(Arc::new(Panics));
    let recorder = Recorder::on(&store);
    for name in ["a", "b"] {
        let applied = store.execute(create(name, "u")).await.unwrap();
        assert!(recorder.heard(applied.revision));
    }
}

#[tokio::test]
async fn an_absurd_password_hash_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let mut command = create("a", "u");
    if let Command::Create { password, .. } = &mut command {
        *password = PasswordHash("x".repeat(1025));
    }
    assert!(matches!(store.execute(command).await, Err(ExecuteError::Unavailable(_))));
    assert_eq!(store.status().users, 0);
}
