//! Protocol of iperf3: `iperf3 -c` may test against a listener, and this client against `iperf3 -s`.
//!
//! [`wire`], [`params`] and [`results`] are pure; `server` answers clients on a listener's port, [`client`] tests
//! against a server, both with the streams of other tests (`crate::stream`).

pub mod client;
pub mod params;
pub mod results;
pub mod wire;

pub(crate) mod control;
pub(crate) mod server;
