//! Queues: order, identifiers, expiry, limits, one copy.

use std::sync::Arc;

use ciqadamq_session_store::{Durability, Inbound, PACKET_IDS, Refusal, Stage, Store, StoreConfig};

use crate::support::{LATER, all, config, open, record, to};

#[test]
fn a_queue_comes_back_in_its_order_with_its_identifiers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(record("c"));
    let mut tickets = Vec::new();
    for n in 0..100u8 {
        tickets.push(store.publish(&[n], LATER, &[to(no, 1 + n % 2)], None).unwrap().0 as u32);
    }
    let sent: Vec<u16> = tickets[..10].iter().map(|t| store.deliver(no, *t).unwrap()).collect();
    store.received(no, sent[1]).wait().unwrap();
    store.acknowledged(no, sent[0]);
    drop(store);

    let store = open(dir.path());
    let session = store.session(store.find("c").unwrap()).unwrap();
    let payloads: Vec<_> = session.queue.iter().skip(1).map(|o| store.message(o.message).unwrap()[0]).collect();
    assert_eq!(payloads, (2..100).collect::<Vec<u8>>());
    assert_eq!(session.queue[0].stage, Stage::Received);
    assert!(store.message(session.queue[0].message).is_none(), "after PUBREC only the identifier is owed");
    let ids: Vec<_> = session.queue.iter().take(9).map(|o| o.packet_id()).collect();
    assert_eq!(ids, sent[1..], "the same identifiers as before");
    // And what was not sent gets one that nothing has.
    let next = store.deliver(no, tickets[10]).unwrap();
    assert!(!sent.contains(&next));
}

#[test]
fn one_message_for_a_thousand_sessions_is_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let sessions: Vec<_> = (0..1000).map(|n| store.begin(record(&format!("c{n}")))).collect();
    let recipients: Vec<_> = sessions.iter().map(|no| to(*no, 1)).collect();
    let (id, commit) = store.publish(&[1; 10_000], LATER, &recipients, None).unwrap();
    commit.wait().unwrap();
    let status = store.status();
    assert_eq!((status.messages, status.owed, status.bytes), (1, 1000, 10_000));
    for no in &sessions {
        let packet_id = store.deliver(*no, id as u32).unwrap();
        store.acknowledged(*no, packet_id);
    }
    assert_eq!((store.status().messages, store.status().bytes), (0, 0));
}

#[test]
fn an_old_message_that_is_still_owed_keeps_its_identifier_to_itself() {
    let store = Store::open(StoreConfig { durability: Durability::Memory, ..config("unused".as_ref()) }).unwrap();
    let no = store.begin(record("c"));
    let (first, _) = store.publish(b"old", LATER, &[to(no, 1)], None).unwrap();
    let held = store.deliver(no, first as u32).unwrap();
    for _ in 0..60_000 {
        let (id, _) = store.publish(b"new", LATER, &[to(no, 1)], None).unwrap();
        let packet_id = store.deliver(no, id as u32).unwrap();
        assert_ne!(packet_id, held);
        store.acknowledged(no, packet_id);
    }
    store.acknowledged(no, held);
    assert_eq!(store.status().owed, 0);
}

#[test]
fn an_identifier_that_is_never_given_out_acknowledges_nothing() {
    let store = Store::open(StoreConfig { durability: Durability::Memory, ..config("unused".as_ref()) }).unwrap();
    let no = store.begin(record("c"));
    let [last, first] = [PACKET_IDS as u16, 1];
    for packet_id in [last, first] {
        assert!(store.inherit(b"x", LATER, to(no, 2), Some(packet_id), Stage::Sent).unwrap().is_some());
    }
    for packet_id in [0, last + 1, u16::MAX] {
        store.received(no, packet_id).wait().unwrap();
        store.acknowledged(no, packet_id);
    }
    assert!(store.session(no).unwrap().queue.iter().all(|owed| owed.stage == Stage::Sent));
    assert_eq!(store.status().owed, 2);
    store.acknowledged(no, first);
    assert_eq!(store.session(no).unwrap().queue[0].packet_id(), last);
}

#[test]
fn everything_so_far_is_synced_though_it_was_written_before_anybody_waited() {
    let dir = tempfile::tempdir().unwrap();
    let hour = std::time::Duration::from_secs(3_600);
    let store = Store::open(StoreConfig { flush_every: hour, ..config(dir.path()) }).unwrap();
    store.begin(record("c"));
    let began = std::time::Instant::now();
    while store.status().commits == 0 {
        assert!(began.elapsed().as_secs() < 10, "it is not written");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // A commit syncs what is in front of it; without one there is nothing to be waited for.
    store.so_far().wait().unwrap();
    assert_eq!(store.status().commits, 2);
    store.so_far().wait().unwrap();
    store.flush().unwrap();
    assert_eq!(store.status().commits, 2);
    store.close();
    assert_eq!(store.so_far().wait(), Err(Refusal::Closed));
    drop(store);
    assert!(all(&open(dir.path())).sessions.contains_key("c"));
}

#[test]
fn a_message_without_a_place_in_a_queue_is_counted() {
    let store = Store::open(StoreConfig { durability: Durability::Memory, ..config("unused".as_ref()) }).unwrap();
    let (full, other, ended) =
        (store.begin(record("full")), store.begin(record("other")), store.begin(record("ended")));
    store.end(ended);
    let to_all = [to(full, 1), to(other, 1), to(ended, 1)];
    for _ in 0..PACKET_IDS {
        drop(store.publish(b"x", LATER, &to_all[..1], None).unwrap());
    }
    assert_eq!(store.status().unkept, 0);
    store.publish(b"x", LATER, &to_all, None).unwrap().1.wait().unwrap();
    assert_eq!(store.inherit(b"x", LATER, to(full, 1), None, Stage::Queued), Ok(None));
    assert_eq!((store.status().unkept, store.owes(full).0, store.owes(other).0), (2, PACKET_IDS as usize, 1));
    // What is kept for nobody is not said to be stored.
    drop(store.publish(b"x", LATER, &to_all[..1], None).unwrap());
    drop(store.publish(b"x", LATER, &[], None).unwrap());
    assert_eq!(store.status().stored, PACKET_IDS + 1);
}

#[test]
fn what_expired_is_let_go_of_but_not_what_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(record("c"));
    let (sent, _) = store.publish(b"sent", 1000, &[to(no, 2)], None).unwrap();
    store.deliver(no, sent as u32).unwrap();
    for n in 0..10 {
        drop(store.publish(b"waits", 1000 + n, &[to(no, 1)], None).unwrap());
    }
    drop(store.retain("t", 1005, b"retained").unwrap());
    assert!(store.sweep(999).is_empty());
    assert_eq!(store.status().owed, 11);
    assert_eq!(store.sweep(1005), ["t"]);
    assert_eq!(store.status().owed, 1 + 4);
    assert_eq!(store.status().expired, 6);
}

#[test]
fn at_a_limit_one_more_message_is_refused_and_room_lets_it_in() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig { max_messages: 3, max_bytes: 100, ..config(dir.path()) }).unwrap();
    let no = store.begin(record("c"));
    let ids: Vec<_> = (0..3).map(|_| store.publish(&[0; 10], LATER, &[to(no, 1)], None).unwrap().0).collect();
    assert_eq!(store.refusal(), Some(Refusal::Full("max_messages")));
    assert_eq!(store.publish(b"x", LATER, &[to(no, 1)], None).err(), Some(Refusal::Full("max_messages")));
    store.drop_queued(no, ids[0] as u32);
    assert_eq!(store.refusal(), None);
    assert_eq!(store.publish(&[0; 90], LATER, &[to(no, 1)], None).err(), Some(Refusal::Full("max_bytes")));
    assert!(store.publish(&[0; 80], LATER, &[to(no, 1)], None).is_ok());
    assert_eq!(store.status().refused, 2);
    // What nobody is owed takes no room.
    let inbound = Inbound { packet_id: 1, hash: 1, message: 0 };
    assert!(store.publish(&[0; 200], LATER, &[], Some((no, inbound))).is_ok());
}

#[test]
fn a_session_that_begins_anew_inherits_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(record("c"));
    drop(store.publish(b"x", LATER, &[to(no, 2)], Some((no, Inbound { packet_id: 1, hash: 1, message: 0 }))).unwrap());
    store.subscribe(no, "f", b"").wait().unwrap();
    let anew = store.begin(record("c"));
    assert_ne!(no, anew);
    assert_eq!(all(&store).sessions["c"], Default::default());
    drop(store);
    assert_eq!(all(&open(dir.path())).sessions["c"], Default::default());
}

#[test]
fn many_publishers_share_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    let no = store.begin(record("c"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let before = store.status().commits;
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let store = store.clone();
            runtime.spawn(async move {
                for _ in 0..20 {
                    store.publish(&[1; 100], LATER, &[to(no, 1)], None).unwrap().1.done().await.unwrap();
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    let commits = store.status().commits - before;
    assert_eq!(store.status().owed, 64 * 20);
    assert!(commits < 64 * 20 / 4, "{commits} commits for {} messages", 64 * 20);
}

#[test]
fn space_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig { segment_bytes: 1 << 20, ..config(dir.path()) }).unwrap();
    let no = store.begin(record("c"));
    let mut ids = Vec::new();
    for _ in 0..120 {
        ids.push(store.publish(&vec![3; 1 << 20], LATER, &[to(no, 1)], None).unwrap().0);
    }
    store.checkpoint().unwrap();
    let full = store.status().disk_bytes;
    assert!(full > 100 << 20, "{full}");
    ids.iter().for_each(|id| store.drop_queued(no, *id as u32));
    // The first one tells sled; the second finds it full of garbage.
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    let empty = store.status().disk_bytes;
    assert!(empty < 10 << 20, "{empty} bytes for nothing");
    // The same by itself, when all of it has expired.
    for _ in 0..120 {
        drop(store.publish(&vec![3; 1 << 20], 1_000, &[to(no, 1)], None).unwrap());
    }
    store.checkpoint().unwrap();
    assert!(store.status().disk_bytes > 100 << 20);
    let began = std::time::Instant::now();
    while store.status().disk_bytes > 10 << 20 {
        assert!(began.elapsed().as_secs() < 30, "{} bytes for nothing", store.status().disk_bytes);
        store.sweep(2_000);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    drop(store);
    assert_eq!(all(&open(dir.path())).sessions.len(), 1);
}

#[test]
fn a_session_of_another_store_goes_on_under_the_same_identifiers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(record("c"));
    // As they were sent there, with the end of a round in between; then what was not sent.
    let sent = [(49_150, Stage::Received), (49_151, Stage::Sent), (1, Stage::Sent), (7, Stage::Sent)];
    for (packet_id, stage) in sent {
        let number = store.inherit(&[1; 10], LATER, to(no, 2), Some(packet_id), stage).unwrap();
        assert!(number.is_some(), "{packet_id}");
    }
    for packet_id in [7, 0, 49_152, u16::MAX] {
        assert_eq!(store.inherit(b"x", LATER, to(no, 2), Some(packet_id), Stage::Sent), Ok(None), "{packet_id}");
    }
    let waits = store.inherit(b"waits", LATER, to(no, 1), None, Stage::Queued).unwrap().unwrap();
    store.so_far().wait().unwrap();
    drop(store);

    let store = open(dir.path());
    let no = store.find("c").unwrap();
    let queue = store.session(no).unwrap().queue;
    let found: Vec<_> = queue.iter().map(|owed| (owed.packet_id(), owed.stage)).collect();
    assert_eq!(found[..4], sent);
    assert_eq!((store.under_way(no), found[4].1), (4, Stage::Queued));
    assert_eq!(store.deliver(no, waits as u32), Some(found[4].0));
    sent.iter().for_each(|(packet_id, _)| store.acknowledged(no, *packet_id));
    assert_eq!(store.status().owed, 1);
}
