//! Driver settings of a network device: link speed, rings, interrupt moderation, pause frames, channels and offloads, by
//! the `ethtool` family of generic netlink (Documentation/networking/ethtool-netlink.rst).
//!
//! Does not parse the output of the `ethtool` program, which changes between versions.
//!
//! Fails with `Unsupported` where the driver does not implement a request, `NotFound` without such a device.

use std::collections::BTreeMap;
use std::io;

use rustix::net::netlink;

use super::device::text;
use super::netlink::{NLA_F_NESTED, attributes, put, truncated, u16_at, u32_at};
use super::netlink_socket::NetlinkSocket;

// libc declares these as `c_int`; message types and attributes have 16 bits, commands 8.
const GENL_ID_CTRL: u16 = libc::GENL_ID_CTRL as u16;
const CTRL_CMD_GETFAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const CTRL_ATTR_FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
const CTRL_ATTR_FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;

/// Size of `struct genlmsghdr`.
const GENLMSGHDR_BYTES: usize = 4;

// include/uapi/linux/ethtool_netlink.h; libc does not have it.
const ETHTOOL_GENL_VERSION: u8 = 1;
const ETHTOOL_MSG_LINKMODES_GET: u8 = 4;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_MSG_RINGS_SET: u8 = 16;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;
const ETHTOOL_MSG_COALESCE_GET: u8 = 19;
const ETHTOOL_MSG_COALESCE_SET: u8 = 20;
const ETHTOOL_MSG_PAUSE_GET: u8 = 21;
const ETHTOOL_MSG_PAUSE_SET: u8 = 22;
const ETHTOOL_MSG_RSS_GET: u8 = 38;
/// First attribute of every request (`ETHTOOL_A_LINKMODES_HEADER`, ...).
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
const SPEED_UNKNOWN: u32 = u32::MAX;
const ETHTOOL_A_RSS_INDIR: u16 = 4;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

/// A number or switch of a driver. Switches are 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriverSetting {
    /// Receive descriptors (ring size).
    RxRing,
    /// Transmit descriptors (ring size).
    TxRing,
    /// Receive-only queues.
    RxChannels,
    /// Transmit-only queues.
    TxChannels,
    /// Queues for both directions.
    CombinedChannels,
    /// Longest delay of a receive interrupt, in microseconds.
    RxMicroseconds,
    /// Most packets per receive interrupt.
    RxFrames,
    /// Longest delay of a transmit-complete interrupt, in microseconds.
    TxMicroseconds,
    /// Most packets per transmit-complete interrupt.
    TxFrames,
    /// Adaptive receive coalescing: the driver chooses the delay.
    AdaptiveRx,
    /// Adaptive transmit coalescing.
    AdaptiveTx,
    /// Autonegotiation of pause frames.
    PauseAutoneg,
    /// Obey received pause frames.
    PauseRx,
    /// Send pause frames.
    PauseTx,
}

/// Messages and attributes by which one setting is read and written.
struct SettingCodec {
    set: u8,
    value: u16,
    max: Option<u16>,
    /// The value is one byte, 0 or 1.
    switch: bool,
}

impl DriverSetting {
    /// All settings, in the order of the variants.
    pub const ALL: [Self; 14] = [
        Self::RxRing,
        Self::TxRing,
        Self::RxChannels,
        Self::TxChannels,
        Self::CombinedChannels,
        Self::RxMicroseconds,
        Self::RxFrames,
        Self::TxMicroseconds,
        Self::TxFrames,
        Self::AdaptiveRx,
        Self::AdaptiveTx,
        Self::PauseAutoneg,
        Self::PauseRx,
        Self::PauseTx,
    ];

    fn codec(self) -> SettingCodec {
        let (set, value, max, switch) = match self {
            Self::RxRing => (ETHTOOL_MSG_RINGS_SET, 6, Some(2), false),
            Self::TxRing => (ETHTOOL_MSG_RINGS_SET, 9, Some(5), false),
            Self::RxChannels => (ETHTOOL_MSG_CHANNELS_SET, 6, Some(2), false),
            Self::TxChannels => (ETHTOOL_MSG_CHANNELS_SET, 7, Some(3), false),
            Self::CombinedChannels => (ETHTOOL_MSG_CHANNELS_SET, 9, Some(5), false),
            Self::RxMicroseconds => (ETHTOOL_MSG_COALESCE_SET, 2, None, false),
            Self::RxFrames => (ETHTOOL_MSG_COALESCE_SET, 3, None, false),
            Self::TxMicroseconds => (ETHTOOL_MSG_COALESCE_SET, 6, None, false),
            Self::TxFrames => (ETHTOOL_MSG_COALESCE_SET, 7, None, false),
            Self::AdaptiveRx => (ETHTOOL_MSG_COALESCE_SET, 11, None, true),
            Self::AdaptiveTx => (ETHTOOL_MSG_COALESCE_SET, 12, None, true),
            Self::PauseAutoneg => (ETHTOOL_MSG_PAUSE_SET, 2, None, true),
            Self::PauseRx => (ETHTOOL_MSG_PAUSE_SET, 3, None, true),
            Self::PauseTx => (ETHTOOL_MSG_PAUSE_SET, 4, None, true),
        };
        SettingCodec { set, value, max, switch }
    }
}

/// Current value and maximum of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingValue {
    /// Current value; 0 or 1 for switches.
    pub value: u32,
    /// Largest value that the driver accepts, where it reports one.
    pub max: Option<u32>,
}

/// State of an offload (netdev feature).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// True if the offload is active.
    pub on: bool,
    /// True if the driver does not allow a change.
    pub fixed: bool,
}

/// A session with the kernel's `ethtool` family.
#[expect(missing_debug_implementations, reason = "a socket and a buffer say nothing")]
pub struct Ethtool {
    socket: NetlinkSocket,
    family: u16,
}

impl Ethtool {
    /// # Errors
    /// `NotFound` where the kernel does not have the family (before Linux 5.6).
    pub fn open() -> io::Result<Self> {
        let socket = NetlinkSocket::open(Some(netlink::GENERIC))?;
        let mut body = generic(CTRL_CMD_GETFAMILY);
        put(&mut body, CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
        let answer = socket.request(GENL_ID_CTRL, &body)?;
        let body = answer.get(GENLMSGHDR_BYTES..);
        let family =
            attributes(body.ok_or_else(truncated)?).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        let family = family.and_then(|(_, value)| u16_at(value, 0)).ok_or_else(truncated)?;
        Ok(Self { socket, family })
    }

    /// Link speed in Mb/s; `None` where the link is down or has no speed.
    ///
    /// # Errors
    /// As the module says.
    pub fn speed_mbps(&mut self, device: &str) -> io::Result<Option<u32>> {
        let body = self.get(ETHTOOL_MSG_LINKMODES_GET, device)?;
        let speed =
            attributes(&body).find(|(kind, _)| kind & !NLA_F_NESTED == ETHTOOL_A_LINKMODES_SPEED);
        let speed = speed.and_then(|(_, value)| u32_at(value, 0));
        Ok(speed.filter(|speed| *speed != 0 && *speed != SPEED_UNKNOWN))
    }

    /// Receive queues in the RSS indirection table, sorted, without duplicates.
    ///
    /// # Errors
    /// As the module says; `Unsupported` also before Linux 6.3.
    pub fn rss_queues(&mut self, device: &str) -> io::Result<Vec<u32>> {
        let body = self.get(ETHTOOL_MSG_RSS_GET, device)?;
        let table = attributes(&body).find(|(kind, _)| kind & !NLA_F_NESTED == ETHTOOL_A_RSS_INDIR);
        let (_, table) = table.ok_or(io::ErrorKind::Unsupported)?;
        let mut queues: Vec<u32> =
            table.chunks_exact(4).filter_map(|number| u32_at(number, 0)).collect();
        queues.sort_unstable();
        queues.dedup();
        Ok(queues)
    }

    /// Reads all settings that the driver implements.
    pub fn settings(&mut self, device: &str) -> BTreeMap<DriverSetting, SettingValue> {
        let mut found = BTreeMap::new();
        for get in [
            ETHTOOL_MSG_RINGS_GET,
            ETHTOOL_MSG_CHANNELS_GET,
            ETHTOOL_MSG_COALESCE_GET,
            ETHTOOL_MSG_PAUSE_GET,
        ] {
            let Ok(body) = self.get(get, device) else { continue };
            let values: BTreeMap<u16, u32> = attributes(&body)
                .filter_map(|(kind, value)| {
                    let number = match value.len() {
                        1 => u32::from(value[0]),
                        4 => u32_at(value, 0)?,
                        _ => return None,
                    };
                    Some((kind & !NLA_F_NESTED, number))
                })
                .collect();
            for setting in DriverSetting::ALL {
                let codec = setting.codec();
                let Some(value) = values.get(&codec.value).filter(|_| codec.set == get + 1) else {
                    continue;
                };
                let max = codec.max.and_then(|max| values.get(&max).copied());
                found.insert(setting, SettingValue { value: *value, max });
            }
        }
        found
    }

    /// Changes a setting. A change of rings or channels may take the link down for a moment.
    ///
    /// # Errors
    /// As the module says, or the driver's error.
    pub fn set(&mut self, device: &str, setting: DriverSetting, value: u32) -> io::Result<()> {
        let codec = setting.codec();
        let mut body = request(codec.set, device, 0);
        match codec.switch {
            true => put(&mut body, codec.value, &[u8::from(value != 0)]),
            false => put(&mut body, codec.value, &value.to_ne_bytes()),
        }
        self.socket.change(self.family, 0, &body)
    }

    /// Reads all offloads by the kernel's name (`rx-gro`, `tx-tcp-segmentation`).
    ///
    /// # Errors
    /// As the module says.
    pub fn features(&mut self, device: &str) -> io::Result<BTreeMap<String, Feature>> {
        let body = self.get(ETHTOOL_MSG_FEATURES_GET, device)?;
        let set = |wanted: u16| {
            let bits = attributes(&body).find(|(kind, _)| kind & !NLA_F_NESTED == wanted);
            bits.map(|(_, value)| read_bits(value)).unwrap_or_default()
        };
        let (hardware, active, unchangeable) = (
            set(ETHTOOL_A_FEATURES_HW),
            set(ETHTOOL_A_FEATURES_ACTIVE),
            set(ETHTOOL_A_FEATURES_NOCHANGE),
        );
        let has = |bits: &BTreeMap<String, bool>, name: &str| bits.get(name) == Some(&true);
        let names = hardware.keys().chain(active.keys());
        Ok(names
            .map(|name| {
                let fixed = !has(&hardware, name) || has(&unchangeable, name);
                (name.clone(), Feature { on: has(&active, name), fixed })
            })
            .collect())
    }

    /// Requests an offload on or off. The driver may ignore it, and may change dependent offloads: read them again.
    ///
    /// # Errors
    /// As the module says; `InvalidInput` for a name that the kernel does not know.
    pub fn set_feature(&mut self, device: &str, name: &str, on: bool) -> io::Result<()> {
        let mut bit = Vec::new();
        put(&mut bit, ETHTOOL_A_BITSET_BIT_NAME, &[name.as_bytes(), &[0]].concat());
        if on {
            put(&mut bit, ETHTOOL_A_BITSET_BIT_VALUE, &[]);
        }
        let mut list = Vec::new();
        put(&mut list, ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED, &bit);
        let mut set = Vec::new();
        put(&mut set, ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &list);
        let mut body = request(ETHTOOL_MSG_FEATURES_SET, device, ETHTOOL_FLAG_OMIT_REPLY);
        put(&mut body, ETHTOOL_A_FEATURES_WANTED | NLA_F_NESTED, &set);
        self.socket.change(self.family, 0, &body)
    }

    fn get(&mut self, command: u8, device: &str) -> io::Result<Vec<u8>> {
        let answer = self.socket.request(self.family, &request(command, device, 0));
        let answer = answer.map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
            _ => error,
        })?;
        let body = answer.get(GENLMSGHDR_BYTES..);
        body.map(<[u8]>::to_vec).ok_or_else(truncated)
    }
}

/// Decodes a bitset in its verbose form into names and values; without a mask every listed bit is set.
fn read_bits(set: &[u8]) -> BTreeMap<String, bool> {
    let no_mask = attributes(set).any(|(kind, _)| kind & !NLA_F_NESTED == ETHTOOL_A_BITSET_NOMASK);
    let list = attributes(set).find(|(kind, _)| kind & !NLA_F_NESTED == ETHTOOL_A_BITSET_BITS);
    attributes(list.map(|(_, value)| value).unwrap_or_default())
        .filter_map(|(_, bit)| {
            let find =
                |wanted: u16| attributes(bit).find(|(kind, _)| kind & !NLA_F_NESTED == wanted);
            let on = no_mask || find(ETHTOOL_A_BITSET_BIT_VALUE).is_some();
            Some((text(find(ETHTOOL_A_BITSET_BIT_NAME)?.1), on))
        })
        .collect()
}

fn request(command: u8, device: &str, flags: u32) -> Vec<u8> {
    let mut header = Vec::new();
    put(&mut header, ETHTOOL_A_HEADER_DEV_NAME, &[device.as_bytes(), &[0]].concat());
    put(&mut header, ETHTOOL_A_HEADER_FLAGS, &flags.to_ne_bytes());
    let mut body = generic(command);
    put(&mut body, ETHTOOL_A_HEADER | NLA_F_NESTED, &header);
    body
}

fn generic(command: u8) -> Vec<u8> {
    vec![command, ETHTOOL_GENL_VERSION, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_offloads_and_no_rings() {
        let mut ethtool = Ethtool::open().unwrap();
        let features = ethtool.features("lo").unwrap();
        assert!(features["loopback"].on && features["loopback"].fixed, "{features:?}");
        assert!(features.contains_key("rx-gro") && features.len() > 40, "{}", features.len());
        assert!(!ethtool.settings("lo").contains_key(&DriverSetting::RxRing));
        let unknown = ethtool.features("no-such-device").unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::NotFound, "{unknown}");
    }

    #[test]
    fn bitsets_with_and_without_mask() {
        let mut bit = Vec::new();
        put(&mut bit, ETHTOOL_A_BITSET_BIT_NAME, b"rx-gro\0");
        let mut list = Vec::new();
        put(&mut list, ETHTOOL_A_BITSET_BITS_BIT, &bit);
        let mut set = Vec::new();
        put(&mut set, ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &list);
        assert_eq!(read_bits(&set), BTreeMap::from([("rx-gro".to_owned(), false)]));
        put(&mut set, ETHTOOL_A_BITSET_NOMASK, &[]);
        assert_eq!(read_bits(&set), BTreeMap::from([("rx-gro".to_owned(), true)]));
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 3, 4, 8, 255] {
                let _ = read_bits(&vec![byte; length]);
            }
        }
    }
}
