//! A source that can be told what to say.

use super::*;
use crate::error::ReadError;
use crate::source::{Found, Pace};

#[derive(Default)]
struct Told(Mutex<BTreeMap<SecretName, &'static str>>);

#[async_trait]
impl Source for Told {
    async fn read(&self, name: SecretName) -> Result<Found, ReadError> {
        Ok(match self.0.lock().get(&name) {
            Some(value) => Found::Value { secret: Secret::new(*value), version: None },
            None => Found::Absent,
        })
    }
    fn describe(&self, _: SecretName) -> String {
        "told".into()
    }
    fn kind(&self) -> &'static str {
        "told"
    }
    fn pace(&self) -> Pace {
        Pace { at_least: Duration::from_millis(1), poll: Duration::from_secs(3600) }
    }
}

async fn secrets(source: &Arc<Told>, overlap: Duration) -> Secrets {
    let source = Some(source.clone() as Arc<dyn Source>);
    let setup = Setup { source, configured: Configured::default(), start_timeout: Duration::ZERO, overlap };
    let secrets = Secrets::load(setup, Arc::default(), &Registry::new()).await.unwrap();
    secrets.watch();
    secrets
}

/// What other nodes may prove that they know.
fn taken(secrets: &Secrets) -> Vec<String> {
    secrets.peer_tokens().iter().map(|token| String::from_utf8(token.expose().to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn other_nodes_may_know_the_token_in_force_and_for_the_overlap_the_one_before() {
    let source = Arc::new(Told::default());
    source.0.lock().insert(SecretName::ApiToken, "management");
    let secrets = secrets(&source, Duration::from_secs(3600)).await;
    let rotate = async |name, value| {
        source.0.lock().insert(name, value);
        assert_eq!(secrets.look_again(name, &|| false).await, LookedAgain::Asked);
    };
    assert_eq!(taken(&secrets), ["management"]);
    rotate(SecretName::ApiToken, "management2").await;
    assert_eq!(taken(&secrets), ["management2", "management"]);
    // The first replication token takes its place.
    rotate(SecretName::ReplToken, "replication").await;
    assert_eq!(taken(&secrets), ["replication", "management2"]);
    rotate(SecretName::ReplToken, "replication2").await;
    assert_eq!(taken(&secrets), ["replication2", "replication"]);
}

#[tokio::test]
async fn without_an_overlap_the_token_before_counts_for_nothing() {
    let source = Arc::new(Told::default());
    source.0.lock().extend([(SecretName::ApiToken, "management"), (SecretName::ReplToken, "replication")]);
    let secrets = secrets(&source, Duration::ZERO).await;
    source.0.lock().insert(SecretName::ReplToken, "replication2");
    assert_eq!(secrets.look_again(SecretName::ReplToken, &|| false).await, LookedAgain::Asked);
    assert_eq!(taken(&secrets), ["replication2"]);
}
