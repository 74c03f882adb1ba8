//! How fast a network device is (`ethtool`).

use std::io;

use super::checksums::Device;

/// include/uapi/linux/ethtool.h: struct ethtool_link_settings, in words.
const GLINKSETTINGS: u32 = 0x4C;
const WORDS: usize = 12;
const SPEED: usize = 1;
/// The last byte of this word is how many words each of the three masks has.
const MASKS: usize = 3;
const UNKNOWN_MBPS: u32 = u32::MAX;

/// Bits per second of the device with this name, and whether both directions have so many at once; `None` where it
/// does not tell, as many virtual ones.
///
/// # Errors
/// Whatever the device says; `Unsupported` where it has no speed.
pub fn speed_bps(name: &str) -> io::Result<Option<(u64, bool)>> {
    let device = Device::new(name)?;
    // The first answer is how many words the masks have, as a negative number.
    let mut words = vec![0_u32; WORDS];
    words[0] = GLINKSETTINGS;
    device.ask(&mut words)?;
    let mut bytes = words[MASKS].to_ne_bytes();
    let count = bytes[3].cast_signed().saturating_neg();
    let more = usize::try_from(count).unwrap_or(0);
    let mut words = vec![0_u32; WORDS + 3 * more];
    words[0] = GLINKSETTINGS;
    bytes = [0, 0, 0, count.cast_unsigned()];
    words[MASKS] = u32::from_ne_bytes(bytes);
    device.ask(&mut words)?;
    let speed = words[SPEED];
    let full_duplex = words[2].to_ne_bytes()[0] == 1;
    let known = speed != 0 && speed != UNKNOWN_MBPS;
    Ok(known.then(|| (u64::from(speed) * 1_000_000, full_duplex)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_speed_says_so() {
        // Loopback has none; what it answers depends on the kernel.
        assert!(!matches!(speed_bps("lo"), Ok(Some(_))));
        assert!(speed_bps("no-such-device").is_err());
    }
}
