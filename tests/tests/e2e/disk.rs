//! The disk of the sessions is full, or takes no writes. With a small disk that is mounted there: as root, on Linux.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ciqadamq_tests::mqtt::{Publish, unsubscribe};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Cluster, Connect, Outcome, Version, eventually};

/// The broker keeps 64 MiB free, and its log wants some 48.
const SIZE: &str = "size=160m";

struct SmallDisk(PathBuf);

impl SmallDisk {
    /// In the place of a directory, such as `sessions`, of a broker that does not run. `None`, with a word, where mounting is not allowed.
    fn mount(broker: &Broker, what: &str) -> Option<Self> {
        let at = broker.dir().join("data").join(what);
        if at.exists() {
            fs::remove_dir_all(&at).unwrap();
        }
        fs::create_dir_all(&at).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(&at).status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(at));
        }
        println!("SKIPPED: a disk cannot be mounted here; it takes root, on Linux");
        None
    }

    fn fill(&self) {
        self.fill_with(80 << 20);
    }

    /// Leaves so many bytes.
    fn fill_but(&self, left: usize) {
        let df = Command::new("df").args(["-B1", "--output=avail"]).arg(&self.0).output().unwrap();
        let free: usize = String::from_utf8_lossy(&df.stdout).split_whitespace().last().unwrap().parse().unwrap();
        self.fill_with(free - left);
    }

    fn fill_with(&self, bytes: usize) {
        fs::write(self.0.join("ballast"), vec![0; bytes]).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    fn make_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the broker may still run.
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// The offline session that something is kept for.
fn phone_of(ua: &Account) -> Connect {
    ua.connect(Version::V5, "phone").persistent(600)
}

/// A broker whose data is on a disk of its own, with a session that waits; `None` where nothing can be mounted.
fn on_a_small_disk() -> Option<(Broker, SmallDisk, [Account; 2])> {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    broker.sigterm();
    let disk = SmallDisk::mount(&broker, "sessions")?;
    broker.start_again();
    let (mut phone, _) = broker.connect(&phone_of(&ua)).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    Some((broker, disk, [root, ua]))
}

#[test]
fn a_full_disk_refuses_what_would_have_to_be_kept_and_nothing_else_until_there_is_room() {
    let Some((mut broker, disk, [root, ua])) = on_a_small_disk() else { return };
    let connect = phone_of(&ua);
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    for n in 0..10 {
        publisher.publish_ok("chat/ua/x", &n.to_string(), 1);
    }
    disk.fill();
    eventually("the disk is found full", || {
        // Until that is known, a message that cannot be kept is not acknowledged: its connection ends.
        match publisher.publish(&Publish::new("chat/ua/x", "refused", 1)) {
            Outcome::Acked(code) => (code == 0x97).then_some(()),
            _ => {
                publisher = broker.client(&root, Version::V5, "publisher");
                None
            }
        }
    });
    assert_eq!(publisher.publish(&Publish::new("chat/ua/x", "refused", 2)), Outcome::Acked(0x97));
    let mut old = broker.client(&root, Version::V311, "old");
    assert!(matches!(old.publish(&Publish::new("chat/ua/x", "refused", 1)), Outcome::Closed(_)));
    // Clean sessions need no disk, and QoS 0 promises nothing.
    let mut reader = broker.client(&root, Version::V5, "reader");
    reader.subscribe(&["other"]);
    publisher.publish_ok("other", "goes on", 1);
    reader.expect("other", "goes on");
    // A persistent client comes and goes, and gives up a subscription.
    let other = ua.connect(Version::V311, "other").persistent(600);
    let (mut client, _) = broker.connect(&other).accepted();
    client.subscribe(&["chat/ua/y"]);
    client.unsubscribe(&["chat/ua/y"]);
    client.disconnect();
    eventually("the state is visible", || {
        let is_told = broker.rest.get("/ready").text().contains("disk of the session store is full");
        (is_told && broker.rest.metric("ciqadamq_session_store_writable", &[]) == 0.0).then_some(())
    });
    assert!(broker.is_ready(), "clients may come all the same");
    broker.kill9();
    broker.start_again();
    let session = broker.rest.session("other").expect("what brings no message is on the disk");
    assert_eq!(session["subscriptions"], 0, "{session}");
    publisher = broker.client(&root, Version::V5, "publisher");
    disk.empty();
    eventually("it recovers by itself", || {
        let outcome = publisher.publish(&Publish::new("chat/ua/x", "kept again", 1));
        matches!(outcome, Outcome::Acked(0)).then_some(())
    });
    broker.kill9();
    broker.start_again();
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present);
    for n in 0..10 {
        phone.expect("chat/ua/x", &n.to_string());
    }
    phone.expect("chat/ua/x", "kept again");
    let (_, connack) = broker.connect(&other).accepted();
    assert!(connack.session_present);
}

#[test]
fn while_nothing_can_be_written_nothing_is_said_to_be_gone_that_a_restart_would_bring_back() {
    let broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = phone_of(&ua);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    let retained = |payload: &str| Publish::new("retained", payload, 1).retained();
    assert!(matches!(publisher.publish(&retained("there")), Outcome::Acked(0 | 0x10)));
    // No segment of the log can begin where there is no directory; the present one has 16 MiB.
    let log = broker.dir().join("data/sessions/log");
    let away = log.with_file_name("away");
    fs::rename(&log, &away).unwrap();
    let large = "x".repeat(256 << 10);
    eventually("the log is full", || {
        match publisher.publish(&Publish::new("chat/ua/x", &large, 1)) {
            Outcome::Acked(code) => (code == 0x80).then_some(()),
            // The one whose commit failed is not acknowledged.
            _ => {
                publisher = broker.client(&root, Version::V5, "publisher");
                None
            }
        }
    });
    assert_eq!(publisher.publish(&retained("")), Outcome::Acked(0x80));
    let none = Publish::new("not/retained", "", 1).retained();
    assert!(matches!(publisher.publish(&none), Outcome::Acked(0 | 0x10)));
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.send(&unsubscribe(Version::V5, 1, &["chat/ua/x"]));
    phone.expect_closed();
    fs::rename(&away, &log).unwrap();
    eventually("it recovers by itself", || {
        (broker.rest.metric("ciqadamq_session_store_writable", &[]) == 1.0).then_some(())
    });
    assert_eq!(broker.rest.session("phone").unwrap()["subscriptions"], 1);
    let mut reader = broker.client(&root, Version::V5, "reader");
    reader.subscribe(&["retained"]);
    reader.expect("retained", "there");
    assert!(matches!(publisher.publish(&retained("")), Outcome::Acked(0 | 0x10)));
}

#[test]
fn a_read_only_disk_is_named_at_the_start_and_left_alone() {
    let Some((mut broker, disk, [root, ua])) = on_a_small_disk() else { return };
    let connect = phone_of(&ua);
    broker.client(&root, Version::V5, "publisher").publish_ok("chat/ua/x", "kept", 1);
    broker.sigterm();
    disk.make_read_only();
    let config = broker.config();
    let output = broker.run(&["--config", config.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("session store") && text.to_lowercase().contains("read-only"), "{text}");
    assert!(Command::new("mount").args(["-o", "remount,rw"]).arg(&disk.0).status().unwrap().success());
    broker.start_again();
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present);
    phone.expect("chat/ua/x", "kept");
}

#[test]
fn a_node_whose_disk_was_full_and_missed_changes_of_users_lets_nobody_in_before_it_has_caught_up() {
    let mut cluster = Cluster::prepare(3, |_| BrokerOptions::new());
    let Some(disk) = SmallDisk::mount(&cluster[3], "users") else { return };
    for node in cluster.ids() {
        cluster[node].spawn();
    }
    cluster.wait_ready();
    let [gone, stays] = ["gone", "stays"].map(|name| cluster[1].user(name));
    let enters =
        |cluster: &Cluster, account: &Account| cluster[3].connect(&account.connect(Version::V5, &account.userid));
    for account in [&gone, &stays] {
        assert!(enters(&cluster, account).is_accepted());
    }
    // The users keep 8 MiB free.
    disk.fill_but(4 << 20);
    cluster[1].rest.delete_user(&gone.username);
    cluster.wait_why(3, "users: changes of users are not taken");
    for account in [&gone, &stays] {
        assert!(!enters(&cluster, account).is_accepted(), "{} got in", account.username);
    }
    let new = cluster[2].user("new");
    disk.empty();
    cluster.wait_ready();
    assert!(!enters(&cluster, &gone).is_accepted(), "a deleted user got in");
    for account in [&stays, &new] {
        assert!(enters(&cluster, account).is_accepted(), "{} does not get in", account.username);
    }
}
