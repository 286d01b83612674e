//! Other people's clients do the main job. A client that is not installed is skipped, and says so.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ciqadamq_tests::{Account, Broker, BrokerOptions, WAIT, programs};

/// A program whose lines are awaited; killed when dropped.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Ends with the program's output.
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    #[track_caller]
    fn expect_line(&self, wanted: &str) {
        match self.lines.recv_timeout(WAIT) {
            Ok(line) => assert_eq!(line, wanted),
            Err(_) => panic!("`{wanted}` was not printed"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn mosquitto(mut command: Command, broker: &Broker, account: &Account, version: &str, rest: &[&str]) -> Command {
    command.args(["-h", "127.0.0.1", "-p", &broker.tcp.port().to_string(), "-V", version]);
    command.args(["-u", &account.username, "-P", &account.password, "-q", "1"]).args(rest);
    command
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn mosquitto_clients_do_the_main_job() {
    let (Some(_), Some(_)) = (programs::find("mosquitto_sub"), programs::find("mosquitto_pub")) else { return };
    let sub = || programs::find("mosquitto_sub").unwrap();
    let publish = || programs::find("mosquitto_pub").unwrap();
    let broker = Broker::start_default();
    let (backend, user) = (broker.superuser("backend"), broker.user("u1"));
    for version in ["31", "311", "5"] {
        let version = if version == "31" { "mqttv31" } else { version };
        let device = ["-t", "chat/u1/m/all", "-i", "phone", "-v"];
        let device = Running::start(mosquitto(sub(), &broker, &user, version, &device));
        let server =
            Running::start(mosquitto(sub(), &broker, &backend, version, &["-t", "chatsync", "-i", "srv", "-v"]));
        for client_id in ["phone", "srv"] {
            ciqadamq_tests::eventually("it is subscribed", || {
                broker.rest.session(client_id).filter(|session| session["subscriptions"] == 1)
            });
        }
        succeeds(&mut mosquitto(publish(), &broker, &backend, version, &["-t", "chat/u1/m/all", "-m", "hello"]));
        device.expect_line("chat/u1/m/all hello");
        succeeds(&mut mosquitto(publish(), &broker, &user, version, &["-t", "chatsync", "-m", "back"]));
        server.expect_line("chatsync back");
        drop((device, server));
        for client_id in ["phone", "srv"] {
            broker.rest.wait_gone(client_id);
        }
    }
    let guess = Account { password: "guess".into(), ..user };
    let refused = mosquitto(publish(), &broker, &guess, "311", &["-t", "chatsync", "-m", "x"]).output().unwrap();
    assert!(!refused.status.success());
}

/// A script that takes addresses and accounts from its environment, does the main job and says `done`.
#[track_caller]
fn script_does_the_main_job(mut program: Command, script: &str) {
    let broker = Broker::start_default();
    let (backend, user) = (broker.superuser("backend"), broker.user("u1"));
    program.arg(programs::script(script));
    program.env("TCP_PORT", broker.tcp.port().to_string()).env("WS_PORT", broker.ws.port().to_string());
    program.env("BACKEND", &backend.username).env("BACKEND_PASSWORD", &backend.password);
    program.env("USERNAME", &user.username).env("PASSWORD", &user.password).env("USERID", &user.userid);
    let output = program.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim_end().ends_with("done"), "{said}\n{error}");
}

#[test]
fn paho_does_the_main_job() {
    if let Some(python) = programs::paho() {
        script_does_the_main_job(python, "main_job.py");
    }
}

#[test]
fn mqtt_js_does_the_main_job_over_websocket() {
    if let Some(node) = programs::mqtt_js() {
        script_does_the_main_job(node, "main_job.js");
    }
}

#[test]
fn rumqttc_does_the_main_job() {
    use rumqttc::{Client, Event, MqttOptions, Packet, QoS};
    let broker = Broker::start_default();
    let (backend, user) = (broker.superuser("backend"), broker.user("u1"));
    let options = |account: &Account, client_id: &str| {
        let mut options = MqttOptions::new(client_id, "127.0.0.1", broker.tcp.port());
        options.set_credentials(&account.username, &account.password).set_keep_alive(Duration::from_secs(30));
        options
    };
    let (device, mut device_events) = Client::new(options(&user, "phone"), 10);
    let (server, mut server_events) = Client::new(options(&backend, "srv"), 10);
    device.subscribe("chat/u1/m/all", QoS::AtLeastOnce).unwrap();
    server.subscribe("chatsync", QoS::AtLeastOnce).unwrap();
    let wait = |events: &mut rumqttc::Connection, wanted: &dyn Fn(&Packet) -> bool| loop {
        match events.recv_timeout(WAIT) {
            Ok(Ok(Event::Incoming(packet))) if wanted(&packet) => return,
            Ok(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    let subscribed = |packet: &Packet| matches!(packet, Packet::SubAck(_));
    wait(&mut device_events, &subscribed);
    wait(&mut server_events, &subscribed);
    server.publish("chat/u1/m/all", QoS::ExactlyOnce, false, "hello").unwrap();
    wait(&mut server_events, &|packet| matches!(packet, Packet::PubComp(_)));
    wait(&mut device_events, &|packet| matches!(packet, Packet::Publish(m) if m.payload.as_ref() == b"hello"));
    device.publish("chatsync", QoS::AtLeastOnce, false, "back").unwrap();
    wait(&mut device_events, &|packet| matches!(packet, Packet::PubAck(_)));
    wait(&mut server_events, &|packet| matches!(packet, Packet::Publish(m) if m.payload.as_ref() == b"back"));
}

#[test]
fn rumqttc_v5_is_told_why_it_is_refused() {
    use rumqttc::v5::mqttbytes::v5::{Packet, SubscribeReasonCode};
    use rumqttc::v5::{Client, ConnectionError, Event, MqttOptions, StateError, mqttbytes::QoS};
    let broker = Broker::start_default();
    let user = broker.user("u1");
    for (filter, expected) in [("chat/u1/#", None), ("chat/u2/#", Some(SubscribeReasonCode::NotAuthorized))] {
        let mut options = MqttOptions::new("phone", "127.0.0.1", broker.tcp.port());
        options.set_credentials(&user.username, &user.password);
        let (client, mut events) = Client::new(options, 10);
        client.subscribe(filter, QoS::AtLeastOnce).unwrap();
        let refusal = loop {
            match events.recv_timeout(WAIT) {
                Ok(Ok(Event::Incoming(Packet::SubAck(_)))) => break None,
                Ok(Err(ConnectionError::MqttState(StateError::SubFail { reason }))) => break Some(reason),
                Ok(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refusal, expected, "{filter}");
        drop((client, events));
        broker.rest.wait_gone("phone");
    }
}

/// The lines that the README and `cargo xtask run` tell a new operator to type.
#[test]
fn the_next_lines_of_the_readme_work_word_for_word() {
    let (Some(_), Some(_)) = (programs::find("mosquitto_sub"), programs::find("curl")) else { return };
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("<!-- next lines -->\n```sh\n").expect("the block in the README");
    let (lines, _) = rest.split_once("```").expect("the end of the block");
    let broker = Broker::start(BrokerOptions::new().own_token());
    // Only the ports differ: other tests run at the same time.
    let lines = lines
        .replace(":8090", &format!(":{}", broker.rest.addr.port()))
        .replace("-p 1883", &format!("-p {}", broker.tcp.port()));
    let output = Command::new("bash").args(["-eu", "-c", &lines]).current_dir(broker.dir()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    for wanted in ["chat/u1/m/all hello, all devices of u1", "chatsync hello, backend"] {
        assert!(said.contains(wanted), "no `{wanted}` in:\n{said}\n{error}");
    }
}
