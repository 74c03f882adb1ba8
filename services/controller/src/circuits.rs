//! Circuits: the interface of providers, and the reconciliation of booked circuits with the network.
//!
//! A [`CircuitProvider`] builds paths with a guaranteed rate between two sites: the lab, or the orchestrator of a real
//! network. It identifies a circuit by its name, so calls are idempotent. The database holds the desired circuits; the
//! leader reconciles the network with it after every round (`reconcile`), so a crash of either side costs one more
//! attempt.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use penstock_lab::control::ControlError;

mod lab;
mod reconcile;

pub use lab::LabCircuits;
pub(crate) use reconcile::run;

/// A circuit to establish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitSpec {
    /// Name that identifies it at the provider.
    pub name: String,
    /// Bits per second on the wire, from source to destination.
    pub rate_bps: u64,
    /// Hosts of the source site.
    pub from: Vec<String>,
    /// Hosts of the destination site.
    pub to: Vec<String>,
    /// Names of the links between the sites' switches, from the source on.
    pub links: Vec<String>,
}

/// IP address dedicated to a circuit, by host.
pub type HostAddresses = BTreeMap<String, String>;

/// Status of a circuit at its provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitStatus {
    /// Its links, from the source on.
    pub links: Vec<CircuitLinkStatus>,
}

/// Status of a link of a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitLinkStatus {
    /// Name of the link.
    pub link: String,
    /// Set if it carries packets.
    pub up: bool,
    /// Bytes of the circuit carried towards the destination since it was established.
    pub bytes: u64,
}

/// A failed call to a provider.
#[derive(Debug, thiserror::Error)]
pub enum CircuitError {
    /// The provider does not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The lab refuses the call or does not answer.
    #[error(transparent)]
    Lab(#[from] ControlError),
}

/// A system that establishes circuits.
pub trait CircuitProvider: fmt::Debug + Send + Sync {
    /// Returns the name in the API.
    fn name(&self) -> &'static str;

    /// Establishes a circuit and returns its addresses, by host. An identical circuit of the name is kept, a different
    /// one replaced.
    fn make<'a>(
        &'a self,
        circuit: &'a CircuitSpec,
    ) -> BoxFuture<'a, Result<HostAddresses, CircuitError>>;

    /// Returns the status of a circuit; none if it is not established.
    fn verify<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CircuitStatus>, CircuitError>>;

    /// Releases a circuit; succeeds if it is not established.
    fn release<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CircuitError>>;

    /// Moves a circuit to other links, keeping its addresses if possible. The default calls [`Self::make`], for
    /// providers that replace circuits.
    fn restore<'a>(
        &'a self,
        circuit: &'a CircuitSpec,
    ) -> BoxFuture<'a, Result<HostAddresses, CircuitError>> {
        self.make(circuit)
    }
}
