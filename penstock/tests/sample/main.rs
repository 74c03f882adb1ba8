//! `penstock sample` against the real kernel: namespaces joined by a veth pair, its datagrams read by our decoder,
//! by tshark, and by the collectors of others. Needs root; says so and passes where it is not to be had.

#[path = "../common/mod.rs"]
mod common;
// The marker's lab, of which this takes what it needs.
#[allow(dead_code)]
#[path = "../marker/lab.rs"]
mod lab;

mod collectors;
mod sampler;
mod wire;
