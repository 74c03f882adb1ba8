//! Agents that a controller gives orders to: real agents and files, and a controller that does as each test says.

#[path = "../common/mod.rs"]
mod common;

mod carrying;
mod controller;
mod hostile;
mod killing;
mod node;
mod operations;
#[allow(dead_code, reason = "it is the collector's tests' own")]
#[path = "../collector/site.rs"]
mod site;
mod steering;
mod watched;
mod withdrawing;
