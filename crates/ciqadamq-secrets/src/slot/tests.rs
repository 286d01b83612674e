//! A source that can be told what to say. Its pace is ten times that of a vault; what is measured are lower bounds, which hold on
//! a busy machine too.

use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use prometheus::Registry;

use super::*;
use crate::source::Pace;
use crate::value::BadValue;

const AT_LEAST: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_secs(3);
const OVERLAP: Duration = Duration::from_secs(1);

/// Says what it is told to, after a while, and counts.
struct Fake {
    says: Mutex<Result<Found, ReadError>>,
    takes: Mutex<Duration>,
    asked: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

#[async_trait]
impl Source for Fake {
    async fn read(&self, _: SecretName) -> Result<Found, ReadError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        // What it answers was so when it was asked.
        let answer = self.says.lock().clone();
        let takes = *self.takes.lock();
        tokio::time::sleep(takes).await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        answer
    }
    fn describe(&self, _: SecretName) -> String {
        "fake".into()
    }
    fn kind(&self) -> &'static str {
        "fake"
    }
    fn pace(&self) -> Pace {
        Pace { at_least: AT_LEAST, poll: POLL }
    }
}

struct Rig {
    fake: Arc<Fake>,
    slot: Arc<Slot>,
    trouble: Arc<Mutex<Option<String>>>,
    started: Instant,
}

fn value(text: &str) -> Result<Found, ReadError> {
    Ok(Found::Value { secret: Secret::new(text), version: None })
}

impl Rig {
    fn new(first: First) -> Self {
        let fake = Arc::new(Fake {
            says: Mutex::new(value("one")),
            takes: Mutex::new(Duration::from_millis(10)),
            asked: AtomicUsize::new(0),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        });
        let trouble: Arc<Mutex<Option<String>>> = Arc::default();
        let told = trouble.clone();
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let tell: Trouble = Arc::new(move |_, text| *told.lock() = text);
        let slot = Arc::new(Slot::new(SecretName::ApiToken, fake.clone(), OVERLAP, first, metrics, tell));
        tokio::spawn(slot.clone().run());
        Self { fake, slot, trouble, started: Instant::now() }
    }

    fn one() -> Self {
        Self::new(First::Source(Secret::new("one")))
    }

    fn says(&self, what: Result<Found, ReadError>) {
        *self.fake.says.lock() = what;
    }

    fn holds(&self, text: &str) -> bool {
        self.slot.current().is_some_and(|secret| secret.expose() == text.as_bytes())
    }

    /// Presents a token as the API does.
    async fn presents(&self, text: &'static str) -> (bool, LookedAgain) {
        let slot = self.slot.clone();
        let known = move || slot.current().is_some_and(|secret| secret.expose() == text.as_bytes());
        let looked = self.slot.look_again(&known).await;
        (self.holds(text), looked)
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "still not: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn asked(&self) -> usize {
        self.fake.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_value_is_known_at_the_first_question() {
    let rig = Rig::one();
    rig.says(value("two"));
    assert_eq!(rig.presents("two").await, (true, LookedAgain::Asked));
    assert_eq!(rig.asked(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_during_a_question_is_found_by_the_next_one() {
    let rig = Rig::one();
    *rig.fake.takes.lock() = Duration::from_millis(200);
    let slot = rig.slot.clone();
    let wrong = tokio::spawn(async move { slot.look_again(&|| false).await });
    // The question is under way and will bring the old value.
    while rig.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    rig.says(value("two"));
    assert_eq!(rig.presents("two").await, (true, LookedAgain::Asked));
    assert_eq!((wrong.await.unwrap(), rig.asked()), (LookedAgain::Asked, 2));
    assert!(rig.started.elapsed() >= AT_LEAST, "the second one had to wait for its turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_wrong_tokens_come_the_source_is_asked_once_in_a_while() {
    let rig = Rig::one();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        for _ in 0..60 {
            let slot = rig.slot.clone();
            tasks.push(tokio::spawn(async move { slot.look_again(&|| false).await }));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), LookedAgain::Asked);
    }
    let (asked, spent) = (rig.asked(), rig.started.elapsed());
    assert!(asked as u128 <= spent.as_millis() / AT_LEAST.as_millis() + 1, "{asked} questions in {spent:?}");
    assert_eq!(rig.fake.most_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_token_among_wrong_ones_is_never_refused() {
    let rig = Rig::one();
    for _ in 0..100 {
        let slot = rig.slot.clone();
        tokio::spawn(async move { slot.look_again(&|| false).await });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    rig.says(value("two"));
    assert_eq!(rig.presents("two").await, (true, LookedAgain::Asked));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_who_wait_are_told_so() {
    let rig = Rig::one();
    *rig.fake.takes.lock() = Duration::from_secs(2);
    let crowd: Vec<_> = (0..WAITING_MAX)
        .map(|_| rig.slot.clone())
        .map(|slot| tokio::spawn(async move { slot.look_again(&|| false).await }))
        .collect();
    while rig.slot.waiting.available_permits() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(rig.presents("x").await.1, LookedAgain::Busy);
    *rig.fake.takes.lock() = Duration::ZERO;
    for one in crowd {
        assert_eq!(one.await.unwrap(), LookedAgain::Asked);
    }
    assert_eq!(rig.presents("x").await.1, LookedAgain::Asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_that_nobody_presents_is_found_by_the_clock() {
    let rig = Rig::one();
    rig.says(value("two"));
    rig.until("the new value is known", || rig.holds("two")).await;
    assert_eq!(rig.asked(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_in_force_before_counts_for_the_overlap() {
    let rig = Rig::one();
    assert!(rig.slot.before().is_none());
    rig.says(value("two"));
    assert!(rig.presents("two").await.0);
    assert!(matches!(rig.slot.before(), Some(Before::Value(secret)) if secret.expose() == b"one"));
    rig.until("the overlap is over", || rig.slot.before().is_none()).await;
    assert!(rig.holds("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_changes_nothing_and_is_told_until_it_can() {
    let rig = Rig::one();
    for error in [
        ReadError::Unreachable("x".into()),
        ReadError::Timeout(Duration::from_secs(5)),
        ReadError::Sealed,
        ReadError::Forbidden,
        ReadError::TooLarge(1),
        ReadError::Nonsense("x"),
        ReadError::Value(BadValue::Empty),
    ] {
        let kind = error.kind();
        rig.says(Err(error));
        assert_eq!(rig.presents("two").await, (false, LookedAgain::NoAnswer), "{kind}");
        assert_eq!(rig.trouble.lock().clone(), Some(format!("fake: {kind}")));
        assert!(rig.holds("one"));
    }
    rig.says(Ok(Found::Absent));
    assert_eq!(rig.presents("two").await.1, LookedAgain::NoAnswer);
    assert!(rig.holds("one"), "a secret that vanished closes nothing");
    rig.says(value("two"));
    assert!(rig.presents("two").await.0);
    assert_eq!(*rig.trouble.lock(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_asks_us_to_stay_away_is_left_alone_and_nobody_waits_for_it() {
    let rig = Rig::one();
    rig.says(Err(ReadError::RateLimited { retry_after: Some(Duration::from_secs(4)) }));
    assert_eq!(rig.presents("two").await.1, LookedAgain::NoAnswer);
    let asked = rig.asked();
    rig.says(value("two"));
    assert_eq!(rig.presents("two").await, (false, LookedAgain::NoAnswer));
    assert_eq!(rig.asked(), asked, "nobody waited for it");
    let before = Instant::now();
    rig.until("it is asked again when the time is over", || rig.holds("two")).await;
    assert!(before.elapsed() > Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_hear_of_a_value_before_those_who_wait_for_it_go_on() {
    let rig = Rig::new(First::Unknown);
    assert!(!rig.slot.is_known());
    let heard: Arc<Mutex<Vec<Option<Vec<u8>>>>> = Arc::default();
    let listener = heard.clone();
    rig.slot.observe(Box::new(move |_, value| listener.lock().push(value.map(|v| v.expose().to_vec()))));
    rig.says(Ok(Found::Absent));
    rig.presents("x").await;
    assert_eq!((rig.slot.is_known(), heard.lock().clone()), (true, vec![None]));
    rig.says(value("two"));
    rig.presents("two").await;
    rig.presents("x").await;
    assert_eq!(heard.lock().clone(), vec![None, Some(b"two".to_vec())], "the same value again is no news");
}
