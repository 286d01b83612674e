//! The cluster under test.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::Answer;
use ciqadamq_tests::{Account, Client, Connect, Link, Rest, Version, eventually, random_token, request};
use serde_json::json;

/// How long a node may take to come back. Development builds on a busy machine are slow.
const BACK: Duration = Duration::from_secs(90);

/// One node at a time is killed, and only by one story.
static TURN: Mutex<()> = Mutex::new(());

/// A listener for each way in.
#[derive(Debug, Clone, Copy)]
pub struct Door {
    pub tcp: SocketAddr,
    pub ws: SocketAddr,
}

impl Door {
    pub fn addr(&self, link: &Link) -> SocketAddr {
        match link {
            Link::Tcp => self.tcp,
            Link::Ws { .. } => self.ws,
        }
    }

    /// A client of this user, in.
    #[track_caller]
    pub fn client(&self, account: &Account, link: Link, client_id: &str) -> Client {
        let connect = Connect::new(Version::V5, link, client_id).login(&account.username, &account.password);
        Client::connect(&connect, self.addr(&connect.link)).accepted().0
    }
}

/// One node.
#[derive(Debug)]
pub struct Node {
    pub door: Door,
    pub rest: Rest,
}

/// All of it, for one story.
pub struct Site {
    pub nodes: Vec<Node>,
    pub front: Option<Front>,
    users: Mutex<Vec<String>>,
    _turn: MutexGuard<'static, ()>,
}

/// HAProxy.
#[derive(Debug, Clone, Copy)]
pub struct Front {
    pub door: Door,
    /// the address that nodes see it by
    pub ip: IpAddr,
}

impl Node {
    /// On which nodes, from 1, the sessions of a user are that are online.
    #[track_caller]
    pub fn online(&self, account: &Account) -> Vec<usize> {
        let sessions = self.rest.get(&format!("/api/v1/sessions?userid={}&limit=1000", account.userid)).json();
        let online = sessions["sessions"].as_array().unwrap().iter().filter(|session| session["online"] == true);
        online.map(|session| session["node"].as_u64().unwrap() as usize).collect()
    }
}

impl Site {
    /// The cluster, when it is this story's turn and all nodes are ready; `None` if there is none.
    pub fn enter() -> Option<Self> {
        let Some(nodes) = variable("CIQADAMQ_NODES") else {
            println!("skipped: no CIQADAMQ_NODES");
            return None;
        };
        let token = variable("CIQADAMQ_TOKEN").expect("CIQADAMQ_TOKEN");
        let node = |text: &str| {
            let [tcp, ws, api] = addresses(text);
            Node { door: Door { tcp, ws }, rest: Rest { addr: api, token: token.clone() } }
        };
        let nodes: Vec<Node> = nodes.split_whitespace().map(node).collect();
        assert!(nodes.len() >= 3, "these stories need three nodes");
        let front = variable("CIQADAMQ_FRONT").map(|text| {
            let [tcp, ws] = addresses(&text);
            let ip = variable("CIQADAMQ_FRONT_IP").expect("CIQADAMQ_FRONT_IP").parse().unwrap();
            Front { door: Door { tcp, ws }, ip }
        });
        // A story that failed has said so.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let site = Self { nodes, front, users: Mutex::default(), _turn: turn };
        site.wait_ready();
        if let Some(front) = front {
            // It looks at the nodes once a second.
            let nobody = Connect::new(Version::V5, Link::Tcp, "nobody").login("nobody", "nothing");
            eventually("HAProxy sees the nodes", || match Client::connect(&nobody, front.door.tcp) {
                Answer::Refused(_) => Some(()),
                _ => None,
            });
        }
        Some(site)
    }

    /// HAProxy; `None` if there is none.
    pub fn front(&self) -> Option<Front> {
        if self.front.is_none() {
            println!("skipped: no CIQADAMQ_FRONT");
        }
        self.front
    }

    /// A user whose login name and user id nobody has: `name` is the beginning of both. Made on the first node that runs.
    #[track_caller]
    pub fn user(&self, name: &str, superuser: bool) -> Account {
        let id = format!("{name}-{}", &random_token()[..12]);
        let account = Account { username: id.clone(), userid: id, password: random_token() };
        let body = json!({"username": account.username, "userid": account.userid, "password": account.password,
            "superuser": superuser});
        let response = self.nodes[0].rest.post("/api/v1/users", &body);
        assert_eq!(response.status, 201, "{}", response.text());
        self.users.lock().unwrap().push(account.username.clone());
        account
    }

    /// Ends a node, from 1, as a power cut would.
    #[track_caller]
    pub fn kill(&self, node: usize) {
        shell("CIQADAMQ_KILL", node);
    }

    /// Starts it again and does not wait.
    #[track_caller]
    pub fn start(&self, node: usize) {
        shell("CIQADAMQ_START", node);
    }

    /// Waits until all nodes take clients.
    #[track_caller]
    pub fn wait_ready(&self) {
        let since = Instant::now();
        for (n, node) in (1..).zip(&self.nodes) {
            loop {
                let answer = request(node.rest.addr, "GET", "/ready", &[], None).map(|r| (r.status, r.text()));
                if matches!(answer, Ok((200, _))) {
                    break;
                }
                assert!(since.elapsed() < BACK, "node {n} is not ready after {BACK:?}: {answer:?}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// The node, from 1, that leads the routing cluster.
    #[track_caller]
    pub fn routes_leader(&self) -> usize {
        eventually("a leader", || {
            let leader = self.nodes[0].rest.metric("ciqadamq_cluster_routes_leader", &[]) as usize;
            (leader > 0).then_some(leader)
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for user in self.users.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // Best effort: after a failed story the cluster may be in any state, and deleted users are deleted already.
            let bearer = format!("Bearer {}", self.nodes[0].rest.token);
            let headers = [("Authorization", bearer.as_str())];
            request(self.nodes[0].rest.addr, "DELETE", &format!("/api/v1/users/{user}"), &headers, None).ok();
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn addresses<const N: usize>(text: &str) -> [SocketAddr; N] {
    let list: Vec<SocketAddr> = text.split(',').map(|addr| addr.parse().unwrap()).collect();
    list.try_into().unwrap_or_else(|list| panic!("{N} addresses are needed, not {list:?}"))
}

#[track_caller]
fn shell(variable_name: &str, node: usize) {
    let line = variable(variable_name).unwrap_or_else(|| panic!("{variable_name}")).replace("{}", &node.to_string());
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}
