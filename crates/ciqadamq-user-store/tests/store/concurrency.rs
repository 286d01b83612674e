//! Many at once: one winner, every change heard, whole pages, shared commits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::{ExecuteError, Rejection, UserDirectory, UserPatch};
use ciqadamq_user_store::{StoreConfig, UserStore};
use tokio::task::JoinSet;

use crate::support::{Recorder, create, delete, list, open, person, update};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_concurrent_creations_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    for round in 0..10 {
        let mut tasks = JoinSet::new();
        for task in 0..50 {
            let store = store.clone();
            tasks.spawn(async move {
                let userid = format!("u{task}");
                store.execute(create(&format!("name{round}"), &userid)).await.map(|applied| (userid, applied.revision))
            });
        }
        let (won, lost): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 49));
        for result in lost {
            assert!(matches!(result, Err(ExecuteError::Rejected(Rejection::Exists))));
        }
        let user = store.get(&format!("name{round}")).unwrap().unwrap();
        assert_eq!((user.userid.to_string(), user.revision), won.into_iter().next().unwrap().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn observers_hear_every_change_in_order_and_before_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let recorder = Recorder::on(&store);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (store, recorder) = (store.clone(), recorder.clone());
        tasks.spawn(async move {
            let mut revisions = Vec::new();
            for round in 0..20 {
                let own = format!("t{task}");
                let command = match round % 3 {
                    0 => create(&own, "u"),
                    1 => update(&own, UserPatch { userid: Some(person("v")), ..UserPatch::default() }),
                    _ => delete(&own),
                };
                let revision = store.execute(command).await.unwrap().revision;
                assert!(recorder.heard(revision), "{revision} answered before it was told");
                assert!(store.revision() >= revision);
                assert_eq!(store.get(&own).unwrap().is_some(), round % 3 != 2, "read after the answer");
                assert!(store.execute(delete("nobody")).await.is_err());
                revisions.push(revision);
            }
            revisions
        });
    }
    let mut answered: Vec<_> = tasks.join_all().await.concat();
    answered.sort();
    let told: Vec<_> = recorder.0.lock().iter().map(|change| change.revision).collect();
    assert_eq!(told, answered);
    let mut last = HashMap::new();
    for change in recorder.0.lock().iter() {
        last.insert(change.username.clone(), change.after.clone());
    }
    for (username, after) in last {
        assert_eq!(store.get(username.as_str()).unwrap(), after);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_are_ordered_and_complete_while_users_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let mut tasks = JoinSet::new();
    for at in 0..150 {
        let store = store.clone();
        tasks.spawn(async move { store.execute(create(&format!("n{at:03}"), "stays")).await.map(|_| ()).unwrap() });
    }
    tasks.join_all().await;

    let over = Arc::new(AtomicBool::new(false));
    let mut churn = JoinSet::new();
    for task in 0..4 {
        let (store, over) = (store.clone(), over.clone());
        churn.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                for at in 0..150 {
                    let own = format!("n{at:03}-{task}");
                    store.execute(create(&own, "goes")).await.unwrap();
                    let moved = UserPatch { userid: Some(person("moved")), ..UserPatch::default() };
                    store.execute(update(&own, moved)).await.unwrap();
                    store.execute(delete(&own)).await.unwrap();
                }
            }
        });
    }
    let reader = store.clone();
    let read = tokio::task::spawn_blocking(move || {
        let enough = Instant::now() + Duration::from_secs(2);
        let mut listings = 0;
        while Instant::now() < enough || listings < 3 {
            let all = list(&*reader, None, 7);
            assert!(all.windows(2).all(|pair| pair[0].username < pair[1].username), "not in order");
            let stays = all.iter().filter(|user| user.userid == person("stays")).count();
            assert_eq!(stays, 150);
            assert_eq!(list(&*reader, Some("stays"), 13).len(), 150);
            for userid in ["goes", "moved"] {
                assert!(list(&*reader, Some(userid), 3).iter().all(|user| user.userid == person(userid)));
            }
            listings += 1;
        }
        assert!(listings > 0);
    })
    .await;
    over.store(true, Ordering::Relaxed);
    churn.join_all().await;
    read.unwrap();
}

#[test]
fn a_page_names_the_next_one_only_if_there_is_more() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for username in ["a", "b", "c"] {
        runtime.block_on(store.execute(create(username, "u"))).unwrap();
    }
    let page = |after: Option<&str>, limit| {
        let query = ciqadamq_core::UserQuery { after: after.map(str::to_owned), userid: None, limit };
        let page = store.list(&query).unwrap();
        (page.users.iter().map(|user| user.username.to_string()).collect::<Vec<_>>().concat(), page.next)
    };
    assert_eq!(page(None, 2), ("ab".into(), Some("b".into())));
    assert_eq!(page(Some("b"), 2), ("c".into(), None));
    assert_eq!(page(None, 3), ("abc".into(), None));
    assert_eq!(page(Some("aa"), 1), ("b".into(), Some("b".into())), "`after` need not exist");
    assert_eq!(page(Some("not a / name \u{7f}"), 9), (String::new(), None));
    assert_eq!(page(None, 0), (String::new(), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_commands_share_commits_and_a_lonely_one_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let seconds = load(&store, 64, 25).await;
    let counters = store.counters();
    assert_eq!(counters.applied, 64 * 25);
    assert!(counters.commits * 4 < counters.applied, "{counters:?} in {seconds} s");

    store.execute(create("lonely", "u")).await.unwrap();
    assert_eq!(store.counters().commits, counters.commits + 1);
}

/// A figure, not a check: `cargo test -p ciqadamq-user-store --test store -- --ignored --exact concurrency::throughput --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, checks nothing"]
async fn throughput() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store = UserStore::open(StoreConfig::at(dir.path().join("users"))).unwrap();
    let seconds = load(&store, 64, 1000).await;
    let counters = store.counters();
    println!("64 writers: {:.0} commands/s, {:.1} a commit", 64_000.0 / seconds, 64_000.0 / counters.commits as f64);
    let began = Instant::now();
    for at in 0..100_000 {
        assert!(store.get(&format!("w{}-{}", at % 64, at % 1000)).unwrap().is_some());
    }
    println!("get: {:.2} us", began.elapsed().as_secs_f64() * 10.0);
    let began = Instant::now();
    assert_eq!(list(&*store, None, 1000).len(), 64_000);
    println!("list: {:.2} us a user", began.elapsed().as_secs_f64() * 1e6 / 64_000.0);
    println!("{:?}", store.status());
}

async fn load(store: &Arc<UserStore>, writers: usize, each: usize) -> f64 {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let store = store.clone();
        tasks.spawn(async move {
            for at in 0..each {
                store.execute(create(&format!("w{writer}-{at}"), "u")).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    began.elapsed().as_secs_f64()
}
