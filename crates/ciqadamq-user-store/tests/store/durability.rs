//! What was acknowledged is there after `kill -9`.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

use ciqadamq_core::UserDirectory;
use tokio::task::JoinSet;

use crate::support::{CHILD_DIRECTORY, child, create, delete, open};

#[test]
fn acknowledged_changes_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    let (mut present, mut absent) = (HashSet::new(), HashSet::new());
    let mut revision = 0;
    for (round, enough) in [1, 60, 400].into_iter().enumerate() {
        let mut process = child(&[], "durability::process_that_is_killed", &path);
        let mut process =
            process.env("USER_STORE_TEST_ROUND", round.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut acknowledged = 0;
        // The kill comes right after an acknowledgement; what is in the pipe still counts.
        for line in lines.map_while(Result::ok) {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["created", name, at] => {
                    present.insert(name.to_owned());
                    revision = revision.max(at.parse::<u64>().unwrap());
                }
                // From here on its record may or may not be there.
                ["deleting", name] => assert!(present.remove(name)),
                ["deleted", name] => assert!(absent.insert(name.to_owned())),
                _ => continue,
            }
            acknowledged += 1;
            if acknowledged == enough {
                process.kill().unwrap();
            }
        }
        process.wait().unwrap();
        assert!(acknowledged >= enough, "the process ended after {acknowledged}");

        let store = open(&path);
        assert!(store.revision().0 >= revision);
        for name in &present {
            assert!(store.get(name).unwrap().is_some(), "{name} was acknowledged and is lost");
        }
        for name in &absent {
            assert!(store.get(name).unwrap().is_none(), "{name} was deleted and is back");
        }
    }
}

#[test]
#[ignore = "the process that `acknowledged_changes_survive_a_kill` kills"]
fn process_that_is_killed() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY).map(PathBuf::from) else { return };
    let round = std::env::var("USER_STORE_TEST_ROUND").unwrap();
    let say = |text: String| writeln!(std::io::stdout().lock(), "{text}").unwrap();
    // The test harness has begun a line.
    say(String::new());
    let store = open(&path);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..8 {
            let (store, round) = (store.clone(), round.clone());
            tasks.spawn(async move {
                for at in 0u64.. {
                    let name = format!("r{round}t{task}n{at}");
                    let applied = store.execute(create(&name, "u")).await.unwrap();
                    say(format!("created {name} {}", applied.revision));
                    if at % 3 == 0 {
                        say(format!("deleting {name}"));
                        store.execute(delete(&name)).await.unwrap();
                        say(format!("deleted {name}"));
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}
