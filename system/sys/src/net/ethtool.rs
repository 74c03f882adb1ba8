//! What a network device's driver tells and takes: speed, rings, interrupt moderation, pause frames, queues and
//! offloads, by the kernel's `ethtool` family of generic netlink (Documentation/networking/ethtool-netlink.rst).
//!
//! Never by the text of the `ethtool` program, which changes.
//!
//! Fails with `Unsupported` where the driver does not have it, `NotFound` where the device is not there.

use std::collections::BTreeMap;
use std::io;

use rustix::net::netlink;

use super::conversation::Conversation;
use super::device::text;
use super::netlink::{attributes, cut, put, u16_at, u32_at};

/// Generic netlink's own family, and its question for another.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const VERSION: u8 = 1;
const GENERIC_HEADER_BYTES: usize = 4;
const NESTED: u16 = 0x8000;

/// linux/ethtool_netlink.h: questions; the order to set is the next number.
mod message {
    pub(super) const LINKMODES_GET: u8 = 4;
    pub(super) const FEATURES_GET: u8 = 11;
    pub(super) const FEATURES_SET: u8 = 12;
    pub(super) const RINGS_GET: u8 = 15;
    pub(super) const RINGS_SET: u8 = 16;
    pub(super) const CHANNELS_GET: u8 = 17;
    pub(super) const CHANNELS_SET: u8 = 18;
    pub(super) const COALESCE_GET: u8 = 19;
    pub(super) const COALESCE_SET: u8 = 20;
    pub(super) const PAUSE_GET: u8 = 21;
    pub(super) const PAUSE_SET: u8 = 22;
    pub(super) const RSS_GET: u8 = 38;
}

const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const OMIT_REPLY: u32 = 2;

/// A number or switch that drivers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Knob {
    /// Descriptors for receiving.
    RxRing,
    /// Descriptors for sending.
    TxRing,
    /// Queues for receiving alone.
    RxChannels,
    /// Queues for sending alone.
    TxChannels,
    /// Queues for both.
    CombinedChannels,
    /// Microseconds for which an interrupt for received packets may wait.
    RxMicroseconds,
    /// Packets for which it may wait.
    RxFrames,
    /// Microseconds for which an interrupt for sent packets may wait.
    TxMicroseconds,
    /// Packets for which it may wait.
    TxFrames,
    /// Whether the driver chooses the wait for received packets.
    AdaptiveRx,
    /// Whether it does for sent ones.
    AdaptiveTx,
    /// Whether pause frames are negotiated.
    PauseAutoneg,
    /// Whether received pause frames are obeyed.
    PauseRx,
    /// Whether pause frames are sent.
    PauseTx,
}

struct Place {
    set: u8,
    value: u16,
    max: Option<u16>,
    /// One byte, off or on.
    switch: bool,
}

impl Knob {
    /// All of them.
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

    fn place(self) -> Place {
        use message::{CHANNELS_SET, COALESCE_SET, PAUSE_SET, RINGS_SET};
        let (set, value, max, switch) = match self {
            Self::RxRing => (RINGS_SET, 6, Some(2), false),
            Self::TxRing => (RINGS_SET, 9, Some(5), false),
            Self::RxChannels => (CHANNELS_SET, 6, Some(2), false),
            Self::TxChannels => (CHANNELS_SET, 7, Some(3), false),
            Self::CombinedChannels => (CHANNELS_SET, 9, Some(5), false),
            Self::RxMicroseconds => (COALESCE_SET, 2, None, false),
            Self::RxFrames => (COALESCE_SET, 3, None, false),
            Self::TxMicroseconds => (COALESCE_SET, 6, None, false),
            Self::TxFrames => (COALESCE_SET, 7, None, false),
            Self::AdaptiveRx => (COALESCE_SET, 11, None, true),
            Self::AdaptiveTx => (COALESCE_SET, 12, None, true),
            Self::PauseAutoneg => (PAUSE_SET, 2, None, true),
            Self::PauseRx => (PAUSE_SET, 3, None, true),
            Self::PauseTx => (PAUSE_SET, 4, None, true),
        };
        Place { set, value, max, switch }
    }
}

/// What a knob stands at, and the most it can; switches are 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: u32,
    /// The most that the driver takes, where it tells.
    pub max: Option<u32>,
}

/// An offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Whether it is on.
    pub on: bool,
    /// Whether it cannot be changed.
    pub fixed: bool,
}

/// A conversation with the kernel's ethtool family.
#[expect(missing_debug_implementations, reason = "a socket and a buffer say nothing")]
pub struct Ethtool {
    conversation: Conversation,
    family: u16,
}

impl Ethtool {
    /// # Errors
    /// `NotFound` where the kernel does not have the family (before Linux 5.6).
    pub fn open() -> io::Result<Self> {
        let mut conversation = Conversation::open(Some(netlink::GENERIC))?;
        let mut body = generic(GET_FAMILY);
        put(&mut body, FAMILY_NAME, b"ethtool\0");
        let answers = conversation.ask(CONTROL, &body)?;
        let body = answers.first().and_then(|body| body.get(GENERIC_HEADER_BYTES..));
        let family = attributes(body.ok_or_else(cut)?).find(|(kind, _)| *kind == FAMILY_ID);
        let family = family.and_then(|(_, value)| u16_at(value, 0)).ok_or_else(cut)?;
        Ok(Self { conversation, family })
    }

    /// Rate of the device's link in Mb/s; none where it is down or has no rate.
    ///
    /// # Errors
    /// As the module says.
    pub fn speed_mbps(&mut self, device: &str) -> io::Result<Option<u32>> {
        const SPEED: u16 = 5;
        let body = self.get(message::LINKMODES_GET, device)?;
        let speed = attributes(&body).find(|(kind, _)| kind & !NESTED == SPEED);
        // SPEED_UNKNOWN is -1.
        let speed = speed.and_then(|(_, value)| u32_at(value, 0));
        Ok(speed.filter(|speed| *speed != 0 && *speed != u32::MAX))
    }

    /// Queues to which the driver spreads received packets (receive side scaling), each once.
    ///
    /// # Errors
    /// As the module says; `Unsupported` also where the kernel does not tell (before Linux 6.3).
    pub fn spread_over(&mut self, device: &str) -> io::Result<Vec<u32>> {
        const INDIRECTION: u16 = 4;
        let body = self.get(message::RSS_GET, device)?;
        let table = attributes(&body).find(|(kind, _)| kind & !NESTED == INDIRECTION);
        let (_, table) = table.ok_or(io::ErrorKind::Unsupported)?;
        let mut queues: Vec<u32> =
            table.chunks_exact(4).filter_map(|number| u32_at(number, 0)).collect();
        queues.sort_unstable();
        queues.dedup();
        Ok(queues)
    }

    /// Every knob that the driver has; what it does not have is left out.
    pub fn settings(&mut self, device: &str) -> BTreeMap<Knob, Setting> {
        use message::{CHANNELS_GET, COALESCE_GET, PAUSE_GET, RINGS_GET};
        let mut found = BTreeMap::new();
        for get in [RINGS_GET, CHANNELS_GET, COALESCE_GET, PAUSE_GET] {
            let Ok(body) = self.get(get, device) else { continue };
            let values: BTreeMap<u16, u32> = attributes(&body)
                .filter_map(|(kind, value)| {
                    let number = match value.len() {
                        1 => u32::from(value[0]),
                        4 => u32_at(value, 0)?,
                        _ => return None,
                    };
                    Some((kind & !NESTED, number))
                })
                .collect();
            for knob in Knob::ALL {
                let place = knob.place();
                let Some(value) = values.get(&place.value).filter(|_| place.set == get + 1) else {
                    continue;
                };
                let max = place.max.and_then(|max| values.get(&max).copied());
                found.insert(knob, Setting { value: *value, max });
            }
        }
        found
    }

    /// Turns a knob; switches take 0 and 1. Changing rings or channels may take the link down for a moment.
    ///
    /// # Errors
    /// As the module says, or the driver's refusal.
    pub fn set(&mut self, device: &str, knob: Knob, value: u32) -> io::Result<()> {
        let place = knob.place();
        let mut body = request(place.set, device, 0);
        match place.switch {
            true => put(&mut body, place.value, &[u8::from(value != 0)]),
            false => put(&mut body, place.value, &value.to_ne_bytes()),
        }
        self.conversation.order(self.family, 0, &body)
    }

    /// Every offload that the kernel knows, by its name there (`rx-gro`, `tx-tcp-segmentation`).
    ///
    /// # Errors
    /// As the module says.
    pub fn features(&mut self, device: &str) -> io::Result<BTreeMap<String, Feature>> {
        // What the device has, what is on, what nobody may change.
        const HARDWARE: u16 = 2;
        const ACTIVE: u16 = 4;
        const NO_CHANGE: u16 = 5;
        let body = self.get(message::FEATURES_GET, device)?;
        let set = |wanted: u16| {
            let bits = attributes(&body).find(|(kind, _)| kind & !NESTED == wanted);
            bits.map(|(_, value)| read_bits(value)).unwrap_or_default()
        };
        let (hardware, active, unchangeable) = (set(HARDWARE), set(ACTIVE), set(NO_CHANGE));
        let has = |bits: &BTreeMap<String, bool>, name: &str| bits.get(name) == Some(&true);
        let names = hardware.keys().chain(active.keys());
        Ok(names
            .map(|name| {
                let fixed = !has(&hardware, name) || has(&unchangeable, name);
                (name.clone(), Feature { on: has(&active, name), fixed })
            })
            .collect())
    }

    /// Turns an offload on or off. The driver may not obey, and others may follow: read them again.
    ///
    /// # Errors
    /// As the module says; a name that the kernel does not know is an invalid argument.
    pub fn set_feature(&mut self, device: &str, name: &str, on: bool) -> io::Result<()> {
        const WANTED: u16 = 3;
        let mut bit = Vec::new();
        put(&mut bit, bits::NAME, &[name.as_bytes(), &[0]].concat());
        if on {
            put(&mut bit, bits::VALUE, &[]);
        }
        let mut list = Vec::new();
        put(&mut list, bits::BIT | NESTED, &bit);
        let mut set = Vec::new();
        put(&mut set, bits::BITS | NESTED, &list);
        let mut body = request(message::FEATURES_SET, device, OMIT_REPLY);
        put(&mut body, WANTED | NESTED, &set);
        self.conversation.order(self.family, 0, &body)
    }

    fn get(&mut self, question: u8, device: &str) -> io::Result<Vec<u8>> {
        let answers = self.conversation.ask(self.family, &request(question, device, 0));
        let answers = answers.map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
            _ => error,
        })?;
        let body = answers.first().and_then(|body| body.get(GENERIC_HEADER_BYTES..));
        body.map(<[u8]>::to_vec).ok_or_else(cut)
    }
}

/// Of a set of bits.
mod bits {
    pub(super) const NO_MASK: u16 = 1;
    pub(super) const BITS: u16 = 3;
    pub(super) const BIT: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const VALUE: u16 = 3;
}

/// The bits that are listed, by name; in a list without a mask all of them are on.
fn read_bits(set: &[u8]) -> BTreeMap<String, bool> {
    let listed = attributes(set).any(|(kind, _)| kind & !NESTED == bits::NO_MASK);
    let list = attributes(set).find(|(kind, _)| kind & !NESTED == bits::BITS);
    attributes(list.map(|(_, value)| value).unwrap_or_default())
        .filter_map(|(_, bit)| {
            let find = |wanted: u16| attributes(bit).find(|(kind, _)| kind & !NESTED == wanted);
            let on = listed || find(bits::VALUE).is_some();
            Some((text(find(bits::NAME)?.1), on))
        })
        .collect()
}

fn request(command: u8, device: &str, flags: u32) -> Vec<u8> {
    let mut header = Vec::new();
    put(&mut header, HEADER_NAME, &[device.as_bytes(), &[0]].concat());
    put(&mut header, HEADER_FLAGS, &flags.to_ne_bytes());
    let mut body = generic(command);
    put(&mut body, HEADER | NESTED, &header);
    body
}

fn generic(command: u8) -> Vec<u8> {
    vec![command, VERSION, 0, 0]
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
        assert!(!ethtool.settings("lo").contains_key(&Knob::RxRing));
        let unknown = ethtool.features("no-such-device").unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::NotFound, "{unknown}");
    }

    #[test]
    fn sets_of_bits_with_and_without_a_mask() {
        let mut bit = Vec::new();
        put(&mut bit, bits::NAME, b"rx-gro\0");
        let mut list = Vec::new();
        put(&mut list, bits::BIT, &bit);
        let mut set = Vec::new();
        put(&mut set, bits::BITS | NESTED, &list);
        assert_eq!(read_bits(&set), BTreeMap::from([("rx-gro".to_owned(), false)]));
        put(&mut set, bits::NO_MASK, &[]);
        assert_eq!(read_bits(&set), BTreeMap::from([("rx-gro".to_owned(), true)]));
    }

    #[test]
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 3, 4, 8, 255] {
                let _ = read_bits(&vec![byte; length]);
            }
        }
    }
}
