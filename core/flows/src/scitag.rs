//! Owner and activity of a packet, and whether to trust them.
//!
//! Every IPv6 host puts a random label on its flows, and one of about 290 of them decodes to a
//! registered pair (114 of 32,768). So a label needs a reason to be trusted:
//!
//! | the packet has | its source or a firefly | verdict |
//! |---|---|---|
//! | nothing, or a label of no registered pair | no firefly | unlabelled |
//! | the same | a trusted firefly | trusted, from the firefly |
//! | a registered pair | source among the marking hosts | trusted, host list |
//! | a registered pair | a firefly of the same pair | trusted, firefly |
//! | a label of a registered pair | a firefly of another pair | trusted, from the firefly: the label is random |
//! | a registered pair | neither | untrusted, unknown host |
//! | an option of no registered pair | no firefly | untrusted, unregistered |
//! | an option | a firefly of another pair, host not listed | untrusted, contradicted |
//!
//! An option in the Hop-by-Hop header takes precedence over one in Destination Options, and both
//! over the label. The innermost header counts; if it has no option, an option of the outermost one
//! does, but not its label: tunnels put a hash of the inner flow there (RFC 6438).
//!
//! Anyone can send a firefly. It is trusted if its sender is a marking host or a relay, both of
//! which the operator lists.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_scitags::firefly::{ReceivedFirefly, TransportProtocol, read::FlowState};
use penstock_scitags::{FlowLabel, Registry, Scitag};

use crate::bounded::Generations;
use crate::packet::{FlowKey, IpHeader, MappedAddress, Packet};
use crate::prefixes::Prefixes;

/// Most flows whose fireflies are stored.
pub const FIREFLY_FLOWS_MAX: usize = 100_000;

/// Time for which an ended flow is stored: samples of it may arrive late.
pub const FIREFLY_LINGER: Duration = Duration::from_secs(60);

/// Time for which a flow without an end is stored. Some programs send fireflies at start and end
/// only, and transfers take hours.
pub const FIREFLY_SILENCE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Count of scitag numbers: 16 bits.
const SCITAG_NUMBERS: usize = 1 << 16;

/// Part of the packet that carries the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScitagCarrier {
    /// An option of the Hop-by-Hop header.
    HopByHop,
    /// An option of the Destination Options header.
    Destination,
    /// The flow label.
    FlowLabel,
    /// A firefly.
    Firefly,
}

/// Reason to trust a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrustReason {
    /// The source is among the marking hosts.
    HostList,
    /// A firefly has the same pair.
    Firefly,
}

/// Reason not to trust a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DistrustReason {
    /// The source is not a marking host, and no firefly has the pair.
    UnknownHost,
    /// The registry lacks the pair.
    Unregistered,
    /// A firefly has another pair.
    Contradicted,
}

/// Owner and activity of a packet, with the reason to trust them or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScitagVerdict {
    /// Neither the packet nor a firefly has a pair.
    Unlabelled,
    /// The packet has a pair without a reason to trust it.
    Untrusted(Scitag, ScitagCarrier, DistrustReason),
    /// The packet or a firefly has a pair that is trusted.
    Trusted(Scitag, ScitagCarrier, TrustReason),
}

impl ScitagVerdict {
    /// The pair, if it is trusted.
    #[must_use]
    pub fn trusted(self) -> Option<Scitag> {
        match self {
            Self::Trusted(tag, ..) => Some(tag),
            _ => None,
        }
    }
}

/// Reason not to trust a firefly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The sender is not listed.
    #[error("{0} is neither a host that marks nor a relay: list it, if its fireflies are to count")]
    Sender(IpAddr),
    /// The numbers are out of range or not in the registry.
    #[error("owner {0}, activity {1} is not in the registry")]
    Pair(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct FireflyClaim {
    tag: Scitag,
    until: Duration,
}

/// Registry, host lists and fireflies, by which packets are judged.
#[derive(Debug)]
pub struct Trust {
    registry: Registry,
    registered: Box<[u64; SCITAG_NUMBERS / 64]>,
    hosts: Prefixes<()>,
    relays: Prefixes<()>,
    flows: Generations<FlowKey, FireflyClaim>,
}

impl Trust {
    /// `hosts` mark their packets and may send fireflies; `relays` may send fireflies of others.
    /// `seed` is for hashing.
    #[must_use]
    pub fn new(registry: Registry, hosts: Prefixes<()>, relays: Prefixes<()>, seed: u64) -> Self {
        let flows = Generations::new(FIREFLY_FLOWS_MAX, seed);
        let mut trust = Self { registered: Box::new([0; _]), registry, hosts, relays, flows };
        trust.index();
        trust
    }

    /// Replaces the registry by a newer one.
    pub fn set_registry(&mut self, registry: Registry) {
        self.registry = registry;
        self.index();
    }

    /// Replaces the lists of hosts and relays.
    pub fn set_hosts(&mut self, hosts: Prefixes<()>, relays: Prefixes<()>) {
        self.hosts = hosts;
        self.relays = relays;
    }

    /// Registry that judges pairs.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Count of flows known from fireflies.
    #[must_use]
    pub fn firefly_flows(&self) -> usize {
        self.flows.len()
    }

    fn index(&mut self) {
        self.registered.fill(0);
        for tag in self.registry.tags() {
            let number = tag.number() as usize;
            self.registered[number / 64 % (SCITAG_NUMBERS / 64)] |= 1 << (number % 64);
        }
    }

    fn has(&self, tag: Scitag) -> bool {
        let number = tag.number() as usize;
        self.registered[number / 64 % (SCITAG_NUMBERS / 64)] >> (number % 64) & 1 == 1
    }

    /// Processes a firefly from `sender`.
    ///
    /// # Errors
    /// When it is not trusted.
    pub fn receive_firefly(
        &mut self,
        now: Duration,
        sender: IpAddr,
        firefly: &ReceivedFirefly,
    ) -> Result<(), TrustError> {
        let address = MappedAddress::from(sender);
        if self.hosts.find(address).is_none() && self.relays.find(address).is_none() {
            return Err(TrustError::Sender(sender));
        }
        let tag = firefly.tag().ok().filter(|tag| self.has(*tag));
        let tag = tag.ok_or(TrustError::Pair(firefly.owner, firefly.activity))?;
        let keep = match firefly.state {
            FlowState::End => FIREFLY_LINGER,
            FlowState::Start | FlowState::Ongoing => FIREFLY_SILENCE_MAX,
        };
        let key = flow_of(firefly.source, firefly.destination, firefly.protocol);
        self.flows.put(canonical(key), FireflyClaim { tag, until: now.saturating_add(keep) });
        Ok(())
    }

    /// Judges a packet by its marks, its source and the fireflies of its flow.
    #[must_use]
    pub fn judge(&mut self, now: Duration, packet: &Packet) -> ScitagVerdict {
        let Some(ip) = packet.ip() else { return ScitagVerdict::Unlabelled };
        let claim = self.claim(packet, ip);
        let firefly_tag = self.firefly_tag(now, ip.flow());
        let Some((tag, carrier, registered)) = claim else {
            return match firefly_tag {
                Some(tag) => {
                    ScitagVerdict::Trusted(tag, ScitagCarrier::Firefly, TrustReason::Firefly)
                }
                None => ScitagVerdict::Unlabelled,
            };
        };
        match firefly_tag {
            Some(other) if other == tag => {
                ScitagVerdict::Trusted(tag, carrier, TrustReason::Firefly)
            }
            Some(other) if carrier == ScitagCarrier::FlowLabel => {
                ScitagVerdict::Trusted(other, ScitagCarrier::Firefly, TrustReason::Firefly)
            }
            _ if !registered => {
                ScitagVerdict::Untrusted(tag, carrier, DistrustReason::Unregistered)
            }
            _ if self.hosts.find(ip.source).is_some() => {
                ScitagVerdict::Trusted(tag, carrier, TrustReason::HostList)
            }
            Some(_) => ScitagVerdict::Untrusted(tag, carrier, DistrustReason::Contradicted),
            None => ScitagVerdict::Untrusted(tag, carrier, DistrustReason::UnknownHost),
        }
    }

    /// Pair in the packet, its carrier, and true if it is registered.
    fn claim(&self, packet: &Packet, ip: &IpHeader) -> Option<(Scitag, ScitagCarrier, bool)> {
        let option = |ip: &IpHeader| {
            let marks = [
                (ip.hop_by_hop_mark, ScitagCarrier::HopByHop),
                (ip.destination_mark, ScitagCarrier::Destination),
            ];
            marks.into_iter().find_map(|(mark, carrier)| {
                let reading = mark?.read(&self.registry)?;
                Some((reading.tag?, carrier, reading.registered))
            })
        };
        let outer = || packet.inner.and(packet.outer.as_ref()).and_then(option);
        let label = || {
            let tag = FlowLabel::from_value(ip.flow_label)?.scitag()?;
            // An ordinary label decodes to an unregistered pair.
            self.has(tag).then_some((tag, ScitagCarrier::FlowLabel, true))
        };
        option(ip).or_else(outer).or_else(label)
    }

    fn firefly_tag(&mut self, now: Duration, flow: FlowKey) -> Option<Scitag> {
        if self.flows.len() == 0 {
            return None;
        }
        let key = canonical(flow);
        let firefly_tag = *self.flows.get(&key)?;
        if firefly_tag.until <= now {
            self.flows.remove(&key);
            return None;
        }
        Some(firefly_tag.tag)
    }
}

/// Returns one key for both directions: acknowledgements belong to the flow.
fn canonical(key: FlowKey) -> FlowKey {
    let reversed = key.reversed();
    if (key.source, key.source_port) <= (key.destination, key.destination_port) {
        key
    } else {
        reversed
    }
}

fn flow_of(source: SocketAddr, destination: SocketAddr, protocol: TransportProtocol) -> FlowKey {
    FlowKey {
        source: source.ip().into(),
        destination: destination.ip().into(),
        source_port: source.port(),
        destination_port: destination.port(),
        protocol: match protocol {
            TransportProtocol::Tcp => 6,
            TransportProtocol::Udp => 17,
        },
    }
}
