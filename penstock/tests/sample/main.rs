//! `penstock sample` against the real kernel: namespaces joined by a veth pair, its datagrams read by our decoder,
//! by tshark, and by third-party collectors. Needs root; prints that it is skipped without.

#[path = "../common/mod.rs"]
mod common;
// The lab of the marker's tests.
#[allow(dead_code)]
#[path = "../marker/lab.rs"]
mod lab;

mod collectors;
mod sampler;
mod wire;
