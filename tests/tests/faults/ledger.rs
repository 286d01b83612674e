//! What was acknowledged, and what must follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use ciqadamq_tests::{Cluster, Version, eventually};

/// How long before and after a fault of its node a device's or a publisher's connection proves nothing: a message may be in
/// that node's memory, or its routes may be gone for a moment.
const UNSURE_BEFORE: Duration = Duration::from_millis(1500);
const UNSURE_AFTER: Duration = Duration::from_secs(12);
/// How long after its SUBACK a subscription may be unknown to other nodes; see the known limits.
const KNOWN: Duration = Duration::from_secs(1);
/// How long a message may take to a device, an election included.
const DELIVERY: Duration = Duration::from_secs(8);

/// What a user may be, as far as its owner knows: several, if a change had no answer.
type Possible = BTreeSet<Option<String>>;

/// A message that a node acknowledged.
#[derive(Debug, Clone)]
pub struct Acked {
    pub person: &'static str,
    pub text: String,
    pub sent: Instant,
    pub acked: Instant,
    pub node: u8,
}

/// A subscription that was acknowledged, until its connection ended.
#[derive(Debug, Clone)]
pub struct Epoch {
    pub device: String,
    pub person: String,
    pub node: u8,
    pub subscribed: Instant,
    pub ended: Instant,
    pub got: BTreeSet<String>,
}

pub struct Ledger {
    /// By username: the passwords it may have; `None` = it does not exist.
    users: Mutex<BTreeMap<String, Possible>>,
    acked: Mutex<Vec<Acked>>,
    epochs: Mutex<Vec<Epoch>>,
    /// When something was done to a node.
    disturbed: Mutex<Vec<(u8, Instant)>>,
    violations: Mutex<Vec<String>>,
    /// What was asked for each user, and how it was answered.
    history: Mutex<BTreeMap<String, Vec<String>>>,
    began: Instant,
    began_at: SystemTime,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            users: Mutex::default(),
            acked: Mutex::default(),
            epochs: Mutex::default(),
            disturbed: Mutex::default(),
            violations: Mutex::default(),
            history: Mutex::default(),
            began: Instant::now(),
            began_at: SystemTime::now(),
        }
    }
}

impl Ledger {
    /// A change of a user is about to be asked for: until it is answered, the user is as before or as after.
    pub fn may_become(&self, username: &str, after: Option<&str>) {
        let mut users = self.users.lock().unwrap();
        let possible = users.entry(username.into()).or_insert_with(|| BTreeSet::from([None]));
        possible.insert(after.map(str::to_owned));
    }

    /// The change was acknowledged.
    pub fn became(&self, username: &str, after: Option<&str>) {
        self.users.lock().unwrap().insert(username.into(), BTreeSet::from([after.map(str::to_owned)]));
    }

    pub fn possible(&self, username: &str) -> Possible {
        self.users.lock().unwrap().get(username).cloned().unwrap_or_else(|| BTreeSet::from([None]))
    }

    pub fn acked(&self, message: Acked) {
        self.acked.lock().unwrap().push(message);
    }

    pub fn epoch(&self, epoch: Epoch) {
        self.epochs.lock().unwrap().push(epoch);
    }

    /// Something is done to a node now.
    pub fn disturb(&self, node: u8) {
        self.disturbed.lock().unwrap().push((node, Instant::now()));
    }

    /// Writes down what became of a request that began at `asked`.
    pub fn note(&self, username: &str, asked: Instant, what: &str) {
        let (from, to) = (asked.duration_since(self.began), self.began.elapsed());
        let line = format!("{:.3} to {:.3} s: {what}", from.as_secs_f64(), to.as_secs_f64());
        self.history.lock().unwrap().entry(username.into()).or_default().push(line);
    }

    /// A user is not what it should be: what led to that, and what the nodes say.
    pub fn user_violation(&self, username: &str, text: &str) {
        let history = self.history.lock().unwrap().get(username).cloned().unwrap_or_default();
        let last = history.len().saturating_sub(12);
        self.violation(format!("user {username} {text}\n    {}", history[last..].join("\n    ")));
    }

    pub fn violation(&self, text: String) {
        eprintln!("VIOLATION: {text}");
        self.violations.lock().unwrap().push(text);
    }

    /// After the end, with all nodes well.
    pub fn check(&self, cluster: &Cluster) {
        self.check_users(cluster);
        self.check_messages();
        let violations = self.violations.lock().unwrap();
        if !violations.is_empty() {
            self.show_logs(cluster, &violations);
        }
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    }

    /// What the nodes say of the users that are not what they should be, and of the cluster.
    fn show_logs(&self, cluster: &Cluster, violations: &[String]) {
        let history = self.history.lock().unwrap();
        let names = history.keys().filter(|name| violations.iter().any(|text| text.contains(*name)));
        let users: Vec<String> = names.map(|name| format!("username={name} ")).collect();
        println!("began at {:?}", self.began_at);
        for node in cluster.ids() {
            for line in cluster[node].log().lines() {
                if line.contains("ciqadamq_cluster::") || users.iter().any(|user| line.contains(user)) {
                    println!("node {node}: {line}");
                }
            }
        }
    }

    fn check_users(&self, cluster: &Cluster) {
        let names: Vec<String> = eventually("all nodes list the same users", || {
            let lists: Vec<Vec<String>> = cluster.ids().map(|n| names_on(cluster, n)).collect();
            lists.iter().all(|list| *list == lists[0]).then(|| lists[0].clone())
        });
        for (username, possible) in self.users.lock().unwrap().iter() {
            let exists = names.contains(username);
            if !possible.iter().any(|p| p.is_some() == exists) {
                let is = if exists { "is there again" } else { "is lost" };
                self.user_violation(username, &format!("{is}: possible is {possible:?}"));
                continue;
            }
            if !exists {
                continue;
            }
            for node in cluster.ids() {
                let fits = possible.iter().flatten().any(|password| {
                    let id = format!("check-{username}-{node}");
                    let connect = ciqadamq_tests::Connect::new(Version::V5, ciqadamq_tests::Link::Tcp, id);
                    cluster[node].connect(&connect.login(username, password)).is_accepted()
                });
                if !fits {
                    self.violation(format!(
                        "no acknowledged password of {username} works on node {node}: {possible:?}"
                    ));
                }
            }
        }
    }

    fn check_messages(&self) {
        let (acked, epochs) = (self.acked.lock().unwrap(), self.epochs.lock().unwrap());
        let (mut proven, mut unsure) = (0, 0);
        let after = |at: Instant| at.duration_since(self.began).as_secs_f64();
        for epoch in epochs.iter() {
            let due = acked.iter().filter(|m| {
                m.person == epoch.person && m.sent > epoch.subscribed + KNOWN && m.acked + DELIVERY < epoch.ended
            });
            for message in due {
                let is_unsure = self.is_disturbed(epoch.node, message) || self.is_disturbed(message.node, message);
                if is_unsure {
                    unsure += 1;
                } else if epoch.got.contains(&message.text) {
                    proven += 1;
                } else {
                    self.violation(format!(
                        "{} was acknowledged by node {} after {:.3} s and did not reach {} on node {}, {:.3} to {:.3} s",
                        message.text,
                        message.node,
                        after(message.acked),
                        epoch.device,
                        epoch.node,
                        after(epoch.subscribed),
                        after(epoch.ended)
                    ));
                }
            }
        }
        println!("{} messages, {proven} deliveries proven, {unsure} near a fault of their own node", acked.len());
        assert!(proven > 0, "the run proves nothing");
    }

    fn is_disturbed(&self, node: u8, message: &Acked) -> bool {
        let disturbed = self.disturbed.lock().unwrap();
        disturbed
            .iter()
            .any(|(n, at)| *n == node && message.acked + UNSURE_BEFORE > *at && message.sent < *at + UNSURE_AFTER)
    }
}

fn names_on(cluster: &Cluster, node: u8) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = cluster[node].rest.get(&format!("/api/v1/users?limit=500{after}")).json();
        let users = page["users"].as_array().unwrap();
        names.extend(users.iter().map(|user| user["username"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return names,
        }
    }
}
