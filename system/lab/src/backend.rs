//! The ways to make a link do what it is to do; which of them this machine has.
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

use crate::direction::Counters;
use crate::lateness::Counted;
use crate::line::Impairment;
use crate::node::Node;
use crate::plan::Port;

mod arrival;
mod filter;
mod netem;
mod nfqueue;
mod tag;
mod tap;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Delayed verdicts over NFQUEUE.
    Nfqueue,
    /// Frames that this program carries.
    Tap,
    /// The kernel's emulator.
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

/// One end of a link to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) port: &'a Port,
    /// Which of the node's ports.
    pub(crate) number: usize,
}

/// A part of a direction of a link that packets to one network have for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// A network of 64 bits.
    pub(crate) to: Ipv6Addr,
    /// What of the link's rate is theirs, and no more.
    pub(crate) rate: BitRate,
}

/// A link that runs.
pub(crate) trait Wire: Send {
    /// Has each direction do this from now on; the first is the one from the first end.
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()>;
    /// What each direction counted.
    fn counters(&self) -> io::Result<[Counters; 2]>;
    /// How late packets of each direction were, where that is known.
    fn lateness(&self) -> [Option<Counted>; 2];
    /// Takes a lane of this number in each direction from what others have of the link, or gives it back.
    fn set_lanes(&mut self, number: u16, lanes: Option<[Lane; 2]>) -> io::Result<()> {
        let _ = number;
        match lanes {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "only links by nfqueue have room for circuits: make the lab with --backend nfqueue",
            )),
        }
    }
    /// What each direction of a lane counted; none where there is none.
    fn lane_counters(&self, number: u16) -> Option<[Counters; 2]> {
        let _ = number;
        None
    }
}

impl Backend {
    /// Tries it out on a loopback device of a namespace of its own.
    ///
    /// # Errors
    /// Why this machine does not have it.
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

    /// Makes a link between two ends.
    pub(crate) fn join(
        self,
        name: &str,
        seed: u64,
        ends: [Place<'_>; 2],
    ) -> io::Result<Box<dyn Wire>> {
        Ok(match self {
            Self::Nfqueue => Box::new(nfqueue::Link::join(name, seed, ends)?),
            Self::Tap => Box::new(tap::Link::join(name, seed, ends)?),
            Self::Netem => Box::new(netem::Link::join(name, seed, ends)?),
        })
    }
}
