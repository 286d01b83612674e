//! Who sees everything: refusals are judged by what does not arrive here, never by a return code alone.

use crate::mqtt::{Client, Message};

/// A superuser subscribed to `#` (which does not cover topics that begin with `$`).
#[derive(Debug)]
pub struct Watcher {
    client: Client,
    markers: u32,
}

const MARKER: &str = "watcher/marker";

impl Watcher {
    /// Begins to watch.
    #[track_caller]
    pub fn new(mut client: Client) -> Self {
        client.subscribe(&["#"]);
        Self { client, markers: 0 }
    }

    /// Everything that was sent since the last call, as topic and payload.
    ///
    /// What was sent before this call comes before the marker that it sends, so nothing has to be waited out.
    #[track_caller]
    pub fn seen(&mut self) -> Vec<(String, String)> {
        self.messages().into_iter().map(|message| (message.topic.clone(), message.text())).collect()
    }

    /// The same with everything that belongs to a message.
    #[track_caller]
    pub fn messages(&mut self) -> Vec<Message> {
        self.markers += 1;
        let marker = self.markers.to_string();
        self.client.publish_ok(MARKER, &marker, 1);
        self.client.until(MARKER, &marker)
    }

    /// Waits for the next message, which has to be this.
    #[track_caller]
    pub fn expect(&mut self, topic: &str, payload: &str) -> Message {
        self.client.expect(topic, payload)
    }

    /// Publishes as a superuser, QoS 1.
    #[track_caller]
    pub fn publish(&mut self, topic: &str, payload: &str) {
        self.client.publish_ok(topic, payload, 1);
    }

    /// The client behind.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}
