//! The running kernel: release, command line, build options.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

/// Size limit of the unpacked list of build options, in bytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Build options that rules read, without `CONFIG_`.
const OPTIONS: [&str; 7] = [
    "BPF_SYSCALL",
    "IO_URING",
    "MAX_SKB_FRAGS",
    "NET_SCH_FQ",
    "NET_SCH_NETEM",
    "TCP_CONG_BBR",
    "TLS",
];

/// Release, command line and build options of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Release, as `uname -r` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub release: Option<String>,
    /// Command line of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub command_line: Option<String>,
    /// Build options that rules read: `y`, `m`, `n` or a number; empty where no list of them is found.
    #[serde(default)]
    #[schema(required)]
    pub options: BTreeMap<String, String>,
    /// True where the kernel has type information for eBPF (BTF).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub btf: Option<bool>,
}

/// Major and minor version of a release such as 6.18.44.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Kernel {
    /// Parses major and minor version of the release.
    #[must_use]
    pub fn version(&self) -> Option<Release> {
        let text = self.release.as_deref()?;
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        Some(Release(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// True for enterprise kernels with backported features (`5.14.0-503.el9`).
    #[must_use]
    pub fn is_enterprise(&self) -> bool {
        self.release.as_deref().is_some_and(|release| {
            release.contains(".el8") || release.contains(".el9") || release.contains(".el10")
        })
    }

    /// True if it was built with an option, built in or as a module.
    #[must_use]
    pub fn has(&self, option: &str) -> Option<bool> {
        self.options.get(option).map(|value| value != "n")
    }
}

/// Reads kernel facts from `/proc` and `/boot`.
#[must_use]
pub fn gather(tree: &Tree) -> Kernel {
    let release = tree.text("/proc/sys/kernel/osrelease");
    let config = config(tree, release.as_deref());
    Kernel {
        command_line: tree.text("/proc/cmdline"),
        options: config.map(|text| options(&text)).unwrap_or_default(),
        btf: release.is_some().then(|| tree.exists("/sys/kernel/btf/vmlinux")),
        release,
    }
}

fn config(tree: &Tree, release: Option<&str>) -> Option<String> {
    if let Some(packed) = tree.bytes("/proc/config.gz") {
        let mut text = String::new();
        let mut plain = GzDecoder::new(&*packed).take(CONFIG_BYTES_MAX);
        if plain.read_to_string(&mut text).is_ok() {
            return Some(text);
        }
    }
    let release = release.filter(|release| !release.contains('/'))?;
    let places = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    places.iter().find_map(|place| tree.text(place))
}

fn options(config: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for option in OPTIONS {
        let value = config
            .lines()
            .find_map(|line| line.strip_prefix("CONFIG_")?.strip_prefix(option)?.strip_prefix('='));
        found.insert(option.to_owned(), value.unwrap_or("n").trim_matches('"').to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_two_numbers() {
        let of = |text: &str| Kernel { release: Some(text.into()), ..Kernel::default() }.version();
        assert_eq!(of("6.18.44-fc"), Some(Release(6, 18)));
        assert_eq!(of("5.14.0-503.11.1.el9_5.x86_64"), Some(Release(5, 14)));
        assert_eq!(of("6.8-rc1"), Some(Release(6, 8)));
        for none in ["", "six", "6", "6.x"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert!(Release(5, 14) < Release(6, 3) && Release(6, 18) > Release(6, 8));
    }

    #[test]
    fn build_options() {
        let found =
            options("CONFIG_TLS=m\n# CONFIG_NET_SCH_FQ is not set\nCONFIG_MAX_SKB_FRAGS=45\n");
        assert_eq!((found["TLS"].as_str(), found["NET_SCH_FQ"].as_str()), ("m", "n"));
        assert_eq!(found["MAX_SKB_FRAGS"], "45");
    }

    #[test]
    fn this_kernel_has_a_release() {
        let kernel = gather(&Tree::default());
        assert!(kernel.version() > Some(Release(4, 0)) && kernel.command_line.is_some());
    }
}
