//! Agents that a controller gives orders to: real agents and files, and a controller that does as each test says.

#[path = "../common/mod.rs"]
mod common;

mod carrying;
mod controller;
mod hostile;
mod killing;
mod node;
mod operations;
mod steering;
