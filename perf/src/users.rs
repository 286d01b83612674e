//! Who the clients are: users with devices, and the backend that publishes to them.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::mqtt::{ANSWER, Login, within};

/// Requests under way at once: the broker writes users in groups.
const PARALLEL: usize = 32;

/// The users of a run.
#[derive(Debug)]
pub struct Users {
    devices_per_user: usize,
    // empty where the broker lets everybody in
    logins: Vec<Login>,
    backend: Option<Login>,
}

impl Users {
    /// For a broker without logins.
    pub fn anonymous(devices_per_user: usize) -> Self {
        Self { devices_per_user, logins: Vec::new(), backend: None }
    }

    /// Users, and a superuser who publishes, made over the REST API of ciqadamq. One password for all, which nobody knows
    /// and which is gone with the directory of the run.
    pub async fn provision(
        api: SocketAddr,
        token: &str,
        devices_per_user: usize,
        users: usize,
    ) -> anyhow::Result<Self> {
        let password = random();
        let login = |username: String| Login { username, password: password.clone() };
        let logins: Vec<_> = (0..users).map(|n| login(format!("perf-user-{n}"))).collect();
        let backend = login("perf-backend".into());
        let mut bodies = vec![json!({"username": backend.username, "userid": "backend", "password": password,
            "superuser": true})];
        bodies.extend(
            logins
                .iter()
                .enumerate()
                .map(|(n, login)| json!({"username": login.username, "userid": userid(n), "password": password})),
        );
        let bodies = std::rc::Rc::new(bodies);
        let workers: Vec<_> = (0..PARALLEL)
            .map(|worker| {
                let (bodies, token) = (bodies.clone(), token.to_owned());
                tokio::task::spawn_local(async move {
                    for body in bodies.iter().skip(worker).step_by(PARALLEL) {
                        create(api, &token, body).await?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.await??;
        }
        Ok(Self { devices_per_user, logins, backend: Some(backend) })
    }

    /// The user that a client belongs to.
    pub fn of_device(&self, client: usize) -> usize {
        client / self.devices_per_user
    }

    /// How many users have a device when there are so many clients.
    pub fn with_devices(&self, clients: usize) -> usize {
        clients.div_ceil(self.devices_per_user)
    }

    /// What a user logs in with.
    pub fn login(&self, user: usize) -> Option<&Login> {
        self.logins.get(user)
    }

    /// What the publisher logs in with.
    pub fn backend(&self) -> Option<&Login> {
        self.backend.as_ref()
    }

    /// The topic of a user's devices.
    pub fn topic(&self, user: usize) -> String {
        format!("chat/{}/m/all", userid(user))
    }
}

fn userid(user: usize) -> String {
    format!("u{user}")
}

async fn create(api: SocketAddr, token: &str, body: &Value) -> anyhow::Result<()> {
    let body = body.to_string();
    let request = format!(
        "POST /api/v1/users HTTP/1.1\r\nHost: {api}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(api, &request).await.context("POST /api/v1/users")?;
    match status(&answer) {
        Some(201) => Ok(()),
        _ => bail!("a user cannot be created: {}", answer.lines().next().unwrap_or("no answer")),
    }
}

/// Whether a path that needs no token, such as `/ready`, says 200.
pub async fn is_fine(api: SocketAddr, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\r\n");
    exchange(api, &request).await.is_ok_and(|answer| status(&answer) == Some(200))
}

async fn exchange(api: SocketAddr, request: &str) -> std::io::Result<String> {
    within(ANSWER, async {
        let mut stream = TcpStream::connect(api).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(64 * 1024).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    })
    .await
}

fn status(answer: &str) -> Option<u16> {
    answer.split_whitespace().nth(1)?.parse().ok()
}

/// 32 hexadecimal digits that nobody guesses.
pub fn random() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each `RandomState` has keys of its own.
    format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_go_round_the_users_in_order() {
        let users = Users::anonymous(2);
        assert_eq!((0..5).map(|n| users.of_device(n)).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
        assert_eq!(users.with_devices(5), 3);
        assert_eq!(users.topic(7), "chat/u7/m/all");
        assert!(users.login(3).is_none() && users.backend().is_none());
    }
}
