//! Options of copies in the unit tests of this crate.

use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Existing, Options, Protection};

/// Options without anything special: blocks of 1 MiB, CRC-32C, encrypted.
pub(crate) fn plain_options() -> Options {
    Options {
        block_bytes: 1 << 20,
        algorithm: Algorithm::Crc32c,
        protection: Protection::Full,
        inplace: false,
        xattrs: false,
        compare_digest: false,
        readback: false,
        existing: Existing::Replace,
        mark: None,
        settings: Settings::default(),
    }
}
