//! Control of transfers between many sites, as pure functions and state machines.
//!
//! One file per entity has its states, their numbers in the database and their transitions: [`request`], [`mod@file`],
//! [`batch`], [`run`], [`circuit`]. Decisions: the scheduling round ([`scheduler`]), what the end of a run does to its
//! files ([`outcomes`]), cancelled requests ([`cancellation`]), the contents of an order ([`run_contents`]), reports of
//! hosts ([`live_run`], [`interface_rates`]) and hosts that stop reporting ([`lost_hosts`]), retries ([`backoff`]),
//! leases ([`lease`]), expiry ([`retention`]) and completion forecasts ([`forecast`]). Between a node's daemon and the
//! controller: messages ([`orders`], numbered by [`order_id`]), the agent's side of them ([`agent`]) and the attempts of
//! an order to send ([`execution`]). Classes of work: [`class`]; quotas of clients: [`quota`]. Jobs of FTS3 clients:
//! [`fts`]. HTTP, storage and clocks are the caller's; `penstock-allocation` shares rates, `penstock-mover` moves files.

#![forbid(unsafe_code)]

pub mod agent;
pub mod backoff;
pub mod batch;
pub mod cancellation;
pub mod circuit;
pub mod class;
pub mod execution;
pub mod file;
pub mod forecast;
pub mod fts;
pub mod interface_rates;
pub mod lease;
pub mod live_run;
pub mod lost_hosts;
mod numbers;
pub mod order_id;
pub mod orders;
pub mod outcomes;
pub mod quota;
pub mod request;
pub mod retention;
pub mod run;
pub mod run_contents;
pub mod scheduler;
