//! End-to-end tests: the real binary on free ports, one story each.
//!
//! | module | |
//! | --- | --- |
//! | `main_job`, `clients` | what the broker is for, with our client and with other people's |
//! | `access_rule`, `filters`, `names`, `wills`, `refusals` | who may subscribe and publish what |
//! | `credentials`, `ownership`, `withdrawal`, `changes` | who may connect, and for how long |
//! | `expiry`, `queue`, `qos`, `fanout`, `websocket` | how messages travel |
//! | `durable`, `resumed`, `crash`, `disk`, `size` | what survives the end of the process, and what that costs |
//! | `rest`, `rest_misuse`, `metrics`, `plugins` | what operators and backends use |
//! | `secrets`, `openbao` | where tokens and pepper come from |
//! | `config`, `cli`, `lifecycle` | the program |
//! | `limits`, `malformed`, `storms`, `retained` | what a client with a valid login may not do to others |
//! | `audit` | who did what, in the log |
//! | `cluster`, `failover`, `restarts` | several nodes as one broker, and what happens when some die |
//! | `nodes` | what they say of each other, and how they are taken out and in |
//! | `membership` | who has a vote on the routes, and gaps of a minute |
//! | `haproxy` | HAProxy in front of them |
//! | `hostile` | what attacks found |
#![allow(clippy::unwrap_used)]

mod access_rule;
mod audit;
mod changes;
mod cli;
mod clients;
mod cluster;
mod config;
mod crash;
mod credentials;
mod disk;
mod durable;
mod expiry;
mod failover;
mod fanout;
mod filters;
mod haproxy;
mod hostile;
mod lifecycle;
mod limits;
mod main_job;
mod malformed;
mod membership;
mod metrics;
mod moved;
mod names;
mod nodes;
mod openbao;
mod ownership;
mod plugins;
mod qos;
mod queue;
mod refusals;
mod rest;
mod rest_misuse;
mod restarts;
mod resumed;
mod retained;
mod secrets;
mod size;
mod storms;
mod websocket;
mod wills;
mod withdrawal;
