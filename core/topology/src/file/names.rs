//! Names: what may be one, and what hosts and their interfaces are called in hosts files. Whoever runs a network
//! writes such a file, and there a name of two machines leads to the wrong one.

use std::collections::hash_map::Entry;
use std::ops::Range;

use toml::Spanned;

use super::Reader;
use crate::fault::shown;
use crate::{Interface, Kind, NodeId};

const NAME_CHARACTERS_MAX: usize = 63;
/// IFNAMSIZ, less the terminator.
const INTERFACE_CHARACTERS_MAX: usize = 15;
/// The loopback interface, and what stands for interfaces in /proc/sys/net/ipv4/conf.
const INTERFACES_OF_LINUX: [&str; 3] = ["lo", "all", "default"];
/// In the hosts files that Debian, Fedora and their kin come with.
pub(super) const NAMES_OF_EVERY_MACHINE: [&str; 13] = [
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-mcastprefix",
    "ip6-allnodes",
    "ip6-allrouters",
    "ip6-allhosts",
];

impl Reader<'_> {
    pub(super) fn checked_name(&mut self, what: &str, name: Spanned<String>) -> String {
        self.check_name(what, &name);
        name.into_inner()
    }

    pub(super) fn check_name(&mut self, what: &str, name: &Spanned<String>) -> bool {
        let good = is_name(name.get_ref(), NAME_CHARACTERS_MAX);
        if !good {
            let text = format!(
                "'{}' cannot name {what}: use up to {NAME_CHARACTERS_MAX} letters, digits, '-', '_' and '.', a letter or digit first",
                shown(name.get_ref())
            );
            self.faults.note(name.span(), text);
        }
        good
    }

    /// Of a host or switch: one of its own among both.
    pub(super) fn node_name(&mut self, kind: Kind, id: NodeId, name: Spanned<String>) -> String {
        let what = match kind {
            Kind::Host => "a host",
            Kind::Switch => "a switch",
        };
        let good = self.check_name(what, &name);
        let (at, name) = (name.span(), name.into_inner());
        if self.nodes.contains_key(&name) {
            let text =
                format!("there is another host or switch '{}': names are for both", shown(&name));
            self.faults.note(at, text);
            return name;
        }
        self.nodes.insert(name.clone(), id);
        if good && kind == Kind::Host {
            if reads_as_address(&name) {
                let text = format!("'{name}' reads as an address: begin it with a letter");
                self.faults.note(at.clone(), text);
            }
            self.enter(&name, (Some(id), format!("host '{name}'")), at);
        }
        name
    }

    /// One of its own on the host.
    pub(super) fn interface_name(
        &mut self,
        name: Spanned<String>,
        host: (NodeId, &str),
        others: &[Interface],
    ) -> String {
        let (at, name) = (name.span(), name.into_inner());
        if !is_name(&name, INTERFACE_CHARACTERS_MAX) || INTERFACES_OF_LINUX.contains(&&*name) {
            let text = format!(
                "'{}' cannot name an interface: use up to {INTERFACE_CHARACTERS_MAX} letters, digits, '-', '_' and '.', a letter or digit first, and none of {}",
                shown(&name),
                INTERFACES_OF_LINUX.join(", ")
            );
            self.faults.note(at.clone(), text);
        }
        if self.interfaces.insert((host.0, name.clone()), others.len()).is_some() {
            let text = format!("the host has another interface '{}'", shown(&name));
            self.faults.note(at, text);
        } else {
            self.enter_interface(host, &name, at);
        }
        name
    }

    /// As hosts files call it: `host-interface`. None of a host that is at fault there itself.
    pub(super) fn enter_interface(
        &mut self,
        (id, host): (NodeId, &str),
        name: &str,
        at: Range<usize>,
    ) {
        let owner = self.entered.get(&host.to_ascii_lowercase());
        if owner.is_some_and(|(node, _)| *node == Some(id)) {
            let owner = (None, format!("interface {name} of host '{host}'"));
            self.enter(&format!("{host}-{name}"), owner, at);
        }
    }

    /// A name of hosts files, which know no case, and whose it is.
    fn enter(&mut self, name: &str, owner: (Option<NodeId>, String), at: Range<usize>) {
        match self.entered.entry(name.to_ascii_lowercase()) {
            Entry::Vacant(free) => {
                free.insert(owner);
            }
            Entry::Occupied(taken) => {
                let text = format!(
                    "in /etc/hosts '{}' is {} already: choose another name",
                    shown(name),
                    taken.get().1
                );
                self.faults.note(at, text);
            }
        }
    }
}

fn is_name(text: &str, characters_max: usize) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= characters_max
}

/// As `inet_aton` and browsers read one: numbers with dots between, 0x for hexadecimal ones.
fn reads_as_address(name: &str) -> bool {
    let is_number = |part: &str| match part.strip_prefix("0x").or_else(|| part.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => part.bytes().all(|b| b.is_ascii_digit()),
    };
    name.split('.').all(is_number)
}
