//! Circuits: who makes guaranteed paths in the network, and what the controller does about those that it booked.
//!
//! A [`CircuitProvider`] is whatever makes a path with a rate of its own between two sites: the lab today, the
//! orchestrator of a real network another day. It is told everything by name and remembers what it made under the
//! circuit's name; to be told twice is to be told once. The controller keeps the account: what is to stand is in its
//! database, and its leader brings the network there (`keep`) after every round, so that a crash of either side costs
//! a second try and nothing else.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;

mod keep;
mod lab;

pub(crate) use keep::run;
pub use lab::LabCircuits;

/// A circuit that is to stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circuit {
    /// By which the provider knows it.
    pub name: String,
    /// Bits per second on the wire, from source to destination.
    pub rate_bps: u64,
    /// Hosts of the site where files are.
    pub from: Vec<String>,
    /// Hosts of the site where they go.
    pub to: Vec<String>,
    /// Names of the links between the sites' switches, from the source on.
    pub links: Vec<String>,
}

/// Addresses that lead over a circuit, by host.
pub type Addresses = BTreeMap<String, String>;

/// What a provider sees of a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its links, from the source on.
    pub links: Vec<SeenLink>,
}

/// What a provider sees of a link of a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenLink {
    /// Its name.
    pub link: String,
    /// Packets pass it.
    pub up: bool,
    /// Bytes of the circuit that it carried towards the destination since the circuit was made.
    pub bytes: u64,
}

/// Why a provider did not do it, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CircuitError(pub String);

/// Who makes circuits.
pub trait CircuitProvider: fmt::Debug + Send + Sync {
    /// As the API names it.
    fn name(&self) -> &'static str;

    /// Makes a circuit, and tells the addresses that lead over it; hosts that have no part in it have none. One of this
    /// name that stands as it is asked for stays; another one is replaced.
    fn make<'a>(&'a self, circuit: &'a Circuit) -> BoxFuture<'a, Result<Addresses, CircuitError>>;

    /// Reads its counters; none where it does not stand.
    fn verify<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Seen>, CircuitError>>;

    /// Releases a circuit; one that does not stand is released.
    fn release<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CircuitError>>;

    /// Moves a circuit to other links, with its addresses where the provider can; whoever replaces when it makes need not
    /// say more.
    fn restore<'a>(
        &'a self,
        circuit: &'a Circuit,
    ) -> BoxFuture<'a, Result<Addresses, CircuitError>> {
        self.make(circuit)
    }
}
