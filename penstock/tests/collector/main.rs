//! `penstock serve` in the role collector: datagrams by UDP in, figures by HTTP out.

#[path = "../common/mod.rs"]
mod common;

mod api;
mod site;
