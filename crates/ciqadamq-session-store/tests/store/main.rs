//! The store, from outside: against a model with crashes, killed processes, damage, full disks.
#![allow(clippy::unwrap_used)]

mod damage;
mod faults;
mod killed;
mod model;
mod moves;
mod queues;
mod starts;
mod support;
