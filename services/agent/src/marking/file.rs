//! The rule file: `[[rule]]` tables of TOML, each by addresses, by cgroup or by program.
//!
//! An error names the file and the line of the rule.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_daemon::config::{ConfigError, ConfigFile};
use penstock_marker::rule::RuleValueError;
use penstock_marker::{AddressMatch, LabelAction, Method, Prefix, Protocol};
use penstock_scitags::Registry;
use penstock_scitags::registry::LookupError;
use penstock_scitags::tag::FirefliesOnly;
use serde::Deserialize;
use toml::Spanned;

/// The rules of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFile {
    /// Rules by addresses and ports, each with its name.
    pub addresses: BTreeMap<AddressMatch, (String, LabelAction)>,
    /// Rules by cgroup, by its path below `/sys/fs/cgroup`.
    pub cgroups: BTreeMap<PathBuf, LabelAction>,
    /// Rules by program name, as in `/proc/PID/comm`.
    pub programs: BTreeMap<String, LabelAction>,
}

impl RuleFile {
    /// Actions of all rules.
    pub fn actions(&self) -> impl Iterator<Item = LabelAction> {
        let addresses = self.addresses.values().map(|(_, action)| action);
        addresses.chain(self.cgroups.values()).chain(self.programs.values()).copied()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDocument {
    #[serde(default)]
    rule: Vec<Spanned<RuleTable>>,
}

/// A rule that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuleTableError {
    #[error(transparent)]
    Value(#[from] RuleValueError),
    #[error("{key}: {error}")]
    Prefix { key: &'static str, error: RuleValueError },
    #[error("{0}: ports are 1 to 65535")]
    Port(&'static str),
    #[error("give scitag = \"OWNER/ACTIVITY\"")]
    NoScitag,
    #[error("scitag: {0}")]
    Scitag(#[from] LookupError),
    #[error("scitag: {0}")]
    Owner(#[from] FirefliesOnly),
    #[error(
        "a rule is by addresses (source, destination, source_port, destination_port, protocol), by cgroup or by process: give one of them"
    )]
    Kinds,
    #[error("an earlier rule is for the same: remove one of them")]
    Twice,
    #[error(
        "cgroup '{}': write it as /proc/PID/cgroup does, such as /system.slice/xrootd.service",
        .0.display()
    )]
    Cgroup(PathBuf),
    #[error(
        "process '{0}': the kernel keeps 1 to 15 bytes of a program's name: give what /proc/PID/comm has"
    )]
    Process(String),
}

/// A rule as written in the file or sent over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleTable {
    pub(super) name: Option<String>,
    pub(super) scitag: Option<String>,
    pub(super) label: Option<String>,
    pub(super) source: Option<String>,
    pub(super) destination: Option<String>,
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
    pub(super) protocol: Option<String>,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) process: Option<String>,
}

impl RuleTable {
    pub(super) fn action(&self, registry: &Registry) -> Result<LabelAction, RuleTableError> {
        let method: Method = self.label.as_deref().unwrap_or("flow").parse()?;
        let scitag = self.scitag.as_deref().ok_or(RuleTableError::NoScitag)?;
        Ok(LabelAction::new(registry.find(scitag)?, method)?)
    }

    /// True if the rule has a key of addresses.
    pub(super) fn by_address(&self) -> bool {
        self.source.is_some()
            || self.destination.is_some()
            || self.source_port.is_some()
            || self.destination_port.is_some()
            || self.protocol.is_some()
    }

    pub(super) fn address(&self) -> Result<AddressMatch, RuleTableError> {
        let prefix = |key: &'static str, text: &Option<String>| match text {
            None => Ok(Prefix::ALL),
            Some(text) => {
                text.parse::<Prefix>().map_err(|error| RuleTableError::Prefix { key, error })
            }
        };
        let protocol = self.protocol.as_deref().map(str::parse::<Protocol>).transpose()?;
        let port = |key: &'static str, port: Option<u16>| match port {
            Some(0) => Err(RuleTableError::Port(key)),
            port => Ok(port),
        };
        Ok(AddressMatch {
            source: prefix("source", &self.source)?,
            destination: prefix("destination", &self.destination)?,
            source_port: port("source_port", self.source_port)?,
            destination_port: port("destination_port", self.destination_port)?,
            protocol,
        })
    }
}

/// Reads and checks the file at `path`.
///
/// # Errors
/// With the line of the first invalid rule.
pub fn read(path: &Path, registry: &Registry) -> Result<RuleFile, ConfigError> {
    parse(&ConfigFile::read(path)?, registry)
}

fn parse(source: &ConfigFile, registry: &Registry) -> Result<RuleFile, ConfigError> {
    let document: RuleDocument = source.document()?;
    let mut file = RuleFile::default();
    for (number, rule) in document.rule.into_iter().enumerate() {
        let offset = rule.span().start;
        let rule = rule.into_inner();
        let name = rule.name.clone().unwrap_or_else(|| format!("rule {}", number + 1));
        add(&mut file, rule, &name, registry)
            .map_err(|error| source.error_at(offset, format!("{name}: {error}")))?;
    }
    Ok(file)
}

fn add(
    file: &mut RuleFile,
    rule: RuleTable,
    name: &str,
    registry: &Registry,
) -> Result<(), RuleTableError> {
    let action = rule.action(registry)?;
    let by_address = rule.by_address();
    let kinds = usize::from(by_address)
        + usize::from(rule.cgroup.is_some())
        + usize::from(rule.process.is_some());
    if kinds != 1 {
        return Err(RuleTableError::Kinds);
    }
    let clash = match (rule.cgroup.clone(), rule.process.clone()) {
        (Some(path), _) => {
            if !path.is_absolute() || path.components().any(|part| part.as_os_str() == "..") {
                return Err(RuleTableError::Cgroup(path));
            }
            file.cgroups.insert(path, action).is_some()
        }
        (None, Some(process)) => {
            if process.is_empty() || process.len() > 15 || process.contains('\0') {
                return Err(RuleTableError::Process(process));
            }
            file.programs.insert(process, action).is_some()
        }
        (None, None) => file.addresses.insert(rule.address()?, (name.to_owned(), action)).is_some(),
    };
    if clash { Err(RuleTableError::Twice) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<RuleFile, String> {
        parse(&ConfigFile::from_text(Path::new("tags.toml"), text), Registry::builtin())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn all_rule_kinds_parse() {
        let file = of(r#"
            [[rule]]
            name = "cms reads"
            scitag = "cms/analysis-input"
            source = "2001:db8:1::/64"
            destination_port = 1094
            protocol = "tcp"
            [[rule]]
            scitag = "206"
            label = "both"
            cgroup = "/system.slice/xrootd.service"
            [[rule]]
            scitag = "2/4"
            label = "destination"
            process = "xrootd"
        "#)
        .unwrap();
        assert_eq!((file.addresses.len(), file.cgroups.len(), file.programs.len()), (1, 1, 1));
        assert_eq!(file.addresses.values().next().unwrap().0, "cms reads");
        assert!(of("").unwrap().addresses.is_empty());
    }

    #[test]
    fn errors_have_line_and_remedy() {
        let rule = |text: &str| format!("\n[[rule]]\nscitag = \"cms/default\"\n{text}\n");
        for (text, words) in [
            ("[[rule]]\nsource = \"::/0\"".to_owned(), "tags.toml:1: rule 1: give scitag"),
            (
                "[[rule]]\nscitag = \"cmss/default\"\nprocess = \"x\"".to_owned(),
                "did you mean 'cms'",
            ),
            ("[[rule]]\nscitag = \"600/1\"\nprocess = \"x\"".to_owned(), "fireflies only"),
            ("[[rule]]\nscitag = \"3/64\"\nprocess = \"x\"".to_owned(), "activities are 1 to 63"),
            (rule("label = \"hop\"\nprocess = \"x\""), "use flow, destination, both or none"),
            (rule("source = \"192.0.2.1\""), "tags.toml:2: rule 1: source: '192.0.2.1' is IPv4"),
            (rule("source = \"2001:db8::1/64\""), "write 2001:db8::/64"),
            (rule("source_port = 0"), "ports are 1 to 65535"),
            (rule("source_port = 70000"), "tags.toml:4: "),
            (rule("protocol = \"icmp\""), "use tcp, udp or sctp"),
            (rule(""), "give one of them"),
            (rule("process = \"x\"\nsource = \"::/0\""), "give one of them"),
            (rule("process = \"a-name-that-is-too-long\""), "1 to 15 bytes"),
            (rule("cgroup = \"x\""), "write it as /proc/PID/cgroup does"),
            (rule("proces = \"x\""), "unknown field `proces`"),
            (
                format!("{}{}", rule("process = \"x\""), rule("process = \"x\"")),
                "tags.toml:6: rule 2: an earlier rule",
            ),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
        }
    }
}
