//! A server that speaks hyperion-vault's API: `GET /v1/secrets/{name}`. It can misbehave in every way that was asked for.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

/// How often the server looks whether its mood changed.
const TICK: Duration = Duration::from_millis(5);

/// How the server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// as it should
    Well,
    /// nobody listens
    Refusing,
    /// takes connections and says nothing
    BlackHole,
    /// as it should, and late
    Late(Duration),
    /// with this status and body, whatever is asked for
    Says(u16, Vec<u8>),
    /// the same, with a header
    SaysWith(u16, (&'static str, String), Vec<u8>),
    /// as it should, but the connection ends in the middle of the body
    Cut,
}

impl Mood {
    /// Status and a body of text.
    pub fn says(status: u16, body: &str) -> Self {
        Self::Says(status, body.into())
    }
}

#[derive(Debug)]
struct State {
    mood: Mood,
    secrets: BTreeMap<String, (u64, String)>,
    asked: BTreeMap<String, usize>,
    stop: bool,
}

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct Hyperion {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

impl Hyperion {
    /// Starts one with these secrets.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn start(secrets: &[(&str, &str)]) -> Self {
        // Somebody else may take the address between the look and the bind.
        let bound = || TcpListener::bind(crate::free_addresses::<1>()[0]).ok();
        let listener = (0..100).find_map(|_| bound()).expect("a free port");
        let addr = listener.local_addr().unwrap();
        let secrets = secrets.iter().map(|(name, value)| ((*name).to_owned(), (1, (*value).to_owned()))).collect();
        let state = Arc::new(Mutex::new(State { mood: Mood::Well, secrets, asked: BTreeMap::new(), stop: false }));
        let shared = state.clone();
        let thread = thread::spawn(move || serve(addr, listener, &shared));
        Self { addr, state, thread: Some(thread) }
    }

    /// What `VAULT_ADDR` is set to.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// From now on it answers like this.
    ///
    /// # Panics
    /// If the port does not close or open as it should.
    pub fn set_mood(&self, mood: Mood) {
        let open = mood != Mood::Refusing;
        self.state.lock().unwrap().mood = mood;
        let settled = || TcpStream::connect_timeout(&self.addr, Duration::from_secs(1)).is_ok() == open;
        crate::eventually("the vault's port is as it should be", || settled().then_some(()));
    }

    /// Stores a new version of a secret.
    pub fn put(&self, name: &str, value: &str) {
        let mut state = self.state.lock().unwrap();
        let entry = state.secrets.entry(name.to_owned()).or_default();
        *entry = (entry.0 + 1, value.to_owned());
    }

    /// Removes a secret.
    pub fn remove(&self, name: &str) {
        self.state.lock().unwrap().secrets.remove(name);
    }

    /// How often it was asked for a secret.
    pub fn asked(&self, name: &str) -> usize {
        self.state.lock().unwrap().asked.get(name).copied().unwrap_or_default()
    }
}

impl Drop for Hyperion {
    fn drop(&mut self) {
        self.state.lock().unwrap().stop = true;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn serve(addr: SocketAddr, listener: TcpListener, state: &Arc<Mutex<State>>) {
    let mut listener = Some(listener);
    loop {
        let (stop, refusing) = {
            let state = state.lock().unwrap();
            (state.stop, state.mood == Mood::Refusing)
        };
        if stop {
            return;
        }
        if refusing {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(addr).ok();
        }
        if let Some(open) = &listener {
            open.set_nonblocking(true).unwrap();
            while let Ok((socket, _)) = open.accept() {
                let state = state.clone();
                thread::spawn(move || answer(socket, &state));
            }
        }
        thread::sleep(TICK);
    }
}

/// Answers one request; a client that went away meanwhile is no fault.
fn answer(mut socket: TcpStream, state: &Arc<Mutex<State>>) {
    let Some(name) = read_name(&mut socket) else { return };
    let mood = {
        let mut state = state.lock().unwrap();
        *state.asked.entry(name.clone()).or_default() += 1;
        state.mood.clone()
    };
    match &mood {
        Mood::BlackHole => {
            hold(state, &mood, Duration::MAX);
            return;
        }
        // It comes late or never.
        Mood::Late(late) if hold(state, &mood, *late) => {}
        Mood::Late(_) => return,
        _ => {}
    }
    let (status, header, body) = match mood {
        Mood::Says(status, body) => (status, None, body),
        Mood::SaysWith(status, header, body) => (status, Some(header), body),
        _ => match state.lock().unwrap().secrets.get(&name) {
            Some((version, value)) => {
                let body = json!({"name": name, "version": version, "value": value, "created_at": 0});
                (200, None, body.to_string().into_bytes())
            }
            None => (404, None, br#"{"error":"no such secret"}"#.to_vec()),
        },
    };
    let cut = state.lock().unwrap().mood == Mood::Cut;
    let header = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n{header}\r\n",
        body.len()
    );
    let sent = if cut { &body[..body.len() - 5] } else { &body };
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(sent));
}

/// Waits for a while; `false` if the mood changed or the server ended meanwhile.
fn hold(state: &Arc<Mutex<State>>, mood: &Mood, time: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < time {
        let now = state.lock().unwrap();
        if now.stop || now.mood != *mood {
            return false;
        }
        drop(now);
        thread::sleep(TICK);
    }
    true
}

/// The secret that is asked for; `None` if nobody asks, or in another way than the API says.
fn read_name(socket: &mut TcpStream) -> Option<String> {
    socket.set_nonblocking(false).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let segment = head.strip_prefix("GET /v1/secrets/")?.split_whitespace().next()?;
    // Reads carry no token, and the name is one segment.
    if segment.contains('/') || head.to_ascii_lowercase().contains("\r\nauthorization:") {
        let _ = socket.write_all(b"HTTP/1.1 400 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return None;
    }
    Some(segment.replace("%2F", "/").replace("%2f", "/"))
}
