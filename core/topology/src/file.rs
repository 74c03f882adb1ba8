//! The TOML file: what may stand in it, and what is checked before it is a [`Topology`].
//!
//! ```toml
//! name = "two-sites"
//!
//! [[site]]
//! name = "uvic"
//! latitude = 48.463
//! longitude = -123.312
//!
//! [[host]]
//! name = "dtn1"
//! site = "uvic"
//! interface = [{ name = "eth0", rate = "400G", mtu = 9000, numa_node = 0 }]
//!
//! [[switch]]
//! name = "core"
//! buffer = "64MiB"
//!
//! [[link]]
//! ends = ["dtn1:eth0", "core"]
//! rate = "400G"
//! delay = "5us"        # or length = "120km", or neither: the great circle between the sites
//! loss = "0.001%"
//! vlan = 2026
//! risk_groups = ["duct-7"]
//! operator = "CANARIE"
//! ```

use std::collections::HashMap;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount, display_duration, parse_duration};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use crate::fault::{Collector, Faults, suggestion};
use crate::geography::fibre_delay;
use crate::{
    DelaySource, End, Interface, Kind, Link, Node, NodeId, Position, Site, SiteId, Topology,
};

/// The largest file that is read.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// One way, more than twice to a geostationary satellite and back.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Once around the Earth and more.
const LENGTH_METRES_MAX: f64 = 100_000_000.0;
const RATE_BPS_MAX: u64 = 1_000_000_000_000_000;
const NAME_CHARACTERS_MAX: usize = 63;
/// IFNAMSIZ, less the terminator.
const INTERFACE_CHARACTERS_MAX: usize = 15;
/// RFC 8200 section 5.
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65_535;
const MTU_USUAL: u32 = 1500;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    name: Spanned<String>,
    title: Option<String>,
    source: Option<String>,
    #[serde(default)]
    site: Vec<RawSite>,
    #[serde(default)]
    host: Vec<RawHost>,
    #[serde(default)]
    switch: Vec<RawSwitch>,
    #[serde(default)]
    link: Vec<RawLink>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSite {
    name: Spanned<String>,
    title: Option<String>,
    latitude: Option<Spanned<f64>>,
    longitude: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: Spanned<String>,
    site: Option<Spanned<String>>,
    #[serde(default)]
    interface: Vec<RawInterface>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInterface {
    name: Spanned<String>,
    rate: Option<Spanned<BitRate>>,
    mtu: Option<Spanned<u32>>,
    numa_node: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwitch {
    name: Spanned<String>,
    site: Option<Spanned<String>>,
    buffer: Option<ByteCount>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    name: Option<Spanned<String>>,
    ends: Spanned<Vec<Spanned<String>>>,
    rate: Option<Spanned<BitRate>>,
    delay: Option<Spanned<Delay>>,
    length: Option<Spanned<Length>>,
    loss: Option<Spanned<Share>>,
    queue: Option<ByteCount>,
    vlan: Option<Spanned<u16>>,
    #[serde(default)]
    risk_groups: Vec<String>,
    operator: Option<String>,
}

struct Delay(Duration);
/// Metres.
struct Length(f64);
/// 0 to 1.
struct Share(f64);

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let (number, metres) = match text.trim().strip_suffix("km") {
            Some(number) => (number, 1000.0),
            None => (text.trim().strip_suffix('m').unwrap_or("no length"), 1.0),
        };
        number.trim().parse::<f64>().map(|number| Self(number * metres)).map_err(|_| {
            de::Error::custom(format!("'{text}' is not a length: write it like 120km or 300m"))
        })
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(share) => Ok(Self(share)),
            Form::Text(text) => {
                let number = text.trim().strip_suffix("%");
                let percent = number.map(|number| number.trim().parse::<f64>());
                match percent {
                    Some(Ok(percent)) => Ok(Self(percent / 100.0)),
                    _ => Err(de::Error::custom(format!(
                        "'{text}' is not a share of packets: write it like \"0.01%\" or 0.0001"
                    ))),
                }
            }
        }
    }
}

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// All faults of it, or the first one that makes it unreadable.
    pub fn read(text: &str) -> Result<Self, Faults> {
        if text.len() > FILE_BYTES_MAX {
            let most = ByteCount(FILE_BYTES_MAX as u64);
            return Err(Faults::one(text, 0..0, format!("larger than {most}")));
        }
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            Faults::one(text, at, error.message().replace('\n', "; "))
        })?;
        let faults = Collector::new(text);
        let mut reader = Reader { faults, sites: HashMap::new(), nodes: HashMap::new() };
        let topology = reader.topology(raw);
        reader.faults.finish()?;
        Ok(topology)
    }
}

/// Checks while it translates; what is at fault is noted and left out.
struct Reader<'a> {
    faults: Collector<'a>,
    sites: HashMap<String, SiteId>,
    nodes: HashMap<String, NodeId>,
}

impl Reader<'_> {
    fn topology(&mut self, raw: RawFile) -> Topology {
        self.check_name("a topology", &raw.name);
        let mut topology = Topology {
            name: raw.name.into_inner(),
            title: raw.title,
            source: raw.source,
            sites: Vec::with_capacity(raw.site.len()),
            nodes: Vec::with_capacity(raw.host.len() + raw.switch.len()),
            links: Vec::with_capacity(raw.link.len()),
        };
        for site in raw.site {
            self.site(site, &mut topology.sites);
        }
        for host in raw.host {
            let interfaces = self.interfaces(host.interface);
            self.node(Kind::Host, host.name, host.site, None, interfaces, &mut topology.nodes);
        }
        for switch in raw.switch {
            let (name, site, buffer) = (switch.name, switch.site, switch.buffer);
            self.node(Kind::Switch, name, site, buffer, Vec::new(), &mut topology.nodes);
        }
        for link in raw.link {
            self.link(link, &mut topology);
        }
        topology
    }

    fn check_name(&mut self, what: &str, name: &Spanned<String>) {
        let text = name.get_ref();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = text.chars().all(allowed)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.len() <= NAME_CHARACTERS_MAX;
        if !good {
            let text = format!(
                "'{}' cannot name {what}: use up to {NAME_CHARACTERS_MAX} letters, digits, '-', '_' and '.', a letter or digit first",
                text.escape_debug()
            );
            self.faults.note(name.span(), text);
        }
    }

    fn site(&mut self, raw: RawSite, sites: &mut Vec<Site>) {
        self.check_name("a site", &raw.name);
        let position = match (&raw.latitude, &raw.longitude) {
            (Some(latitude), Some(longitude)) => {
                for (what, value, most) in
                    [("latitude", latitude, 90.0), ("longitude", longitude, 180.0)]
                {
                    if !(-most..=most).contains(value.get_ref()) {
                        let text = format!("a {what} is between -{most} and {most} degrees");
                        self.faults.note(value.span(), text);
                    }
                }
                Some(Position { latitude: *latitude.get_ref(), longitude: *longitude.get_ref() })
            }
            (None, None) => None,
            (Some(only), None) | (None, Some(only)) => {
                self.faults.note(only.span(), "latitude and longitude stand together");
                None
            }
        };
        let (at, name) = (raw.name.span(), raw.name.into_inner());
        if self.sites.contains_key(&name) {
            self.faults.note(at, format!("there is another site '{name}'"));
        } else {
            self.sites.insert(name.clone(), SiteId(sites.len()));
        }
        sites.push(Site { name, title: raw.title, position });
    }

    fn interfaces(&mut self, raw: Vec<RawInterface>) -> Vec<Interface> {
        let mut all: Vec<Interface> = Vec::with_capacity(raw.len());
        for one in raw {
            let name = one.name.get_ref();
            let fits = (1..=INTERFACE_CHARACTERS_MAX).contains(&name.len())
                && !matches!(name.as_str(), "." | ".." | "lo")
                && name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | ':'));
            if !fits {
                let text = format!(
                    "'{}' cannot name an interface: Linux takes up to {INTERFACE_CHARACTERS_MAX} characters without blank, '/' and ':'",
                    name.escape_debug()
                );
                self.faults.note(one.name.span(), text);
            }
            if all.iter().any(|other| other.name == *name) {
                self.faults
                    .note(one.name.span(), format!("the host has another interface '{name}'"));
            }
            if let Some(rate) = &one.rate {
                self.check_rate(rate);
            }
            let mtu = one.mtu.as_ref().map_or(MTU_USUAL, |mtu| *mtu.get_ref());
            if let Some(given) = &one.mtu
                && !(MTU_MIN..=MTU_MAX).contains(&mtu)
            {
                let text = format!("an MTU is {MTU_MIN} (IPv6 needs it) to {MTU_MAX} bytes");
                self.faults.note(given.span(), text);
            }
            all.push(Interface {
                name: one.name.into_inner(),
                rate: one.rate.map(Spanned::into_inner),
                mtu,
                numa_node: one.numa_node,
            });
        }
        all
    }

    fn check_rate(&mut self, rate: &Spanned<BitRate>) {
        if !(1..=RATE_BPS_MAX).contains(&rate.get_ref().0) {
            let text = format!("a rate is above 0 and up to {}", BitRate(RATE_BPS_MAX));
            self.faults.note(rate.span(), text);
        }
    }

    fn node(
        &mut self,
        kind: Kind,
        name: Spanned<String>,
        site: Option<Spanned<String>>,
        buffer: Option<ByteCount>,
        interfaces: Vec<Interface>,
        nodes: &mut Vec<Node>,
    ) {
        let what = if kind == Kind::Host { "a host" } else { "a switch" };
        self.check_name(what, &name);
        let site = site.and_then(|site| {
            let found = self.sites.get(site.get_ref()).copied();
            if found.is_none() {
                let near = suggestion(site.get_ref(), self.sites.keys().map(String::as_str));
                let text = format!("there is no site '{}'{near}", site.get_ref().escape_debug());
                self.faults.note(site.span(), text);
            }
            found
        });
        let (at, name) = (name.span(), name.into_inner());
        if self.nodes.contains_key(&name) {
            let text = format!("there is another host or switch '{name}': names are for both");
            self.faults.note(at, text);
        } else {
            self.nodes.insert(name.clone(), NodeId(nodes.len()));
        }
        nodes.push(Node { name, kind, site, buffer, interfaces });
    }

    fn link(&mut self, raw: RawLink, topology: &mut Topology) {
        let at = raw.ends.span();
        let Ok([a, b]) = <[Spanned<String>; 2]>::try_from(raw.ends.into_inner()) else {
            self.faults.note(at, "a link has two ends, like [\"dtn1:eth0\", \"core\"]");
            return;
        };
        let (Some(from), Some(to)) = (self.end(&a, topology), self.end(&b, topology)) else {
            return;
        };
        if from.node == to.node {
            self.faults.note(at, "a link joins two different nodes");
            return;
        }
        let ends = [from, to];
        let vlan = raw.vlan.as_ref().map(|vlan| *vlan.get_ref());
        if let Some(given) = &raw.vlan
            && !(1..=4094).contains(given.get_ref())
        {
            self.faults.note(given.span(), "a VLAN is 1 to 4094 (IEEE 802.1Q)");
        }
        for (end, text) in ends.iter().zip([&a, &b]) {
            let taken = |link: &Link| {
                end.interface.is_some() && link.ends.contains(end) && link.vlan == vlan
            };
            if let Some(other) = topology.links.iter().find(|link| taken(link)) {
                let text = format!(
                    "'{}' is an end of link '{}' already: give each link there a vlan of its own, or another interface",
                    text.get_ref(),
                    other.name
                );
                self.faults.note(at.clone(), text);
            }
        }
        let Some(rate) = self.rate(raw.rate, ends, at, topology) else { return };
        let (delay, delay_source) = self.delay(raw.delay, raw.length, ends, topology);
        let loss = raw.loss.as_ref().map_or(0.0, |loss| loss.get_ref().0);
        if let Some(given) = &raw.loss
            && !(0.0..1.0).contains(&loss)
        {
            self.faults.note(given.span(), "a loss is at least 0 and less than 1 (100 %)");
        }
        let name = match raw.name {
            Some(name) => {
                self.check_name("a link", &name);
                if topology.link(name.get_ref()).is_some() {
                    let text = format!("there is another link '{}'", name.get_ref());
                    self.faults.note(name.span(), text);
                }
                name.into_inner()
            }
            None => Self::free_name(ends, vlan, topology),
        };
        topology.links.push(Link {
            name,
            ends,
            rate,
            delay,
            delay_source,
            loss,
            queue: raw.queue,
            vlan,
            risk_groups: raw.risk_groups,
            operator: raw.operator,
        });
    }

    /// `host:interface`, `host` where it has one interface or none, or `switch`.
    fn end(&mut self, text: &Spanned<String>, topology: &Topology) -> Option<End> {
        let (name, interface) = match text.get_ref().split_once(':') {
            Some((name, interface)) => (name, Some(interface)),
            None => (text.get_ref().as_str(), None),
        };
        let Some(node) = self.nodes.get(name).copied() else {
            let near = suggestion(name, self.nodes.keys().map(String::as_str));
            let text_ = format!("there is no host or switch '{}'{near}", name.escape_debug());
            self.faults.note(text.span(), text_);
            return None;
        };
        let found = &topology.nodes[node.0];
        let known = || found.interfaces.iter().map(|interface| interface.name.as_str());
        let fault = match (found.kind, interface) {
            (Kind::Switch, None) => return Some(End { node, interface: None }),
            (Kind::Switch, Some(_)) => {
                format!("'{name}' is a switch: its ports have no names, write \"{name}\"")
            }
            (Kind::Host, Some(interface)) => {
                if let Some(index) = known().position(|known| known == interface) {
                    return Some(End { node, interface: Some(index) });
                }
                let near = suggestion(interface, known());
                format!("host '{name}' has no interface '{}'{near}", interface.escape_debug())
            }
            (Kind::Host, None) => match found.interfaces.len() {
                0 => return Some(End { node, interface: None }),
                1 => return Some(End { node, interface: Some(0) }),
                _ => {
                    let all: Vec<_> = known().map(|known| format!("{name}:{known}")).collect();
                    format!("host '{name}' has several interfaces: write {}", all.join(" or "))
                }
            },
        };
        self.faults.note(text.span(), fault);
        None
    }

    /// As given, or that of the slower interface; never above an interface.
    fn rate(
        &mut self,
        given: Option<Spanned<BitRate>>,
        ends: [End; 2],
        at: std::ops::Range<usize>,
        topology: &Topology,
    ) -> Option<BitRate> {
        let of_end = |end: End| {
            let interface = topology.nodes[end.node.0].interfaces.get(end.interface?)?;
            Some((interface.rate?, end))
        };
        let slowest = ends.into_iter().filter_map(of_end).min_by_key(|(rate, _)| *rate);
        match (given, slowest) {
            (Some(given), slowest) => {
                self.check_rate(&given);
                if let Some((rate, end)) = slowest
                    && rate < *given.get_ref()
                {
                    let text = format!(
                        "faster than its interface {} ({rate}): lower the one or raise the other",
                        topology.show_end(end)
                    );
                    self.faults.note(given.span(), text);
                }
                Some(given.into_inner())
            }
            (None, Some((rate, _))) => Some(rate),
            (None, None) => {
                self.faults.note(
                    at,
                    "how fast is the link? write rate = \"100G\" here or at an interface",
                );
                None
            }
        }
    }

    fn delay(
        &mut self,
        delay: Option<Spanned<Delay>>,
        length: Option<Spanned<Length>>,
        ends: [End; 2],
        topology: &Topology,
    ) -> (Duration, DelaySource) {
        match (delay, length) {
            (Some(delay), None) => {
                let given = delay.get_ref().0;
                if given > DELAY_MAX {
                    let text = format!("a delay is up to {}", display_duration(DELAY_MAX));
                    self.faults.note(delay.span(), text);
                }
                (given, DelaySource::Given)
            }
            (None, Some(length)) => {
                let metres = length.get_ref().0;
                if !(0.0..=LENGTH_METRES_MAX).contains(&metres) {
                    self.faults.note(length.span(), "a length is 0 to 100000km");
                    return (Duration::ZERO, DelaySource::Fibre);
                }
                (fibre_delay(metres), DelaySource::Fibre)
            }
            (Some(_), Some(length)) => {
                self.faults.note(length.span(), "delay and length say the same: write one of them");
                (Duration::ZERO, DelaySource::Given)
            }
            (None, None) => {
                let position =
                    |end: End| topology.sites[topology.nodes[end.node.0].site?.0].position;
                match (position(ends[0]), position(ends[1])) {
                    (Some(a), Some(b)) if a != b => {
                        (fibre_delay(a.metres_to(b)), DelaySource::GreatCircle)
                    }
                    _ => (Duration::ZERO, DelaySource::None),
                }
            }
        }
    }

    /// The ends, and what tells it from others of the same ends.
    fn free_name(ends: [End; 2], vlan: Option<u16>, topology: &Topology) -> String {
        let [a, b] = ends.map(|end| topology.nodes[end.node.0].name.as_str());
        let vlan = vlan.map_or_else(String::new, |vlan| format!(".{vlan}"));
        let name = format!("{a}--{b}{vlan}");
        let numbered = (2..).map(|number| format!("{name}.{number}"));
        std::iter::once(name.clone())
            .chain(numbered)
            .find(|name| topology.link(name).is_none())
            .unwrap_or(name)
    }
}

#[cfg(test)]
mod tests;
