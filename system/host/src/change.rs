//! Tunables of the machine, which can be read, changed and restored.
//!
//! Values are text, as in procfs; undo writes the value that was read before the change.
//!
//! Fails with the kernel's error; the caller adds the rule.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use penstock_sys::net::device::{
    DeviceSetting, NetDevice, devices, qdiscs, remove_root_qdisc, set_device, set_root_qdisc,
};
use penstock_sys::net::ethtool::Ethtool;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::facts::{chosen, nics, sysctls};

/// A tunable of the kernel, a network device or sysfs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Tunable {
    /// A sysctl.
    Sysctl {
        /// Name of a sysctl, as `net.ipv4.tcp_rmem`.
        key: String,
    },
    /// A setting of a network device.
    Device {
        /// Network device.
        device: String,
        /// `mtu`, `tx-queue-packets`, `gso-max-bytes`, `gso-ipv4-max-bytes`, `gro-max-bytes`, `gro-ipv4-max-bytes`.
        setting: String,
    },
    /// A setting of the driver of a network device.
    Driver {
        /// Network device.
        device: String,
        /// Name of the setting, as docs/host-rules.md lists them.
        setting: String,
    },
    /// An offload: `on` or `off`.
    Feature {
        /// Network device.
        device: String,
        /// Name of an offload, as `rx-gro`.
        feature: String,
    },
    /// The queueing discipline at the root of a network device; `default` for that of the kernel.
    Qdisc {
        /// Network device.
        device: String,
    },
    /// A file of sysfs, or of an interrupt.
    File {
        /// Path of a file of sysfs or procfs.
        path: String,
    },
}

/// A change of one tunable, with the values before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Setting that is changed.
    #[serde(rename = "knob")]
    pub tunable: Tunable,
    /// Value before the change.
    pub from: String,
    /// Value after the change.
    pub to: String,
}

const DEFAULT_QDISC: &str = "default";

impl Change {
    /// Creates a change of `tunable` from one value to another.
    #[must_use]
    pub fn new(tunable: Tunable, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { tunable, from: from.into(), to: to.into() }
    }
}

impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { key } => f.write_str(key),
            Self::Device { device, setting } | Self::Driver { device, setting } => {
                write!(f, "{device} {setting}")
            }
            Self::Feature { device, feature } => write!(f, "{device} {feature}"),
            Self::Qdisc { device } => write!(f, "{device} qdisc"),
            Self::File { path } => f.write_str(path),
        }
    }
}

impl Tunable {
    /// Returns the tunable of a sysctl key.
    #[must_use]
    pub fn sysctl(key: &str) -> Self {
        Self::Sysctl { key: key.to_owned() }
    }

    /// Reads the current value.
    ///
    /// # Errors
    /// `NotFound` where the machine does not have it.
    pub fn read(&self) -> io::Result<String> {
        match self {
            Self::Sysctl { key } => {
                Ok(sysctls::normal(&fs::read_to_string(sysctls::path_of(checked_key(key)?))?))
            }
            Self::Device { device, setting } => {
                let value = device_setting(setting)?.of(&named(device)?);
                value.map(|value| value.to_string()).ok_or_else(|| missing(self))
            }
            Self::Driver { device, setting } => {
                let wanted = nics::setting_named(setting).ok_or_else(|| missing(self))?;
                let settings = Ethtool::open()?.settings(device);
                let found = settings.get(&wanted).ok_or_else(|| missing(self))?;
                Ok(found.value.to_string())
            }
            Self::Feature { device, feature } => {
                let features = Ethtool::open()?.features(device)?;
                let found = features.get(feature).ok_or_else(|| missing(self))?;
                Ok(if found.on { "on" } else { "off" }.to_owned())
            }
            Self::Qdisc { device } => {
                let index = named(device)?.index;
                let all = qdiscs()?;
                let root = all.iter().find(|one| one.device == index && one.parent.is_none());
                Ok(match root {
                    Some(root) if root.handle != 0 => root.kind.clone(),
                    _ => DEFAULT_QDISC.to_owned(),
                })
            }
            Self::File { path } => {
                let text = fs::read_to_string(checked_path(path)?)?;
                Ok(chosen(text.trim()).to_owned())
            }
        }
    }

    /// Writes a value. The kernel may round or ignore it: read it back.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write(&self, value: &str) -> io::Result<()> {
        let number = || -> io::Result<u32> {
            value.parse().map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("'{value}' is no number"))
            })
        };
        match self {
            Self::Sysctl { key } => fs::write(sysctls::path_of(checked_key(key)?), value),
            Self::Device { device, setting } => {
                set_device(named(device)?.index, device_setting(setting)?, number()?)
            }
            Self::Driver { device, setting } => {
                let wanted = nics::setting_named(setting).ok_or_else(|| missing(self))?;
                Ethtool::open()?.set(device, wanted, number()?)
            }
            Self::Feature { device, feature } => {
                Ethtool::open()?.set_feature(device, feature, value == "on")
            }
            Self::Qdisc { device } => {
                let index = named(device)?.index;
                match value {
                    DEFAULT_QDISC if self.read()? == DEFAULT_QDISC => Ok(()),
                    DEFAULT_QDISC => remove_root_qdisc(index),
                    kind => set_root_qdisc(index, kind),
                }
            }
            Self::File { path } => fs::write(checked_path(path)?, value),
        }
    }

    /// True if it belongs to the whole machine rather than to a network namespace.
    #[must_use]
    pub fn is_of_the_machine(&self) -> bool {
        match self {
            Self::Sysctl { key } => !key.starts_with("net."),
            Self::File { .. } => true,
            _ => false,
        }
    }
}

fn named(device: &str) -> io::Result<NetDevice> {
    let found = devices()?.into_iter().find(|one| one.name == device);
    found.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no device {device}"))
    })
}

fn device_setting(word: &str) -> io::Result<DeviceSetting> {
    Ok(match word {
        "mtu" => DeviceSetting::Mtu,
        "tx-queue-packets" => DeviceSetting::TxQueuePackets,
        "gso-max-bytes" => DeviceSetting::GsoMaxBytes,
        "gso-ipv4-max-bytes" => DeviceSetting::GsoIpv4MaxBytes,
        "gro-max-bytes" => DeviceSetting::GroMaxBytes,
        "gro-ipv4-max-bytes" => DeviceSetting::GroIpv4MaxBytes,
        _ => {
            let text = format!("no setting of a device is called {word}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    })
}

fn missing(tunable: &Tunable) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("this machine has no {tunable}"))
}

/// Checks that a path is in a directory of tunables, also for journals, which only root writes.
fn checked_path(path: &str) -> io::Result<&Path> {
    let place = ["/sys/block/", "/sys/devices/system/cpu/", "/proc/irq/"];
    let known = place.iter().any(|place| path.starts_with(place));
    if known && !path.split('/').any(|part| part == "..") {
        return Ok(Path::new(path));
    }
    let text = format!("{path} is no setting that a rule changes");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn checked_key(key: &str) -> io::Result<&str> {
    if sysctls::KEYS.contains(&key) {
        return Ok(key);
    }
    let text = format!("{key} is no setting that a rule reads");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_are_written() {
        for path in ["/etc/passwd", "/sys/block/../../etc/passwd", "/proc/irq/../sysrq-trigger", ""]
        {
            let error = Tunable::File { path: path.into() }.write("x").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        for key in ["kernel.core_pattern", "net/ipv4/tcp_rmem", "../../etc/passwd"] {
            let error = Tunable::sysctl(key).write("x").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{key}");
        }
    }

    #[test]
    fn existing_tunables_are_read() {
        let rmem = Tunable::sysctl("net.ipv4.tcp_rmem").read().unwrap();
        assert_eq!(rmem.split(' ').count(), 3, "{rmem}");
        let mtu = Tunable::Device { device: "lo".into(), setting: "mtu".into() };
        assert!(mtu.read().unwrap().parse::<u32>().unwrap() > 1000);
        let gro = Tunable::Feature { device: "lo".into(), feature: "rx-gro".into() };
        assert!(["on", "off"].contains(&gro.read().unwrap().as_str()));
        let none = Tunable::Device { device: "no-such-device".into(), setting: "mtu".into() };
        assert_eq!(none.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        let rings = Tunable::Driver { device: "lo".into(), setting: "rx-ring".into() };
        assert!(rings.read().unwrap_err().to_string().contains("lo rx-ring"));
    }

    #[test]
    fn change_is_one_json_object() {
        let change = Change::new(Tunable::Qdisc { device: "eth0".into() }, "default", "mq");
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"knob":{"kind":"qdisc","device":"eth0"},"from":"default","to":"mq"}"#);
        assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
    }
}
