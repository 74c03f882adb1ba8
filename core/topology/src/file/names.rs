//! Checks names, and their uniqueness in `/etc/hosts`: the lab writes such a file, where one name must not
//! lead to two machines.

use std::collections::hash_map::Entry;
use std::ops::Range;

use toml::Spanned;

use super::TopologyReader;
use crate::fault::shown;
use crate::{Interface, NodeId, NodeKind};

const NAME_CHARACTERS_MAX: usize = 63;
/// IFNAMSIZ without the terminating NUL.
const INTERFACE_CHARACTERS_MAX: usize = 15;
/// Names that `/proc/sys/net/ipv4/conf` reserves, and the loopback interface.
const RESERVED_INTERFACE_NAMES: [&str; 3] = ["lo", "all", "default"];
/// Names in the default `/etc/hosts` of Debian and Fedora.
pub(super) const DEFAULT_HOSTS_FILE_NAMES: [&str; 13] = [
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

impl TopologyReader<'_> {
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

    /// Registers the name of a host or switch, unique among both.
    pub(super) fn node_name(
        &mut self,
        kind: NodeKind,
        id: NodeId,
        name: Spanned<String>,
    ) -> String {
        let what = match kind {
            NodeKind::Host => "a host",
            NodeKind::Switch => "a switch",
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
        if good && kind == NodeKind::Host {
            if reads_as_address(&name) {
                let text = format!("'{name}' reads as an address: begin it with a letter");
                self.faults.note(at.clone(), text);
            }
            self.add_to_hosts_file(&name, (Some(id), format!("host '{name}'")), at);
        }
        name
    }

    /// Registers the name of an interface, unique on its host.
    pub(super) fn interface_name(
        &mut self,
        name: Spanned<String>,
        host: (NodeId, &str),
        others: &[Interface],
    ) -> String {
        let (at, name) = (name.span(), name.into_inner());
        if !is_name(&name, INTERFACE_CHARACTERS_MAX) || RESERVED_INTERFACE_NAMES.contains(&&*name) {
            let text = format!(
                "'{}' cannot name an interface: use up to {INTERFACE_CHARACTERS_MAX} letters, digits, '-', '_' and '.', a letter or digit first, and none of {}",
                shown(&name),
                RESERVED_INTERFACE_NAMES.join(", ")
            );
            self.faults.note(at.clone(), text);
        }
        if self.interfaces.insert((host.0, name.clone()), others.len()).is_some() {
            let text = format!("the host has another interface '{}'", shown(&name));
            self.faults.note(at, text);
        } else {
            self.add_interface_to_hosts_file(host, &name, at);
        }
        name
    }

    /// Adds `host-interface` to the hosts-file names, unless the host itself clashed there.
    pub(super) fn add_interface_to_hosts_file(
        &mut self,
        (id, host): (NodeId, &str),
        name: &str,
        at: Range<usize>,
    ) {
        let owner = self.host_file_names.get(&host.to_ascii_lowercase());
        if owner.is_some_and(|(node, _)| *node == Some(id)) {
            let owner = (None, format!("interface {name} of host '{host}'"));
            self.add_to_hosts_file(&format!("{host}-{name}"), owner, at);
        }
    }

    /// Adds a name, which hosts files compare without case, with its owner.
    fn add_to_hosts_file(&mut self, name: &str, owner: (Option<NodeId>, String), at: Range<usize>) {
        match self.host_file_names.entry(name.to_ascii_lowercase()) {
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

/// True if `inet_aton` or a browser would parse the name as an address: dotted numbers, with 0x in
/// hexadecimal.
fn reads_as_address(name: &str) -> bool {
    let is_number = |part: &str| match part.strip_prefix("0x").or_else(|| part.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => part.bytes().all(|b| b.is_ascii_digit()),
    };
    name.split('.').all(is_number)
}
