//! Qualified name and identifier of this host.
//!
//! Those of `/etc/nvme`, which nvme-cli makes, where they exist; else derived from the machine's identifier, so that they
//! stay the same. The kernel's host refuses one identifier with two names, so another name has another identifier.

use std::fs;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use penstock_nvme::nqn;

use crate::DiskError;

/// Name and identifier with which this host connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeHostIdentity {
    /// Qualified name, which targets allow.
    pub nqn: String,
    /// Identifier of 16 bytes, a UUID.
    pub id: [u8; 16],
}

impl NvmeHostIdentity {
    /// Identity of this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let read = |path: &str| {
            let text = fs::read_to_string(root.join(path)).unwrap_or_default();
            text.lines().next().unwrap_or_default().trim().to_owned()
        };
        let configured = read("etc/nvme/hostnqn");
        if nqn::checked(&configured).is_ok() {
            let id = nqn::parse_uuid(&read("etc/nvme/hostid"));
            let named = Self::named(&configured);
            return named.map_or_else(
                |_| Self::derived(&configured),
                |named| Self { id: id.unwrap_or(named.id), ..named },
            );
        }
        let machine = read("etc/machine-id");
        let machine = if machine.is_empty() { penstock_sys::machine::host_name() } else { machine };
        Self::derived(&machine)
    }

    fn derived(machine: &str) -> Self {
        let id = derived_id(machine);
        Self { nqn: nqn::of_host(&id), id }
    }

    /// Identity of a host with this name; the identifier is the UUID in the name, or derived from it.
    ///
    /// # Errors
    /// If the name is not valid.
    pub fn named(name: &str) -> Result<Self, DiskError> {
        let name = nqn::checked(name)?;
        let id = name.rsplit(':').next().and_then(nqn::parse_uuid);
        Ok(Self { nqn: name.to_owned(), id: id.unwrap_or_else(|| derived_id(name)) })
    }
}

/// UUID of version 8 from a text.
fn derived_id(text: &str) -> [u8; 16] {
    let hash = digest(&SHA256, format!("penstock NVMe host {text}").as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hash.as_ref()[..16]);
    id[6] = id[6] & 0x0F | 0x80;
    id[8] = id[8] & 0x3F | 0x80;
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_name_comes_first() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/nvme")).unwrap();
        fs::write(root.path().join("etc/machine-id"), "0123\n").unwrap();
        let derived = NvmeHostIdentity::below(root.path());
        assert_eq!(derived, NvmeHostIdentity::below(root.path()));
        assert_eq!(NvmeHostIdentity::named(&derived.nqn).unwrap(), derived);
        fs::write(root.path().join("etc/nvme/hostnqn"), "nqn.2020-01.org.example:h\n").unwrap();
        let configured = NvmeHostIdentity::below(root.path());
        assert_eq!(configured.nqn, "nqn.2020-01.org.example:h");
        assert_ne!(configured.id, derived.id);
        let uuid = "0f14d0ab-9605-4a62-a9e4-5ed26688389b";
        fs::write(root.path().join("etc/nvme/hostid"), uuid).unwrap();
        assert_eq!(nqn::uuid_text(&NvmeHostIdentity::below(root.path()).id), uuid);
    }
}
