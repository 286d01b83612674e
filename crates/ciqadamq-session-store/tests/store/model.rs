//! Random commands against a model, with crashes at random points of the log.
//!
//! After a crash the store must be what the model was after some number of commands: at least those that were
//! acknowledged, in their order, none by half.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ciqadamq_session_store::{Arrived, Durability, Inbound, Notes, Stage, Store, StoreConfig};
use proptest::prelude::*;

use crate::support::{All, LATER, Seen, all, config, copy, crash, power_cut, record, to};

#[derive(Debug, Clone)]
enum Op {
    Begin(u8),
    End(u8),
    Subscribe(u8, u8),
    Unsubscribe(u8, u8),
    Publish {
        to: Vec<(u8, bool)>,
        inbound: Option<(u8, u8)>,
        /// from another node: which, and of which process
        heard: Option<(u8, u8)>,
        size: u16,
    },
    Deliver(u8),
    Received(u8),
    Acknowledged(u8),
    Dropped(u8),
    Released(u8),
    Retain(u8, u16),
    Clear(u8),
    /// all so far is acknowledged
    Wait,
    Checkpoint,
    Reopen,
    /// everything behind the last acknowledgement is cut at this share of it, and has this byte behind
    Crash(u8, u8),
    /// of what is not durable these blocks are left
    PowerCut(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..4u8;
    prop_oneof![
        2 => client.clone().prop_map(Op::Begin),
        1 => client.clone().prop_map(Op::End),
        1 => (client.clone(), 0..3u8).prop_map(|(c, f)| Op::Subscribe(c, f)),
        1 => (client.clone(), 0..3u8).prop_map(|(c, f)| Op::Unsubscribe(c, f)),
        12 => (
            prop::collection::vec((client.clone(), any::<bool>()), 0..4),
            prop::option::of((client.clone(), 1..4u8)),
            prop::option::of((1..3u8, 1..3u8)),
            0..3000u16,
        )
            .prop_map(|(to, inbound, heard, size)| Op::Publish { to, inbound, heard, size }),
        6 => client.clone().prop_map(Op::Deliver),
        3 => client.clone().prop_map(Op::Received),
        4 => client.clone().prop_map(Op::Acknowledged),
        2 => client.clone().prop_map(Op::Dropped),
        1 => client.prop_map(Op::Released),
        2 => (0..3u8, 0..2000u16).prop_map(|(t, s)| Op::Retain(t, s)),
        1 => (0..3u8).prop_map(Op::Clear),
        3 => Just(Op::Wait),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Reopen),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(share, byte)| Op::Crash(share, byte)),
        2 => any::<u64>().prop_map(Op::PowerCut),
    ]
}

/// The model: what must be there, and the number by which the store is asked.
#[derive(Clone, Default)]
struct Model {
    all: All,
    /// by client: message numbers, beside `queue`
    numbers: BTreeMap<String, Vec<u32>>,
    published: u32,
}

fn name(client: u8) -> String {
    format!("client{client}")
}

impl Model {
    fn index(&self, client: &str, stages: &[Stage]) -> Option<usize> {
        self.all.sessions.get(client)?.queue.iter().position(|(_, _, stage)| stages.contains(stage))
    }

    /// Does `op` to both. The store is asked in the way in which the engine will.
    fn apply(&mut self, store: &Store, op: &Op) {
        let no = |client: &str| store.find(client);
        match op {
            Op::Begin(c) => {
                let client = name(*c);
                store.begin(record(&client));
                self.all.sessions.insert(client.clone(), Seen::default());
                self.numbers.insert(client, Vec::new());
            }
            Op::End(c) => {
                if let Some(no) = no(&name(*c)) {
                    store.end(no);
                }
                self.all.sessions.remove(&name(*c));
                self.numbers.remove(&name(*c));
            }
            Op::Subscribe(c, f) => {
                let Some(no) = no(&name(*c)) else { return };
                drop(store.subscribe(no, &format!("filter/{f}"), &[*f]));
                self.all.sessions.get_mut(&name(*c)).unwrap().subscriptions.insert(format!("filter/{f}"), vec![*f]);
            }
            Op::Unsubscribe(c, f) => {
                let Some(no) = no(&name(*c)) else { return };
                drop(store.unsubscribe(no, &format!("filter/{f}")));
                self.all.sessions.get_mut(&name(*c)).unwrap().subscriptions.remove(&format!("filter/{f}"));
            }
            Op::Publish { to: recipients, inbound, heard, size } => {
                self.published += 1;
                let payload = [self.published.to_le_bytes().to_vec(), vec![7; (*size).into()]].concat();
                let known: Vec<_> = recipients.iter().filter_map(|(c, two)| Some((no(&name(*c))?, *c, *two))).collect();
                let targets: Vec<_> = known.iter().map(|(no, _, two)| to(*no, 1 + u8::from(*two))).collect();
                let hash = self.published.into();
                let from = inbound
                    .and_then(|(c, id)| Some((no(&name(c))?, Inbound { packet_id: id.into(), hash, message: 0 })));
                let (number, origin) = (u64::from(self.published), Some(self.published));
                let heard = heard.map(|(node, boot)| Arrived { node: node.into(), boot: boot.into(), number, origin });
                let notes = Notes { inbound: from, heard, ..Notes::default() };
                let (id, commit) = store.publish_with(&payload, LATER, &targets, notes).unwrap();
                drop(commit);
                if let Some(Arrived { node, boot, .. }) = heard {
                    let of = self.all.heard.entry(node).or_default();
                    if of.boot != boot {
                        (of.boot, of.numbers) = (boot, Default::default());
                    }
                    of.numbers.push_back(number);
                    of.origins.push_back(self.published);
                    assert!(store.has_heard(node, boot, number) && !store.has_heard(node, boot + 1, number));
                    assert!(store.has_origin(node, self.published) && !store.has_origin(node + 1, self.published));
                }
                for (_, c, two) in known {
                    let entry = (Some(payload.clone()), 1 + u8::from(two), Stage::Queued);
                    self.all.sessions.get_mut(&name(c)).unwrap().queue.push(entry);
                    self.numbers.get_mut(&name(c)).unwrap().push(id as u32);
                }
                if let (Some((c, id)), Some(_)) = (inbound, from) {
                    let seen = &mut self.all.sessions.get_mut(&name(*c)).unwrap().inbound;
                    seen.retain(|(other, _)| *other != u16::from(*id));
                    seen.push((u16::from(*id), hash));
                }
            }
            Op::Deliver(c) => {
                let Some(at) = self.index(&name(*c), &[Stage::Queued]) else { return };
                let number = self.numbers[&name(*c)][at];
                assert!(store.deliver(no(&name(*c)).unwrap(), number).is_some());
                self.all.sessions.get_mut(&name(*c)).unwrap().queue[at].2 = Stage::Sent;
            }
            Op::Received(c) => {
                let Some(at) = self.index(&name(*c), &[Stage::Sent]) else { return };
                let no = no(&name(*c)).unwrap();
                let packet_id = store.session(no).unwrap().queue[at].packet_id();
                drop(store.received(no, packet_id));
                let entry = &mut self.all.sessions.get_mut(&name(*c)).unwrap().queue[at];
                (entry.0, entry.2) = (None, Stage::Received);
            }
            Op::Acknowledged(c) => {
                let Some(at) = self.index(&name(*c), &[Stage::Sent, Stage::Received]) else { return };
                let no = no(&name(*c)).unwrap();
                let packet_id = store.session(no).unwrap().queue[at].packet_id();
                store.acknowledged(no, packet_id);
                self.remove(*c, at);
            }
            Op::Dropped(c) => {
                let Some(at) = self.index(&name(*c), &[Stage::Queued]) else { return };
                store.drop_queued(no(&name(*c)).unwrap(), self.numbers[&name(*c)][at]);
                self.remove(*c, at);
            }
            Op::Released(c) => {
                let Some(no) = no(&name(*c)) else { return };
                let Some(oldest) = store.oldest_inbound(no, |_| true) else { return };
                store.released(no, oldest.packet_id);
                self.all.sessions.get_mut(&name(*c)).unwrap().inbound.remove(0);
            }
            Op::Retain(t, size) => {
                let payload = vec![*t; usize::from(*size) + 1];
                drop(store.retain(&format!("topic/{t}"), LATER, &payload).unwrap());
                self.all.retained.insert(format!("topic/{t}"), payload);
            }
            Op::Clear(t) => {
                drop(store.clear(&format!("topic/{t}")));
                self.all.retained.remove(&format!("topic/{t}"));
            }
            Op::Wait | Op::Checkpoint | Op::Reopen | Op::Crash(..) | Op::PowerCut(_) => unreachable!("no command"),
        }
    }

    fn remove(&mut self, client: u8, at: usize) {
        self.all.sessions.get_mut(&name(client)).unwrap().queue.remove(at);
        self.numbers.get_mut(&name(client)).unwrap().remove(at);
    }
}

fn run(ops: &[Op], durability: Durability) {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().join("store0");
    // An hour: nothing is durable before it has to be.
    let flush_every = Duration::from_secs(3600);
    let open = |path: &Path| Store::open(StoreConfig { durability, flush_every, ..config(path) }).unwrap();
    let mut store = Some(open(&path));
    // The states since the last acknowledgement, that one first.
    let mut since = vec![Model::default()];
    let mut acknowledged = 0;
    for (at, op) in ops.iter().enumerate() {
        let model = since.last().unwrap().clone();
        match op {
            Op::Wait => {
                store.as_ref().unwrap().flush().unwrap();
                if durability == Durability::Fsync {
                    since = vec![model];
                    acknowledged = store.as_ref().unwrap().log_end();
                }
            }
            Op::Checkpoint => {
                store.as_ref().unwrap().checkpoint().unwrap();
                since = vec![model];
                acknowledged = store.as_ref().unwrap().log_end();
            }
            Op::Reopen => {
                drop(store.take());
                store = Some(open(&path));
                assert_eq!(all(store.as_ref().unwrap()), model.all, "after closing and opening");
                since = vec![model];
                acknowledged = store.as_ref().unwrap().log_end();
            }
            Op::Crash(share, byte) => {
                store.as_ref().unwrap().flush().unwrap();
                let end = store.as_ref().unwrap().log_end();
                let upto = acknowledged + (end - acknowledged) * u64::from(*share) / 255;
                let next = dir.path().join(format!("store{}", at + 1));
                crash(&path, &next, upto, |at| if *byte < 128 { 0 } else { byte.wrapping_mul(at as u8) });
                drop(store.take());
                let opened = open(&next);
                since = vec![found(&opened, &since)];
                acknowledged = opened.log_end();
                (path, store) = (next, Some(opened));
            }
            Op::PowerCut(blocks) => {
                let open_one = store.as_ref().unwrap();
                open_one.flush().unwrap();
                let next = dir.path().join(format!("store{}", at + 1));
                let mut blocks = *blocks;
                power_cut(&path, &next, open_one.log_durable(), || {
                    blocks = blocks.rotate_left(1);
                    blocks & 1 == 1
                });
                drop(store.take());
                let opened = open(&next);
                since = vec![found(&opened, &since)];
                acknowledged = opened.log_end();
                (path, store) = (next, Some(opened));
            }
            op => {
                let mut model = model;
                model.apply(store.as_ref().unwrap(), op);
                since.push(model);
            }
        }
    }
    let store = store.unwrap();
    store.flush().unwrap();
    assert_eq!(all(&store), since.last().unwrap().all);
    // A copy of the files of a running store is what `kill -9` leaves.
    let copied = dir.path().join("copied");
    copy(&path, &copied);
    assert_eq!(all(&open(&copied)), since.last().unwrap().all);
}

/// The model that a store is found to be after a crash.
fn found(store: &Store, since: &[Model]) -> Model {
    let found = all(store);
    let Some(model) = since.iter().rev().find(|model| model.all == found) else {
        panic!("after a crash there is {found:#?}\nwhich it never was since {:#?}", since[0].all);
    };
    model.clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn after_any_crash_the_store_is_what_it_was_after_all_acknowledged_commands(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops, Durability::Fsync);
    }

    #[test]
    fn after_a_power_cut_the_store_is_what_it_was_after_all_durable_commands(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops, Durability::Interval);
    }
}
