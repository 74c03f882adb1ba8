//! Server side of iperf3's protocol, so that `iperf3 -c` may test against a listener.
//!
//! [`wire`], [`params`] and [`results`] are pure; `server` answers clients on a listener's port with the
//! streams of other tests (`crate::stream`).

pub mod params;
pub mod results;
pub mod wire;

pub(crate) mod control;
pub(crate) mod server;
