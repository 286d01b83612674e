//! Message expiry as MQTT 5.0 §3.3.2.3.3 words it, for every protocol version, with a bound of the server's.
//!
//! The engine drops an expired message when it is about to be delivered. Two things are missing, and are here:
//!
//! * **The cap.** A publisher's interval longer than `mqtt.message_expiry_secs` is cut to it. (A publisher that gives
//!   none gets it from the engine, in v3.1.1 too.)
//! * **The sweep.** A message for a client that never comes back would stay in memory until its session ends. Whatever
//!   waits in the queue of an offline session is freed once it is older than the cap, without anybody reconnecting.
//!
//! And one thing too much: the engine gives a Retained Message without an interval the default of a message on its way.
//! Here it has no end. What else the engine keeps for another time than the standard says is put right in the same place: how
//! long a connection may be silent, and that no DISCONNECT makes a session stay (see [`fitter`]).
//!
//! The queue belongs to the session's own task, and can only be popped and pushed. So the sweep never takes apart a
//! queue that may still hold something: it empties one in which nothing arrived for a whole cap, where everything has
//! expired; and for a queue that keeps filling, the expired front is removed from inside the session's task, when the
//! next message arrives (see [`hooks`]).

mod fitter;
mod hooks;
mod plugin;
mod sweep;

pub use hooks::PRIORITY;
pub use plugin::register;
