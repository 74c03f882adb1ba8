//! Reads the links of a topology: resolves their ends and derives values that the file leaves out.

use std::ops::Range;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount, display_latency};
use toml::Spanned;

use super::quantities::{
    DELAY, Delay, Fraction, JITTER, LENGTH, LOSS, LOSS_BURST, Length, MARK, QUEUE, RATE, VLAN,
};
use super::{MTU_DEFAULT, TopologyReader};
use crate::fault::shown;
use crate::geography::fibre_delay;
use crate::table::TableReader;
use crate::{DelaySource, Link, LinkEnd, LinkId, NodeKind, Topology};

impl TopologyReader<'_> {
    pub(super) fn link(&mut self, mut table: TableReader<'_>, topology: &mut Topology) {
        let faults = &mut self.faults;
        let ends = table.required::<Vec<Spanned<String>>>("ends", faults);
        let name = table.optional::<String>("name", faults);
        let rate = table.checked("rate", &RATE, faults);
        let delay = table.checked("delay", &DELAY, faults);
        let length = table.checked("length", &LENGTH, faults);
        let jitter = table.checked("jitter", &JITTER, faults);
        let loss = table.checked("loss", &LOSS, faults);
        let loss_burst = table.checked("loss_burst", &LOSS_BURST, faults);
        let queue = table.checked("queue", &QUEUE, faults);
        let mark = table.checked("mark", &MARK, faults);
        let vlan = table.checked("vlan", &VLAN, faults).map(Spanned::into_inner);
        let risk_groups = table.optional::<Vec<Spanned<String>>>("risk_groups", faults);
        let operator = table.text("operator", faults);
        table.finish(faults);

        let (loss, loss_burst) = self.loss(loss, loss_burst);
        let mark = self.mark(mark, queue.as_ref());
        let risk_groups = self.risk_groups(risk_groups);
        if let Some(name) = &name {
            self.check_name("a link", name);
        }
        let Some((at, texts, ends)) = self.ends(ends, topology) else { return };
        if vlan != Some(VLAN.fallback) {
            for (end, text) in ends.iter().zip(&texts) {
                self.claim_interface(*end, vlan, text, topology);
            }
        }
        let queue = queue.map(|queue| self.queue(&queue, ends, topology));
        let Some(rate) = self.rate(rate, ends, at, topology) else { return };
        let (delay, delay_source) = self.delay(delay, length, ends, topology);
        let jitter = self.jitter(jitter, delay);
        let name = match name {
            Some(name) => {
                if self.links.contains_key(name.get_ref()) {
                    let text = format!("there is another link '{}'", shown(name.get_ref()));
                    self.faults.note(name.span(), text);
                }
                name.into_inner()
            }
            None => self.free_name(ends, vlan, topology),
        };
        self.links.insert(name.clone(), LinkId(topology.links.len()));
        topology.links.push(Link {
            name,
            ends,
            rate,
            delay,
            delay_source,
            jitter,
            loss,
            loss_burst,
            queue,
            mark,
            vlan,
            risk_groups,
            operator,
        });
    }

    fn risk_groups(&mut self, given: Option<Spanned<Vec<Spanned<String>>>>) -> Vec<String> {
        let given = given.map(Spanned::into_inner).unwrap_or_default();
        for group in &given {
            self.check_name("a risk group", group);
        }
        given.into_iter().map(Spanned::into_inner).collect()
    }

    /// The span of `ends` in the file, the two ends as written, and the resolved ends.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn ends(
        &mut self,
        given: Option<Spanned<Vec<Spanned<String>>>>,
        topology: &Topology,
    ) -> Option<(Range<usize>, [Spanned<String>; 2], [LinkEnd; 2])> {
        let given = given?;
        let at = given.span();
        let Ok(texts) = <[Spanned<String>; 2]>::try_from(given.into_inner()) else {
            self.faults.note(at, "a link has two ends, like [\"dtn1:eth0\", \"core\"]");
            return None;
        };
        let [a, b] = [&texts[0], &texts[1]].map(|text| self.end(text, topology));
        let ends = [a?, b?];
        if ends[0].node == ends[1].node {
            self.faults.note(at, "a link joins two different nodes");
            return None;
        }
        Some((at, texts, ends))
    }

    /// Resolves `host:interface`, `host` with at most one interface, or `switch`.
    fn end(&mut self, text: &Spanned<String>, topology: &Topology) -> Option<LinkEnd> {
        let (name, interface) = match text.get_ref().split_once(':') {
            Some((name, interface)) => (name, Some(interface)),
            None => (text.get_ref().as_str(), None),
        };
        let Some(node) = self.nodes.get(name).copied() else {
            let near = self.faults.suggest(name, self.nodes.keys().map(String::as_str));
            let fault = format!("there is no host or switch '{}'{near}", shown(name));
            self.faults.note(text.span(), fault);
            return None;
        };
        let found = &topology.nodes[node.0];
        let known = || found.interfaces.iter().map(|interface| interface.name.as_str());
        let name = shown(name);
        let fault = match (found.kind, interface) {
            (NodeKind::Switch, None) => return Some(LinkEnd { node, interface: None }),
            (NodeKind::Switch, Some(_)) => {
                format!("'{name}' is a switch: its ports have no names, write \"{name}\"")
            }
            (NodeKind::Host, Some(_)) if found.interfaces.is_empty() => {
                format!("host '{name}' has no interfaces: write \"{name}\", or give it one")
            }
            (NodeKind::Host, Some(interface)) => {
                if let Some(index) = self.interfaces.get(&(node, interface.to_owned())) {
                    return Some(LinkEnd { node, interface: Some(*index) });
                }
                let near = self.faults.suggest(interface, known());
                format!("host '{name}' has no interface '{}'{near}", shown(interface))
            }
            (NodeKind::Host, None) => match found.interfaces.len() {
                0 => return Some(LinkEnd { node, interface: None }),
                1 => return Some(LinkEnd { node, interface: Some(0) }),
                _ => {
                    let some: Vec<_> =
                        known().take(3).map(|known| format!("{name}:{}", shown(known))).collect();
                    format!("host '{name}' has several interfaces: write {}", some.join(" or "))
                }
            },
        };
        self.faults.note(text.span(), fault);
        None
    }

    /// Claims the interface of an end for a VLAN: links that share an interface need different VLANs. A host
    /// without interfaces gets one per link.
    fn claim_interface(
        &mut self,
        end: LinkEnd,
        vlan: Option<u16>,
        text: &Spanned<String>,
        topology: &Topology,
    ) {
        let node = &topology.nodes[end.node.0];
        let host = (end.node, node.name.as_str());
        let Some(interface) = end.interface else {
            if node.kind == NodeKind::Host {
                let number = self.implicit_interfaces.entry(end.node).or_default();
                let name = format!("eth{number}");
                *number += 1;
                self.add_interface_to_hosts_file(host, &name, text.span());
            }
            return;
        };
        let link = LinkId(topology.links.len());
        if let Some(other) = self
            .links_by_interface
            .insert((end, vlan), link)
            .and_then(|id| topology.links.get(id.0))
        {
            let fault = format!(
                "'{}' is an end of link '{}' already: give each link there a vlan of its own, or another interface",
                shown(text.get_ref()),
                shown(&other.name)
            );
            self.faults.note(text.span(), fault);
        } else if let Some(vlan) = vlan {
            let name = format!("{}.{vlan}", node.interfaces[interface].name);
            self.add_interface_to_hosts_file(host, &name, text.span());
        }
    }

    /// Rate of the link: as given, else that of the slower interface; never above either interface.
    fn rate(
        &mut self,
        given: Option<Spanned<BitRate>>,
        ends: [LinkEnd; 2],
        at: Range<usize>,
        topology: &Topology,
    ) -> Option<BitRate> {
        let of_end = |end: LinkEnd| {
            let interface = topology.nodes[end.node.0].interfaces.get(end.interface?)?;
            Some((interface.rate?, end))
        };
        let slowest = ends.into_iter().filter_map(of_end).min_by_key(|(rate, _)| *rate);
        match (given, slowest) {
            (Some(given), slowest) => {
                if let Some((rate, end)) = slowest
                    && rate < *given.get_ref()
                {
                    let text = format!(
                        "faster than its interface {} ({rate}): lower the one or raise the other",
                        shown(&topology.show_end(end))
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
        ends: [LinkEnd; 2],
        topology: &Topology,
    ) -> (Duration, DelaySource) {
        match (delay, length) {
            (Some(delay), None) => (delay.into_inner().0, DelaySource::Given),
            (None, Some(length)) => (fibre_delay(length.into_inner().0), DelaySource::Fibre),
            (Some(delay), Some(length)) => {
                self.faults.note(length.span(), "delay and length say the same: write one of them");
                (delay.into_inner().0, DelaySource::Given)
            }
            (None, None) => {
                let position =
                    |end: LinkEnd| topology.sites[topology.nodes[end.node.0].site?.0].position;
                match (position(ends[0]), position(ends[1])) {
                    (Some(a), Some(b)) if a != b => {
                        (fibre_delay(a.metres_to(b)), DelaySource::GreatCircle)
                    }
                    _ => (Duration::ZERO, DelaySource::None),
                }
            }
        }
    }

    /// Checks the jitter against the delay: no packet arrives before it was sent.
    fn jitter(&mut self, given: Option<Spanned<Delay>>, delay: Duration) -> Duration {
        let Some(given) = given else { return Duration::ZERO };
        let jitter = given.get_ref().0;
        if jitter > delay {
            let delay = display_latency(delay);
            let text = format!(
                "a jitter is at most the delay, which is {delay} here: lower it or give a delay"
            );
            self.faults.note(given.span(), text);
        }
        jitter
    }

    fn loss(
        &mut self,
        share: Option<Spanned<Fraction>>,
        burst: Option<Spanned<f64>>,
    ) -> (f64, f64) {
        let loss = share.map_or(0.0, |share| share.into_inner().0);
        let Some(given) = burst else { return (loss, 1.0) };
        let burst = *given.get_ref();
        if loss == 0.0 {
            self.faults.note(given.span(), "a loss_burst needs a loss, as loss = \"0.01%\"");
        } else if burst > 1.0 && loss > burst / (burst + 1.0) {
            // Two states (Gilbert 1960): at least one packet arrives between two bursts.
            let text = format!(
                "the loss is too high for bursts of {burst}: at most {:.1} %, since at least one packet arrives between two bursts",
                burst / (burst + 1.0) * 100.0
            );
            self.faults.note(given.span(), text);
        }
        (loss, burst)
    }

    fn mark(
        &mut self,
        given: Option<Spanned<ByteCount>>,
        queue: Option<&Spanned<ByteCount>>,
    ) -> Option<ByteCount> {
        let given = given?;
        let mark = *given.get_ref();
        // A queue of 0 bytes is reported as another fault.
        if let Some(queue) = queue.map(Spanned::get_ref)
            && mark > *queue
            && queue.0 > 0
        {
            let text = format!("a mark is at most the queue ({queue}): nothing waits beyond that");
            self.faults.note(given.span(), text);
        }
        Some(mark)
    }

    /// Checks that the queue holds at least one packet of the link's MTU.
    fn queue(
        &mut self,
        given: &Spanned<ByteCount>,
        ends: [LinkEnd; 2],
        topology: &Topology,
    ) -> ByteCount {
        let of_end =
            |end: LinkEnd| Some(topology.nodes[end.node.0].interfaces.get(end.interface?)?.mtu);
        let mtu = ends.into_iter().filter_map(of_end).min().unwrap_or(MTU_DEFAULT);
        if given.get_ref().0 < u64::from(mtu) {
            let text =
                format!("a queue holds at least one packet of the link's MTU, {mtu} bytes here");
            self.faults.note(given.span(), text);
        }
        *given.get_ref()
    }

    /// Returns a unique name for a link without one: its ends and VLAN, with a number if that name is in use.
    fn free_name(&mut self, ends: [LinkEnd; 2], vlan: Option<u16>, topology: &Topology) -> String {
        let [a, b] = ends.map(|end| topology.nodes[end.node.0].name.as_str());
        let vlan = vlan.map_or_else(String::new, |vlan| format!(".{vlan}"));
        let plain = format!("{a}--{b}{vlan}");
        let mut name = plain.clone();
        while self.links.contains_key(&name) {
            let next = self.parallel.entry(plain.clone()).or_insert(1);
            *next += 1;
            name = format!("{plain}.{next}");
        }
        name
    }
}
