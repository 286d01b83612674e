//! Retained Messages that the disk does not take.

use super::*;
use crate::{StoreConfig, trial};

fn message(topic: &str, payload: &'static str) -> Retain {
    let from = From::from_system(Id::from(1, ClientId::from("publisher")));
    let mut publish = nothing(topic);
    publish.payload = payload.into();
    Retain { msg_id: None, from, publish }
}

async fn payload(retained: &Retained, topic: &str) -> Option<String> {
    let found = retained.get(&topic.into()).await.unwrap();
    found.first().map(|(_, retain)| String::from_utf8(retain.publish.payload.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_of_a_topic_in_a_commit_that_fails_leave_what_was_there_before_both() {
    let dir = tempfile::tempdir().unwrap();
    for (n, (first, second)) in [("2", "3"), ("2", ""), ("", "2"), ("", "")].into_iter().enumerate() {
        let path = dir.path().join(format!("store{n}"));
        let store = Arc::new(Store::open(StoreConfig { reserve_bytes: 0, ..StoreConfig::at(&path) }).unwrap());
        let retained = Retained::load(store.clone(), None);
        let (known, new) = (TopicName::from("known"), TopicName::from("new"));
        let set = |topic: &'static str, payload| {
            let (retained, topic) = (&retained, TopicName::from(topic));
            async move { retained.set(&topic, message(&topic, payload), None).await }
        };
        set("known", "1").await.unwrap();
        trial::fail_after(&path, 0, true);
        {
            // The writer takes its frame when it has this: after all of them.
            let journal = store.inner.disk.as_ref().unwrap().journal.lock();
            let release = async { drop(journal) };
            let outcomes =
                tokio::join!(set("known", first), set("known", second), set("new", "2"), set("new", "3"), release);
            assert!(outcomes.0.is_err() && outcomes.1.is_err() && outcomes.2.is_err() && outcomes.3.is_err());
        }
        assert_eq!(payload(&retained, &known).await.as_deref(), Some("1"), "{first:?}, then {second:?}");
        assert_eq!(payload(&retained, &new).await, None);
        assert_eq!(retained.count().await, 1);
        // While nothing is written it may be cleared, but it is not said to be.
        assert!(set("known", "").await.is_err());
        assert_eq!((payload(&retained, &known).await, retained.count().await), (None, 0));
        trial::heal(&path);
    }
}
