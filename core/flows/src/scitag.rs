//! Whose a packet is, and whether that may be believed.
//!
//! Every IPv6 host puts a random label on its flows, and one of about 290 of them reads as a registered
//! pair (114 of 32,768). So a label says something only with a reason to trust it:
//!
//! | what the packet has | who sent it, or a firefly | verdict |
//! |---|---|---|
//! | nothing, or a label of no registered pair | no firefly | unlabelled |
//! | the same | a firefly that was believed | trusted, from the firefly |
//! | a registered pair | source among the hosts that mark | trusted, host list |
//! | a registered pair | a firefly of the same pair | trusted, firefly |
//! | a label of a registered pair | a firefly of another pair | trusted, from the firefly: the label is chance |
//! | a registered pair | neither | untrusted, unknown host |
//! | an option of no registered pair | no firefly | untrusted, unregistered |
//! | an option | a firefly of another pair, host not listed | untrusted, contradicted |
//!
//! An option in the Hop-by-Hop header goes before one in Destination Options, and both before the label.
//! Marks are those of the innermost header; where it has no option, one of the outermost counts, but its label does
//! not: tunnels put a hash of the inner flow there (RFC 6438).
//!
//! A firefly is a datagram that anyone can write. It is believed when it comes from a host that marks or
//! from a relay, both of which the operator lists.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_scitags::firefly::{ReceivedFirefly, TransportProtocol, read::FlowState};
use penstock_scitags::{FlowLabel, Registry, Scitag};

use crate::bounded::Generations;
use crate::packet::{Address, FlowKey, Ip, Packet};
use crate::prefixes::Prefixes;

/// Most flows with fireflies that are remembered.
pub const FIREFLY_FLOWS_MAX: usize = 100_000;

/// How long a flow that has ended is remembered: samples of it may still be on their way.
pub const FIREFLY_LINGER: Duration = Duration::from_secs(60);

/// How long a flow is remembered whose end is never told. Some programs tell start and end alone, and
/// transfers last for hours.
pub const FIREFLY_SILENCE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Numbers of scitags: 16 bits.
const NUMBERS: usize = 1 << 16;

/// Where a pair stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// An option of the Hop-by-Hop header.
    HopByHop,
    /// An option of the Destination Options header.
    Destination,
    /// The flow label.
    FlowLabel,
    /// A firefly.
    Firefly,
}

/// Why a pair is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grounds {
    /// The source is among the hosts that mark.
    HostList,
    /// A firefly says the same.
    Firefly,
}

/// Why a pair is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doubt {
    /// The source is not among the hosts that mark, and no firefly says the same.
    UnknownHost,
    /// The registry does not have it.
    Unregistered,
    /// A firefly says another.
    Contradicted,
}

/// Whose a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Nobody says.
    Unlabelled,
    /// It says so, and there is no reason to believe it.
    Untrusted(Scitag, Carrier, Doubt),
    /// It says so, or a firefly does, and there is reason to believe it.
    Trusted(Scitag, Carrier, Grounds),
}

impl Verdict {
    /// The pair, if it is to be believed.
    #[must_use]
    pub fn trusted(self) -> Option<Scitag> {
        match self {
            Self::Trusted(tag, ..) => Some(tag),
            _ => None,
        }
    }
}

/// Why a firefly is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disbelief {
    /// Its sender is not listed.
    #[error("{0} is neither a host that marks nor a relay: list it, if its fireflies are to count")]
    Sender(IpAddr),
    /// Its numbers are no pair, or the registry does not have them.
    #[error("owner {0}, activity {1} is not in the registry")]
    Pair(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Told {
    tag: Scitag,
    until: Duration,
}

/// What is needed to judge: the registry, the hosts, the fireflies heard.
#[derive(Debug)]
pub struct Trust {
    registry: Registry,
    registered: Box<[u64; NUMBERS / 64]>,
    hosts: Prefixes<()>,
    relays: Prefixes<()>,
    flows: Generations<FlowKey, Told>,
}

impl Trust {
    /// `hosts` mark their packets and may send fireflies, `relays` may send fireflies of others. `seed`
    /// is for hashing.
    #[must_use]
    pub fn new(registry: Registry, hosts: Prefixes<()>, relays: Prefixes<()>, seed: u64) -> Self {
        let flows = Generations::new(FIREFLY_FLOWS_MAX, seed);
        let mut trust = Self { registered: Box::new([0; _]), registry, hosts, relays, flows };
        trust.index();
        trust
    }

    /// Takes a newer registry.
    pub fn set_registry(&mut self, registry: Registry) {
        self.registry = registry;
        self.index();
    }

    /// Takes other lists.
    pub fn set_hosts(&mut self, hosts: Prefixes<()>, relays: Prefixes<()>) {
        self.hosts = hosts;
        self.relays = relays;
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// How many flows are known from fireflies.
    #[must_use]
    pub fn firefly_flows(&self) -> usize {
        self.flows.len()
    }

    fn index(&mut self) {
        self.registered.fill(0);
        for tag in self.registry.tags() {
            let number = tag.number() as usize;
            self.registered[number / 64 % (NUMBERS / 64)] |= 1 << (number % 64);
        }
    }

    fn has(&self, tag: Scitag) -> bool {
        let number = tag.number() as usize;
        self.registered[number / 64 % (NUMBERS / 64)] >> (number % 64) & 1 == 1
    }

    /// Takes a firefly that `sender` sent.
    ///
    /// # Errors
    /// When it is not believed.
    pub fn hear(
        &mut self,
        now: Duration,
        sender: IpAddr,
        firefly: &ReceivedFirefly,
    ) -> Result<(), Disbelief> {
        let address = Address::from(sender);
        if self.hosts.find(address).is_none() && self.relays.find(address).is_none() {
            return Err(Disbelief::Sender(sender));
        }
        let tag = firefly.tag().ok().filter(|tag| self.has(*tag));
        let tag = tag.ok_or(Disbelief::Pair(firefly.owner, firefly.activity))?;
        let keep = match firefly.state {
            FlowState::End => FIREFLY_LINGER,
            FlowState::Start | FlowState::Ongoing => FIREFLY_SILENCE_MAX,
        };
        let key = flow_of(firefly.source, firefly.destination, firefly.protocol);
        self.flows.put(canonical(key), Told { tag, until: now.saturating_add(keep) });
        Ok(())
    }

    /// Whose this packet is.
    #[must_use]
    pub fn judge(&mut self, now: Duration, packet: &Packet) -> Verdict {
        let Some(ip) = packet.ip() else { return Verdict::Unlabelled };
        let claim = self.claim(packet, ip);
        let told = self.told(now, ip.flow());
        let Some((tag, carrier, registered)) = claim else {
            return match told {
                Some(tag) => Verdict::Trusted(tag, Carrier::Firefly, Grounds::Firefly),
                None => Verdict::Unlabelled,
            };
        };
        match told {
            Some(other) if other == tag => Verdict::Trusted(tag, carrier, Grounds::Firefly),
            Some(other) if carrier == Carrier::FlowLabel => {
                Verdict::Trusted(other, Carrier::Firefly, Grounds::Firefly)
            }
            _ if !registered => Verdict::Untrusted(tag, carrier, Doubt::Unregistered),
            _ if self.hosts.find(ip.source).is_some() => {
                Verdict::Trusted(tag, carrier, Grounds::HostList)
            }
            Some(_) => Verdict::Untrusted(tag, carrier, Doubt::Contradicted),
            None => Verdict::Untrusted(tag, carrier, Doubt::UnknownHost),
        }
    }

    /// What the packet says of itself, and whether the registry has that.
    fn claim(&self, packet: &Packet, ip: &Ip) -> Option<(Scitag, Carrier, bool)> {
        let option = |ip: &Ip| {
            let marks = [
                (ip.hop_by_hop_mark, Carrier::HopByHop),
                (ip.destination_mark, Carrier::Destination),
            ];
            marks.into_iter().find_map(|(mark, carrier)| {
                let reading = mark?.read(&self.registry)?;
                Some((reading.tag?, carrier, reading.registered))
            })
        };
        let outer = || packet.inner.and(packet.outer.as_ref()).and_then(option);
        let label = || {
            let tag = FlowLabel::from_value(ip.flow_label)?.scitag()?;
            // Of no registered pair: an ordinary label.
            self.has(tag).then_some((tag, Carrier::FlowLabel, true))
        };
        option(ip).or_else(outer).or_else(label)
    }

    fn told(&mut self, now: Duration, flow: FlowKey) -> Option<Scitag> {
        if self.flows.len() == 0 {
            return None;
        }
        let key = canonical(flow);
        let told = *self.flows.get(&key)?;
        if told.until <= now {
            self.flows.remove(&key);
            return None;
        }
        Some(told.tag)
    }
}

/// One key for both directions: acknowledgements belong to the flow.
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
