use super::*;
use ciqadamq_core::{
    Applied, DirectoryError, DirectoryStatus, ExecuteError, UserId, UserObserver, UserPage, UserQuery,
};
use parking_lot::Mutex;
use std::time::Duration;

/// A directory of one user that can be told to fail.
struct OneUser {
    user: Mutex<Option<User>>,
    broken: bool,
    executed: Mutex<Vec<Command>>,
}

#[async_trait::async_trait]
impl UserDirectory for OneUser {
    fn get(&self, username: &str) -> Result<Option<Arc<User>>, DirectoryError> {
        if self.broken {
            return Err(DirectoryError { reason: "broken".into() });
        }
        Ok(self.user.lock().clone().filter(|u| u.username.as_str() == username).map(Arc::new))
    }
    fn list(&self, _: &UserQuery) -> Result<UserPage, DirectoryError> {
        Ok(UserPage::default())
    }
    async fn execute(&self, command: Command) -> Result<Applied, ExecuteError> {
        self.executed.lock().push(command);
        Ok(Applied { revision: Revision(9) })
    }
    fn revision(&self) -> Revision {
        Revision(5)
    }
    fn observe(&self, _: Arc<dyn UserObserver>) {}
    fn status(&self) -> DirectoryStatus {
        DirectoryStatus::default()
    }
}

const CHEAP: phc::HashParams = phc::HashParams { m_cost: 64, t_cost: 1, p_cost: 1 };

fn alice(password: &str) -> User {
    User {
        username: Username::new("alice").unwrap(),
        userid: UserId::new("ua").unwrap(),
        password: phc::hash(password.as_bytes(), CHEAP).unwrap(),
        superuser: false,
        admin: false,
        disabled: false,
        revision: Revision(3),
        valid_from: Revision(3),
    }
}

async fn judge_of(user: Option<User>, broken: bool) -> (Judge, Arc<OneUser>) {
    braked_judge_of(user, broken, AuthConfig { failures_per_user: 3, ..AuthConfig::default() }).await
}

async fn braked_judge_of(user: Option<User>, broken: bool, config: AuthConfig) -> (Judge, Arc<OneUser>) {
    let directory = Arc::new(OneUser { user: Mutex::new(user), broken, executed: Mutex::default() });
    let rules = AccessRules::new(&["chatsync".into()], &[], &[]).unwrap();
    let pool = HashPool::start(2, 64, Duration::from_secs(5), CHEAP).unwrap();
    let metrics = Arc::new(AuthMetrics::new(&prometheus::Registry::new()).unwrap());
    let judge = Judge::new(&config, directory.clone(), Arc::new(rules), Arc::new(pool), metrics).await.unwrap();
    (judge, directory)
}

fn login<'a>(username: &'a str, password: &'a str) -> Login<'a> {
    Login {
        username: Some(username),
        password: Some(password.as_bytes()),
        client_id: "dev1",
        address: Some(IpAddr::from([192, 0, 2, 1])),
        will: None,
        tag: 7,
        gone: &THERE,
    }
}

/// A client that stays.
static THERE: Notify = Notify::const_new();

async fn verdict(judge: &Judge, login: Login<'_>, owner: Option<&str>) -> Result<Arc<Principal>, Refusal> {
    judge.judge(&login, async |_: &str, userid: &str| owner.is_some_and(|owner| owner != userid)).await
}

#[tokio::test]
async fn the_right_password_gives_a_principal_that_knows_its_login() {
    let (judge, _) = judge_of(Some(alice("pw")), false).await;
    let principal = verdict(&judge, login("alice", "pw"), None).await.unwrap();
    assert_eq!((principal.userid.as_str(), principal.login, principal.tag), ("ua", Revision(5), 7));
}

#[tokio::test]
async fn missing_wrong_and_impossible_credentials_are_refused() {
    let (judge, _) = judge_of(Some(alice("pw")), false).await;
    let none = Login { username: None, ..login("alice", "pw") };
    assert_eq!(verdict(&judge, none, None).await.unwrap_err(), Refusal::MissingCredentials);
    let none = Login { password: None, ..login("alice", "pw") };
    assert_eq!(verdict(&judge, none, None).await.unwrap_err(), Refusal::MissingCredentials);
    for (name, password, refusal) in [
        ("", "pw", Refusal::MissingCredentials),
        ("alice", "", Refusal::MissingCredentials),
        ("alice", "no", Refusal::WrongPassword),
        ("bob", "pw", Refusal::UnknownUser),
        ("a/b", "pw", Refusal::UnknownUser),
        ("alice", &"x".repeat(513), Refusal::WrongPassword),
    ] {
        assert_eq!(verdict(&judge, login(name, password), None).await.unwrap_err(), refusal, "{name} {password}");
    }
}

#[tokio::test]
async fn a_client_id_of_another_person_is_refused_and_ones_own_is_not() {
    let (judge, _) = judge_of(Some(alice("pw")), false).await;
    assert!(verdict(&judge, login("alice", "pw"), Some("ua")).await.is_ok());
    assert_eq!(verdict(&judge, login("alice", "pw"), Some("ub")).await.unwrap_err(), Refusal::ForeignClientId);
    // A wrong password learns nothing about the client id.
    assert_eq!(verdict(&judge, login("alice", "no"), Some("ub")).await.unwrap_err(), Refusal::WrongPassword);
}

#[tokio::test]
async fn a_will_is_judged_like_a_publish() {
    let (judge, _) = judge_of(Some(alice("pw")), false).await;
    let will = |topic| WillOf { topic, retain: false, is_malformed: false };
    let with_will = |topic| Login { will: Some(will(topic)), ..login("alice", "pw") };
    assert!(verdict(&judge, with_will("chatsync"), None).await.is_ok());
    for topic in ["chat/ub/m/all", "$SYS/x", "$delayed/1/chatsync", "a/#", ""] {
        assert!(matches!(verdict(&judge, with_will(topic), None).await.unwrap_err(), Refusal::Will(_)), "{topic}");
    }
}

#[tokio::test]
async fn a_disabled_user_is_refused_even_with_the_right_password() {
    let (judge, _) = judge_of(Some(User { disabled: true, ..alice("pw") }), false).await;
    assert_eq!(verdict(&judge, login("alice", "pw"), None).await.unwrap_err(), Refusal::Disabled);
    assert_eq!(verdict(&judge, login("alice", "no"), None).await.unwrap_err(), Refusal::WrongPassword);
}

#[tokio::test]
async fn a_directory_that_does_not_answer_lets_nobody_in() {
    let (judge, _) = judge_of(Some(alice("pw")), true).await;
    assert_eq!(verdict(&judge, login("alice", "pw"), None).await.unwrap_err(), Refusal::DirectoryUnavailable);
}

#[tokio::test]
async fn a_braked_user_still_gets_in_with_a_login_that_is_remembered() {
    let (judge, _) = judge_of(Some(alice("pw")), false).await;
    verdict(&judge, login("alice", "pw"), None).await.unwrap();
    for _ in 0..3 {
        assert_eq!(verdict(&judge, login("alice", "no"), None).await.unwrap_err(), Refusal::WrongPassword);
    }
    assert_eq!(verdict(&judge, login("alice", "no"), None).await.unwrap_err(), Refusal::Braked);
    assert!(verdict(&judge, login("alice", "pw"), None).await.is_ok());
}

#[tokio::test]
async fn what_one_brake_refuses_unhashed_the_other_does_not_count() {
    let config = AuthConfig { failures_per_user: 3, failures_per_address: 2, ..AuthConfig::default() };
    let (judge, _) = braked_judge_of(Some(alice("pw")), false, config).await;
    for name in ["bob", "carol"] {
        assert_eq!(verdict(&judge, login(name, "no"), None).await.unwrap_err(), Refusal::UnknownUser);
    }
    // This address is braked now, whatever it says about whom.
    for _ in 0..10 {
        assert_eq!(verdict(&judge, login("alice", "no"), None).await.unwrap_err(), Refusal::Braked);
    }
    let elsewhere = Login { address: Some(IpAddr::from([192, 0, 2, 2])), ..login("alice", "pw") };
    assert!(verdict(&judge, elsewhere, None).await.is_ok(), "she is locked out by what nobody hashed");
}

#[tokio::test]
async fn a_host_is_one_address_to_the_brake_however_it_writes_itself() {
    let config = AuthConfig { failures_per_address: 2, ..AuthConfig::default() };
    for same in [["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3"], ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"]] {
        let (judge, _) = braked_judge_of(Some(alice("pw")), false, config.clone()).await;
        let from = |address: &str| Login { address: address.parse().ok(), ..login("bob", "no") };
        let mut refusals = Vec::new();
        for address in same {
            refusals.push(verdict(&judge, from(address), None).await.unwrap_err());
        }
        assert_eq!(refusals, [Refusal::UnknownUser, Refusal::UnknownUser, Refusal::Braked], "{same:?}");
    }
}

#[tokio::test]
async fn a_client_that_is_gone_is_not_hashed_for_and_not_held_responsible() {
    let slow = phc::HashParams { m_cost: 65_536, t_cost: 4, p_cost: 1 };
    let user = User { password: phc::hash(b"pw", slow).unwrap(), ..alice("pw") };
    let (judge, _) = judge_of(Some(user), false).await;
    let gone = Notify::new();
    for _ in 0..5 {
        gone.notify_one();
        let left = Login { gone: &gone, ..login("alice", "pw") };
        assert_eq!(verdict(&judge, left, None).await.unwrap_err(), Refusal::Gone);
    }
    assert!(verdict(&judge, login("alice", "pw"), None).await.is_ok(), "she is braked");
}

#[tokio::test]
async fn an_outdated_hash_is_upgraded_after_the_login() {
    let old = phc::HashParams { m_cost: 128, ..CHEAP };
    let user = User { password: phc::hash(b"pw", old).unwrap(), ..alice("pw") };
    let (judge, directory) = judge_of(Some(user), false).await;
    verdict(&judge, login("alice", "pw"), None).await.unwrap();
    for _ in 0..1_000 {
        if !directory.executed.lock().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let executed = directory.executed.lock();
    let [Command::Rehash { expected, password, .. }] = &executed[..] else { panic!("{executed:?}") };
    assert_eq!(*expected, Revision(3));
    assert!(!phc::is_outdated(&password.0, CHEAP));
}
