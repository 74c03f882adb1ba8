//! Gives up what is needed no more once programs are attached.
//!
//! Kept: CAP_BPF and CAP_NET_ADMIN (maps on older kernels, and attaching when a reload asks for it) and
//! CAP_SYS_PTRACE (sockets of running programs). Everything else is gone for this process and what it
//! might start.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

const KEPT: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::SYS_PTRACE);

/// Drops all capabilities but the kept ones from this thread and those it will start.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_most() -> io::Result<()> {
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        // Without CAP_SETPCAP it stays; what counts is the permitted set below.
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
