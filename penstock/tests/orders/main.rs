//! Agents under a controller: real agents and files, with a scripted or the real controller.

#[path = "../common/mod.rs"]
mod common;

mod controller;
mod crashes;
mod delivery;
mod hostile;
mod link_telemetry;
mod live_settings;
mod node;
mod operations;
#[allow(dead_code, reason = "it is the collector's tests' own")]
#[path = "../collector/site.rs"]
mod site;
mod withdrawal;
