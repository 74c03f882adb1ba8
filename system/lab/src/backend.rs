//! Backends that emulate links, and probes for those that this machine supports.
//!
//! | backend | how | for |
//! |---|---|---|
//! | nfqueue | packets wait in the kernel for a verdict | everything; payload never leaves the kernel, super-packets stay whole |
//! | tap | packets pass through this program | losses of single segments of a super-packet |
//! | netem | the kernel's own emulator | a second opinion, where the kernel has it |
//!
//! With nfqueue a link that has a rate and nothing else is shaped by the kernel (tbf), and loss has the kernel
//! segment super-packets first, so that single segments are lost.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use penstock_sys::namespace::NetworkNamespace;
use penstock_sys::net::{Configurator, Netem, PacketQueue, Tap, divert};
use penstock_units::BitRate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::direction::DirectionCounters;
use crate::line::Impairment;
use crate::node::RunningNode;
use crate::plan::PlannedPort;
use crate::timing_error::TimingErrorCounts;

mod arrival;
mod filter;
mod netem;
mod nfqueue;
mod tag;
mod tap;

/// Mechanism that emulates the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NFQUEUE with delayed verdicts.
    Nfqueue,
    /// TAP devices between which this program forwards frames.
    Tap,
    /// The kernel's netem qdisc.
    Netem,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nfqueue => "nfqueue",
            Self::Tap => "tap",
            Self::Netem => "netem",
        })
    }
}

/// Node and port at one end of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmulatedEnd<'a> {
    pub(crate) node: &'a Arc<RunningNode>,
    pub(crate) port: &'a PlannedPort,
    /// Index of the port in the node.
    pub(crate) number: usize,
}

/// A share of one direction of a link, reserved for packets to one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Destination network, a /64.
    pub(crate) to: Ipv6Addr,
    /// Reserved rate, which is also the limit.
    pub(crate) rate: BitRate,
}

/// An emulated link of a running lab.
pub(crate) trait EmulatedLink: Send {
    /// Applies impairments to both directions; the first direction starts at the first end.
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()>;
    /// Reads the counters of both directions.
    fn counters(&self) -> io::Result<[DirectionCounters; 2]>;
    /// Timing error of each direction, where the backend measures it.
    fn timing_error(&self) -> [Option<TimingErrorCounts>; 2];
    /// Reserves lane `number` in each direction, or releases it (`None`).
    fn set_lanes(&mut self, number: u16, lanes: Option<[Lane; 2]>) -> io::Result<()> {
        let _ = number;
        match lanes {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "only nfqueue links support circuits: start the lab with --backend nfqueue",
            )),
        }
    }
    /// Counters of both directions of a lane; `None` without such a lane.
    fn lane_counters(&self, number: u16) -> Option<[DirectionCounters; 2]> {
        let _ = number;
        None
    }
}

impl Backend {
    /// Checks that this machine supports the backend, in a new namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn probe(self) -> io::Result<()> {
        NetworkNamespace::new()?.inside(|| {
            let configurator = Configurator::open()?;
            let device = configurator.index_of("lo")?;
            match self {
                Self::Nfqueue => {
                    PacketQueue::open(0, 64)?;
                    divert(&[]).map(|_| ())
                }
                Self::Tap => Tap::open("probe").map(|_| ()),
                Self::Netem => configurator.replace_netem(device, &Netem::PASS_THROUGH),
            }
        })?
    }

    /// Creates a link between two ends.
    pub(crate) fn join(
        self,
        name: &str,
        seed: u64,
        ends: [EmulatedEnd<'_>; 2],
    ) -> io::Result<Box<dyn EmulatedLink>> {
        Ok(match self {
            Self::Nfqueue => Box::new(nfqueue::NfqueueLink::join(name, seed, ends)?),
            Self::Tap => Box::new(tap::TapLink::join(name, seed, ends)?),
            Self::Netem => Box::new(netem::NetemLink::join(name, seed, ends)?),
        })
    }
}
