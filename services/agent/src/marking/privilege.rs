//! Drops capabilities that are not needed once programs are attached.
//!
//! Kept are CAP_BPF and CAP_NET_ADMIN (maps on older kernels, attaching after a reload) and CAP_SYS_PTRACE
//! (sockets of running programs), for this process and its children.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

const KEPT: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::SYS_PTRACE);

/// Drops all but the kept capabilities from this thread and the threads that it will start.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_capabilities() -> io::Result<()> {
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        // Fails without CAP_SETPCAP; the permitted set below is what matters.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let have = capabilities(None)?;
    let left = have.permitted & KEPT;
    set_capabilities(
        None,
        CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}
