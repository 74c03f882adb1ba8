//! Name and version of this software.

/// Returns name and version as sent to peers, such as `penstock 0.1.0`.
#[must_use]
pub(crate) fn software() -> String {
    concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned()
}
