//! The store against a map in memory: random commands, alone and in bursts, with restarts in between.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ciqadamq_core::{
    Applied, Command, Decision, ExecuteError, PasswordHash, Rejection, Revision, User, UserDirectory, UserPatch, decide,
};
use ciqadamq_user_store::UserStore;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tokio::task::JoinSet;

use crate::support::{list, name, open, person};

const NAMES: [&str; 6] = ["a", "a+", "ab", "b", "~", "A"];
const PEOPLE: [&str; 3] = ["u", "u1", "v"];

#[derive(Debug, Clone)]
enum Step {
    Burst(Vec<Command>),
    /// a rehash of the record as it is, which must work if it is there
    RehashCurrent(&'static str),
    Reopen,
    /// snapshot of this store, installed into it
    Reinstall,
}

fn command() -> impl Strategy<Value = Command> {
    let username = || prop::sample::select(&NAMES[..]).prop_map(name);
    let userid = || prop::sample::select(&PEOPLE[..]).prop_map(person);
    let password = || "[a-z]{0,20}".prop_map(PasswordHash);
    prop_oneof![
        3 => (username(), userid(), password(), any::<bool>(), any::<bool>()).prop_map(
            |(username, userid, password, superuser, admin)| Command::Create { username, userid, password, superuser, admin }
        ),
        1 => (username(), userid(), password(), any::<(bool, bool, bool)>()).prop_map(
            |(username, userid, password, (superuser, admin, disabled))|
                Command::Put { username, userid, password, superuser, admin, disabled }
        ),
        3 => (username(), option::of(password()), option::of(userid()), any::<(Option<bool>, Option<bool>, Option<bool>)>())
            .prop_map(|(username, password, userid, (superuser, admin, disabled))| Command::Update {
                username, patch: UserPatch { password, userid, superuser, admin, disabled },
            }),
        1 => (username(), 0..50u64, password()).prop_map(
            |(username, expected, password)| Command::Rehash { username, expected: Revision(expected), password }
        ),
        2 => username().prop_map(|username| Command::Delete { username }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => vec(command(), 1..12).prop_map(Step::Burst),
        2 => prop::sample::select(&NAMES[..]).prop_map(Step::RehashCurrent),
        2 => Just(Step::Reopen),
        1 => Just(Step::Reinstall),
    ]
}

#[derive(Default)]
struct Model {
    users: BTreeMap<String, User>,
    last: Revision,
}

impl Model {
    fn apply(&mut self, command: &Command) -> Result<Applied, Rejection> {
        self.last.0 += 1;
        let username = command.username().to_string();
        match decide(self.users.get(&username), command, self.last)? {
            Decision::Write(user) => self.users.insert(username, user),
            Decision::Remove => self.users.remove(&username),
        };
        Ok(Applied { revision: self.last })
    }

    fn check(&self, store: &UserStore) {
        let status = store.status();
        assert_eq!((status.users, status.revision, status.read_only), (self.users.len() as u64, self.last, None));
        for username in NAMES {
            assert_eq!(store.get(username).unwrap().as_deref(), self.users.get(username), "{username}");
        }
        for limit in [1, 2, 100] {
            let all: Vec<_> = list(store, None, limit).iter().map(|user| User::clone(user)).collect();
            assert_eq!(all, self.users.values().cloned().collect::<Vec<_>>());
            for userid in PEOPLE {
                let some: Vec<_> = list(store, Some(userid), limit).iter().map(|user| User::clone(user)).collect();
                let expected = self.users.values().filter(|user| user.userid.as_str() == userid);
                assert_eq!(some, expected.cloned().collect::<Vec<_>>(), "{userid}");
            }
        }
    }
}

async fn run(path: &Path, steps: Vec<Step>) {
    let mut model = Model::default();
    let mut store = open(path);
    for step in steps {
        match step {
            Step::Burst(commands) => burst(&mut model, &store, commands).await,
            Step::RehashCurrent(username) => {
                let expected = model.users.get(username).map(|user| user.revision).unwrap_or_default();
                let rehash = Command::Rehash { username: name(username), expected, password: PasswordHash("h".into()) };
                burst(&mut model, &store, vec![rehash]).await;
            }
            Step::Reopen => {
                drop(store);
                store = open(path);
            }
            Step::Reinstall => {
                let snapshot = store.snapshot().unwrap();
                assert_eq!(snapshot.last_applied(), model.last);
                store
                    .install_snapshot(snapshot.last_applied(), snapshot.collect::<Vec<_>>().into_iter())
                    .await
                    .unwrap();
            }
        }
        model.check(&store);
    }
}

/// All at once, in order: tasks of this runtime take their turns as they were spawned.
async fn burst(model: &mut Model, store: &Arc<UserStore>, commands: Vec<Command>) {
    let mut tasks = JoinSet::new();
    for (at, command) in commands.iter().cloned().enumerate() {
        let store = store.clone();
        tasks.spawn(async move { (at, store.execute(command).await) });
    }
    let mut results = tasks.join_all().await;
    results.sort_by_key(|(at, _)| *at);
    for ((_, result), command) in results.into_iter().zip(&commands) {
        let result = result.map_err(|error| match error {
            ExecuteError::Rejected(rejection) => rejection,
            other => panic!("{other}"),
        });
        assert_eq!(result, model.apply(command), "{command:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_a_map_does(steps in vec(step(), 1..25)) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(&dir.path().join("users"), steps));
    }
}
