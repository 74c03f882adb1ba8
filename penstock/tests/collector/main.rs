//! `penstock serve` in the role collector: datagrams by UDP in, figures by HTTP out.

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod api;
mod archive;
mod clickhouse;
mod coverage;
mod database;
mod deploy;
mod events;
mod hostile;
mod naming;
mod persistence;
mod prometheus;
mod site;
mod timing;
