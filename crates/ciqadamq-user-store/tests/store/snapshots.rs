//! Snapshots: read while users change, and put into another store.

use std::sync::Arc;

use ciqadamq_core::{DirectoryError, Revision, User, UserDirectory, UserPatch};
use ciqadamq_user_store::UserStore;
use tokio::task::JoinSet;

use crate::support::{Recorder, create, delete, list, open, person, sled, update};

async fn fill(store: &Arc<UserStore>, names: impl Iterator<Item = String>) {
    let mut tasks = JoinSet::new();
    for name in names {
        let store = store.clone();
        tasks.spawn(async move { store.execute(create(&name, "u")).await.map(|_| ()).unwrap() });
        if tasks.len() == 500 {
            tasks.join_next().await.unwrap().unwrap();
        }
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn a_snapshot_shows_one_moment_whatever_changes_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    fill(&store, (0..1500).map(|at| format!("n{at:04}"))).await;
    let expected = list(&*store, None, 1000);
    let mut snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.last_applied(), store.revision());
    let mut seen: Vec<_> = snapshot.by_ref().take(300).map(Result::unwrap).collect();
    for at in (0..1500).step_by(7) {
        store.execute(delete(&format!("n{at:04}"))).await.unwrap();
        store.execute(create(&format!("n{at:04}-new"), "u")).await.unwrap();
        let moved = UserPatch { userid: Some(person("moved")), ..UserPatch::default() };
        store.execute(update(&format!("n{:04}", at + 1), moved)).await.unwrap();
    }
    seen.extend(snapshot.map(Result::unwrap));
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_snapshot_makes_the_same_users_elsewhere_and_tells_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, path) = (open(&dir.path().join("from")), dir.path().join("to"));
    fill(&from, (0..2500).map(|at| format!("n{at:04}"))).await;
    let store = open(&path);
    fill(&store, ["n0000", "old1", "zzz"].into_iter().map(str::to_owned)).await;
    let recorder = Recorder::on(&store);

    let snapshot = from.snapshot().unwrap();
    let last = snapshot.last_applied();
    assert_eq!(store.install_snapshot(last, snapshot).await.unwrap().revision, last);
    let expected = list(&*from, None, 1000);
    assert_eq!(list(&*store, None, 1000), expected);
    assert_eq!(list(&*store, Some("u"), 999), expected);
    assert_eq!((store.status().users, store.revision()), (2500, last));

    let told: Vec<_> = recorder.0.lock().drain(..).collect();
    assert!(told.windows(2).all(|pair| pair[0].revision <= pair[1].revision), "not in order");
    let gone: Vec<_> = told.iter().filter(|c| c.after.is_none()).map(|c| c.username.to_string()).collect();
    assert_eq!(gone, ["old1", "zzz"]);
    let same = usize::from(store.get("n0000").unwrap().unwrap().revision == Revision(1));
    assert!(told.len() >= 2501 && told.len() <= 2502 + same, "{}", told.len());

    // The history goes on behind the snapshot, also after a restart.
    let next = store.execute(create("later", "u")).await.unwrap().revision;
    assert_eq!(next, Revision(last.0 + 1));
    drop(store);
    let store = open(&path);
    assert_eq!((store.status().users, store.revision()), (2501, next));
    assert!(store.get("old1").unwrap().is_none());
    let names = sled_trees(store, &path);
    assert_eq!(names, ["__sled__default", "users.1"]);
}

fn sled_trees(store: Arc<UserStore>, path: &std::path::Path) -> Vec<String> {
    drop(store);
    let db = sled(path);
    let mut names: Vec<_> = db.tree_names().iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_bad_snapshot_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    let store = open(&path);
    fill(&store, ["a", "b", "c"].into_iter().map(str::to_owned)).await;
    let before = list(&*store, None, 10);
    let recorder = Recorder::on(&store);
    let with =
        |name: &str, revision| User { username: crate::support::name(name), revision, ..User::clone(&before[0]) };
    type Records = Vec<Result<Arc<User>, DirectoryError>>;
    let good = |name| Ok(Arc::new(with(name, Revision(1))));
    let bad: [(u64, Records); 4] = [
        (2, vec![good("x")]),
        (9, vec![good("y"), good("x")]),
        (9, vec![good("x"), Ok(Arc::new(with("y", Revision(10))))]),
        (9, vec![good("x"), Err(DirectoryError { reason: "cut off".into() })]),
    ];
    for (last, records) in bad {
        store.install_snapshot(Revision(last), records.into_iter()).await.unwrap_err();
        assert_eq!(list(&*store, None, 10), before);
        assert_eq!(store.revision(), Revision(3));
        assert_eq!(store.status().read_only, None);
    }
    assert!(recorder.0.lock().is_empty());
    store.install_snapshot(Revision(9), vec![good("x")].into_iter()).await.unwrap();
    assert_eq!(list(&*store, None, 10).len(), 1);
    drop(store);
    assert_eq!(open(&path).revision(), Revision(9));
}

#[tokio::test]
async fn a_snapshot_is_given_up_when_all_users_are_replaced_and_few_may_be_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    fill(&store, (0..600).map(|at| format!("n{at:04}"))).await;
    let mut snapshots: Vec<_> = (0..4).map(|_| store.snapshot().unwrap()).collect();
    assert!(store.snapshot().is_err());
    let mut reader = snapshots.pop().unwrap();
    assert!(reader.next().unwrap().is_ok());
    let records = snapshots.pop().unwrap().collect::<Vec<_>>();
    store.install_snapshot(store.revision(), records.into_iter()).await.unwrap();
    let rest: Vec<_> = reader.collect();
    assert!(rest.len() < 600 && rest.last().unwrap().is_err());
    assert_eq!(store.snapshot().unwrap().map(Result::unwrap).count(), 600);
}
