//! `penstock tag run` against the real kernel: namespaces joined by a veth pair, real iperf3, and every
//! packet read by tshark on the far side. Needs root; prints that it is skipped without.

#[path = "../common/mod.rs"]
mod common;
mod lab;
mod life;
mod path_mtu;
mod shares;
