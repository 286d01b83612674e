//! Routing on one node: who gets what is published to a Topic Name.
//!
//! The engine keeps Topic Filters in a tree and searches it for every message. That is most of what a message costs it
//! besides the network, and in an application with a topic per user the same few filters are found each time. The
//! [router](router::RememberingRouter) here stands in the engine's place. It has the engine's tree and the engine's table of
//! subscribers, and remembers for Topic Names which filters they match:
//!
//! * [`memo`] is the memory. It has a fixed number of places, like the cache of a processor; a name that is new takes the
//!   place of another. What is remembered are filters and not subscribers, so a client that comes or goes changes nothing in it.
//! * [`epochs`] says whether what is remembered still holds. A filter that is new tells those names that it could match, and
//!   not all: thousands of users who log in, each with a filter of its own, leave what is known about the others alone.
//! * [`recipients`] makes the list of those who get the message from the filters.
//!
//! A filter that loses its last subscriber tells nobody. It is found without subscribers, and then forgotten.

mod epochs;
mod memo;
mod metrics;
mod plugin;
mod recipients;
mod router;
#[cfg(test)]
mod tests;

pub use plugin::register;
