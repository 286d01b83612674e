//! A process that is killed at a random moment while it publishes, delivers, and folds its log: what it had acknowledged is
//! there, in order.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ciqadamq_session_store::{Store, StoreConfig};

use crate::support::{LATER, all, config, open, record, to};

const DIRECTORY: &str = "CIQADAMQ_TEST_SESSION_STORE";
const CLIENTS: u64 = 5;

#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    println!("seed {seed}");
    let mut random = u64::from(seed) | 1;
    let mut acknowledged = 0;
    for round in 0..8 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::process_that_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(DIRECTORY, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.filter_map(|line| line.strip_prefix("> ").map(str::to_owned)).collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(150 + random % 350));
        child.kill().unwrap();
        child.wait().unwrap();
        let lines = reader.join().unwrap();
        // What was acknowledged, less what was delivered to its end: both were printed after they were done.
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let mut done: BTreeMap<u64, u64> = BTreeMap::new();
        for line in &lines {
            let mut words = line.split(' ');
            let (what, client, n) = (words.next(), words.next(), words.next().and_then(|n| n.parse::<u64>().ok()));
            let (Some(client), Some(n)) = (client.and_then(|c| c.parse::<u64>().ok()), n) else { continue };
            let map = if what == Some("acknowledged") { &mut last } else { &mut done };
            let entry = map.entry(client).or_default();
            *entry = n.max(*entry);
        }
        acknowledged += last.len();
        let store = open(&path);
        let found = all(&store);
        for (client, last) in last {
            let queue = &found.sessions[&format!("c{client}")].queue;
            let numbers: Vec<u64> = queue
                .iter()
                .map(|(payload, ..)| u64::from_le_bytes(payload.as_ref().unwrap()[..8].try_into().unwrap()))
                .collect();
            assert!(numbers.is_sorted() && numbers.windows(2).all(|w| w[0] + 1 == w[1]), "round {round}: {numbers:?}");
            let done = done.get(&client).copied().unwrap_or(0);
            if last > done {
                let (first, newest) = (numbers[0], numbers[numbers.len() - 1]);
                assert!(newest >= last, "round {round}: {last} was acknowledged, the newest is {newest}");
                assert!(first <= done + 1, "round {round}: {done} was delivered, the oldest is {first}");
            }
        }
    }
    assert!(acknowledged >= 8, "the processes did nothing");
}

#[test]
#[ignore = "the process of `a_killed_process_loses_nothing_it_acknowledged`"]
fn process_that_is_killed() {
    let Some(path) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let store = Store::open(StoreConfig { checkpoint_bytes: 256 << 10, ..config(&path) }).unwrap();
    // Numbers go on where the newest message in the queues ends.
    let mut next = vec![1u64; CLIENTS as usize];
    let mut waiting = vec![std::collections::VecDeque::new(); CLIENTS as usize];
    for client in 0..CLIENTS {
        let name = format!("c{client}");
        let no = store.find(&name).unwrap_or_else(|| store.begin(record(&name)));
        for owed in store.session(no).unwrap().queue {
            let n = u64::from_le_bytes(store.message(owed.message).unwrap()[..8].try_into().unwrap());
            next[client as usize] = n + 1;
            waiting[client as usize].push_back((owed.message as u32, n));
        }
        // Numbers that were delivered to their end do not come back.
        let floor = store.session(no).unwrap().record.created_at as u64;
        next[client as usize] = next[client as usize].max(floor + 1);
    }
    let mut out = std::io::stdout();
    loop {
        for client in 0..CLIENTS {
            let at = client as usize;
            let no = store.find(&format!("c{client}")).unwrap();
            let n = next[at];
            next[at] += 1;
            let mut payload = n.to_le_bytes().to_vec();
            payload.resize(2000, 1);
            let (id, commit) = store.publish(&payload, LATER, &[to(no, 1)], None).unwrap();
            store.change(no, |record| record.created_at = n as i64);
            commit.wait().unwrap();
            writeln!(out, "\n> acknowledged {client} {n}").unwrap();
            waiting[at].push_back((id as u32, n));
            if waiting[at].len() > 20 {
                let (ticket, n) = waiting[at].pop_front().unwrap();
                writeln!(out, "\n> delivered {client} {n}").unwrap();
                if let Some(packet_id) = store.deliver(no, ticket) {
                    store.acknowledged(no, packet_id);
                } else {
                    store.drop_queued(no, ticket);
                }
            }
        }
    }
}
