//! Stub: the mover's side of an agent.
#![allow(missing_docs)]
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use penstock_protocol::control::Settings;
use penstock_protocol::open::Refusal;

use crate::identity::{Fingerprint, Identity};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
}
#[derive(Debug)]
pub struct Place {
    pub root: penstock_sys::fs::Dir,
    pub path: Vec<u8>,
    pub shown: String,
}
pub trait Gatekeeper: Send + Sync {
    fn authenticate(&self, token: &str, certificate: Option<&Fingerprint>, peer: &str) -> Result<Caller, Refusal>;
    fn place(&self, caller: &Caller, path: &[u8], write: bool) -> Result<Place, Refusal>;
}
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub rate_bps: Option<u64>,
    pub transfers: usize,
    pub streams_per_transfer: u16,
    pub memory_bytes: u64,
}
impl Default for Limits {
    fn default() -> Self {
        Self { rate_bps: None, transfers: 64, streams_per_transfer: 64, memory_bytes: 256 << 20 }
    }
}
#[expect(missing_debug_implementations)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    pub identity: Arc<Identity>,
    pub gatekeeper: Arc<dyn Gatekeeper>,
    pub state: PathBuf,
    pub limits: Limits,
}
#[derive(Debug, Clone)]
pub struct Agent {
    listeners: Arc<Vec<TcpListener>>,
    transfers: Arc<Mutex<Vec<Transfer>>>,
}
impl Agent {
    pub fn start(config: Config) -> io::Result<Self> {
        let listeners = config.listen.iter().map(TcpListener::bind).collect::<io::Result<Vec<_>>>()?;
        let transfers = Arc::new(Mutex::new(Vec::new()));
        Ok(Self { listeners: Arc::new(listeners), transfers })
    }
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|l| l.local_addr().ok()).collect()
    }
    pub fn transfers(&self) -> Vec<Transfer> {
        self.transfers.lock().expect("stub").clone()
    }
    pub fn set(&self, _id: u64, _settings: Settings) -> Result<(), String> {
        Err("stub".into())
    }
    pub fn cancel(&self, _id: u64, _reason: &str) -> Result<(), String> {
        Err("stub".into())
    }
    pub fn set_limits(&self, _limits: Limits) {}
    pub fn shut_down(&self, _grace: Duration) {}
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
#[derive(Debug, Clone, serde::Serialize)]
pub struct Transfer {
    pub id: u64,
    pub caller: String,
    pub peer: String,
    pub direction: &'static str,
    pub path: String,
    pub state: &'static str,
    pub started: SystemTime,
    pub seconds: f64,
    pub bytes: u64,
    pub moved_bytes: u64,
    pub resumed_bytes: u64,
    pub announced_bytes: u64,
    pub files: u64,
    pub failed: u64,
    pub streams: u16,
    pub readers: u16,
    pub writers: u16,
    pub rate_bps: Option<u64>,
    pub bits_per_second: u64,
    pub bound_by: String,
    pub engine: String,
    pub retransmits: u64,
}
#[derive(Debug, Clone, Default)]
pub struct Counters {
    pub connections: u64,
    pub refused: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub transfers_started: u64,
    pub transfers_failed: u64,
    pub blocks_repeated: u64,
    pub streams_lost: u64,
}
