#![allow(clippy::unwrap_used)]
use super::*;

use std::collections::HashMap;

use ciqadamq_core::{
    Applied, Command, DirectoryError, DirectoryStatus, ExecuteError, PasswordHash, Revision, User, UserId, UserPage,
    UserQuery, Username,
};
use rmqtt::codec::types::{Publish as Packet, QoS};
use rmqtt::types::{ClientId, From, Id, Publish};

/// Users that can be deleted, as far as the keeper asks.
#[derive(Default)]
struct Users(Mutex<HashMap<String, Arc<User>>>);

#[async_trait]
impl UserDirectory for Users {
    fn get(&self, username: &str) -> std::result::Result<Option<Arc<User>>, DirectoryError> {
        Ok(self.0.lock().get(username).cloned())
    }
    fn list(&self, _: &UserQuery) -> std::result::Result<UserPage, DirectoryError> {
        Ok(UserPage::default())
    }
    async fn execute(&self, _: Command) -> std::result::Result<Applied, ExecuteError> {
        Ok(Applied { revision: Revision(1) })
    }
    fn revision(&self) -> Revision {
        Revision(1)
    }
    fn observe(&self, _: Arc<dyn UserObserver>) {}
    fn status(&self) -> DirectoryStatus {
        DirectoryStatus::default()
    }
}

/// Messages in memory; what is `during` happens in the middle of the next `set`, and so many of the next ones fail.
#[derive(Default)]
struct Memory {
    messages: Mutex<HashMap<String, Retain>>,
    during: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    failures: Mutex<u32>,
}

/// What the keeper stands in front of.
struct Shelf(Arc<Memory>);

#[async_trait]
impl RetainStorage for Shelf {
    async fn set(&self, topic: &TopicName, retain: Retain, _: Option<Duration>) -> rmqtt::Result<()> {
        if let Some(during) = self.0.during.lock().take() {
            during();
        }
        let mut failures = self.0.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(anyhow!("not now"));
        }
        if retain.publish.payload.is_empty() {
            self.0.messages.lock().remove(&**topic);
        } else {
            self.0.messages.lock().insert(topic.to_string(), retain);
        }
        Ok(())
    }
    async fn get(&self, topic: &TopicFilter) -> rmqtt::Result<Vec<(TopicName, Retain)>> {
        Ok(self.0.messages.lock().get(&**topic).map(|retain| (topic.clone(), retain.clone())).into_iter().collect())
    }
    fn enable(&self) -> bool {
        true
    }
    async fn count(&self) -> isize {
        self.0.messages.lock().len() as isize
    }
    async fn max(&self) -> isize {
        0
    }
    fn stats_merge_mode(&self) -> StatsMergeMode {
        StatsMergeMode::Sum
    }
}

struct Setting {
    users: Arc<Users>,
    principals: Arc<Principals>,
    memory: Arc<Memory>,
    keeper: Arc<Keeper>,
    store: Kept,
}

fn setting() -> Setting {
    let (users, principals, memory) =
        (Arc::new(Users::default()), Arc::new(Principals::new()), Arc::new(Memory::default()));
    let keeper = Keeper::new(10, users.clone(), principals.clone(), &Registry::new()).unwrap();
    let inner: Inner = Arc::new(Box::new(Shelf(memory.clone())));
    tokio::spawn(keeper.clone().run(inner.clone()));
    let store = Kept { inner, keeper: keeper.clone() };
    Setting { users, principals, memory, keeper, store }
}

impl Setting {
    fn add(&self, name: &str, superuser: bool) {
        let user = User {
            username: Username::new(name).unwrap(),
            userid: UserId::new(name).unwrap(),
            password: PasswordHash(String::new()),
            superuser,
            admin: false,
            disabled: false,
            revision: Revision(1),
            valid_from: Revision(1),
        };
        let principal = Principal::new(name, user.userid.clone(), name, 1, Revision(1), superuser, false);
        self.principals.insert(Arc::new(principal));
        self.users.0.lock().insert(name.into(), Arc::new(user));
    }

    /// As the directory does: first it is so, then everybody hears of it.
    fn deletion(&self, name: &str) -> impl FnOnce() + Send + use<> {
        let (users, principals, keeper) = (self.users.clone(), self.principals.clone(), self.keeper.clone());
        let username = Username::new(name).unwrap();
        move || {
            users.0.lock().remove(username.as_str());
            let change = UserChange { revision: Revision(2), username, after: None };
            principals.follow(&change);
            keeper.user_changed(&change);
        }
    }

    async fn retain(&self, topic: &str, by: &str) {
        let packet = Packet {
            dup: false,
            retain: true,
            qos: QoS::AtLeastOnce,
            topic: topic.into(),
            packet_id: None,
            payload: "here".into(),
            properties: None,
        };
        let id = Id::new(1, 1, None, None, ClientId::from(by), Some(by.into()));
        let retain = Retain { msg_id: None, from: From::from_custom(id), publish: Publish::from(packet) };
        self.store.set(&TopicName::from(topic), retain, None).await.unwrap();
    }

    async fn wait_until_there_are(&self, number: usize) {
        let is_so = async {
            while self.memory.messages.lock().len() != number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), is_so).await.expect("another number of messages");
    }
}

#[tokio::test]
async fn what_is_retained_while_its_user_is_deleted_goes_too() {
    let setting = setting();
    setting.add("ua", false);
    setting.add("root", true);
    *setting.memory.during.lock() = Some(Box::new(setting.deletion("ua")));
    setting.retain("t", "ua").await;
    setting.wait_until_there_are(0).await;
    // From then on nothing of that session is kept. What the backend left stays, whatever becomes of its account.
    setting.retain("t", "ua").await;
    *setting.memory.during.lock() = Some(Box::new(setting.deletion("root")));
    setting.retain("u", "root").await;
    setting.wait_until_there_are(1).await;
    assert!(setting.memory.messages.lock().contains_key("u"));
}

#[tokio::test]
async fn a_message_that_cannot_be_cleared_is_tried_again() {
    let setting = setting();
    setting.add("ua", false);
    setting.retain("t", "ua").await;
    *setting.memory.failures.lock() = 2;
    setting.deletion("ua")();
    setting.wait_until_there_are(0).await;
}

#[tokio::test]
async fn a_user_at_the_bound_does_not_hold_up_what_becomes_of_a_deleted_one() {
    let setting = setting();
    setting.add("ua", false);
    setting.add("ub", false);
    for n in 0..10 {
        setting.retain(&format!("u{n}"), "ub").await;
    }
    setting.retain("t", "ua").await;
    assert!(!setting.keeper.has_place("ub", "one more"));
    // Its messages are being counted again, and that is not done again for a while.
    tokio::time::timeout(Duration::from_secs(10), async {
        while !setting.keeper.work.lock().recount.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("nobody counts");
    let since = std::time::Instant::now();
    setting.deletion("ua")();
    setting.wait_until_there_are(10).await;
    assert!(since.elapsed() < PAUSE / 2, "{:?}", since.elapsed());
}
