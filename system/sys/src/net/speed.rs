//! Link speed of a network device, by SIOCETHTOOL.

use std::io;

use super::checksums::EthtoolSocket;

/// include/uapi/linux/ethtool.h; libc does not have it.
const ETHTOOL_GLINKSETTINGS: u32 = 0x4C;
/// Size of `struct ethtool_link_settings` without its masks, and fields in it, in 32-bit words.
const LINK_SETTINGS_WORDS: usize = 12;
const SPEED_WORD: usize = 1;
/// The last byte of this word is `link_mode_masks_nwords`.
const MASK_WORDS_WORD: usize = 3;
const SPEED_UNKNOWN: u32 = u32::MAX;

/// Link speed in bits per second of the device with this name, and true for full duplex. `None` where the driver does not
/// report a speed, as many virtual devices.
///
/// # Errors
/// The driver's error; `Unsupported` for devices without a speed.
pub fn speed_bps(name: &str) -> io::Result<Option<(u64, bool)>> {
    let device = EthtoolSocket::new(name)?;
    // The first answer holds the number of mask words, negated.
    let mut words = vec![0_u32; LINK_SETTINGS_WORDS];
    words[0] = ETHTOOL_GLINKSETTINGS;
    device.request(&mut words)?;
    let mut bytes = words[MASK_WORDS_WORD].to_ne_bytes();
    let count = bytes[3].cast_signed().saturating_neg();
    let more = usize::try_from(count).unwrap_or(0);
    let mut words = vec![0_u32; LINK_SETTINGS_WORDS + 3 * more];
    words[0] = ETHTOOL_GLINKSETTINGS;
    bytes = [0, 0, 0, count.cast_unsigned()];
    words[MASK_WORDS_WORD] = u32::from_ne_bytes(bytes);
    device.request(&mut words)?;
    let speed = words[SPEED_WORD];
    let full_duplex = words[2].to_ne_bytes()[0] == 1;
    let known = speed != 0 && speed != SPEED_UNKNOWN;
    Ok(known.then(|| (u64::from(speed) * 1_000_000, full_duplex)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_speed() {
        // Loopback has none; what it answers depends on the kernel.
        assert!(!matches!(speed_bps("lo"), Ok(Some(_))));
        assert!(speed_bps("no-such-device").is_err());
    }
}
