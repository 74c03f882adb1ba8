//! Tags of single sockets, also accepted and connected ones. They take precedence over all rules.
//!
//! The map is pinned as `maps2/sockets`; a process with access to it may tag its own sockets, without other privilege
//! since Linux 5.19. Accepted sockets inherit the tag of the listening socket. The value has 32
//! bytes: label without entropy (4, native order), owner (2, big-endian), activity, method (1
//! label, 2 destination, 3 both, 4 none, 0 for no tag), name of the program (16), cgroup (8).

use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, SkStorage};

use crate::error::MarkerError;
use crate::maps::{FORMAT, TagValue, action_bytes, action_of, program_key};
use crate::marker::typed;
use crate::rule::LabelAction;

/// Access to the map of socket tags.
#[derive(Debug)]
pub struct SocketTags {
    map: SkStorage<MapData, TagValue>,
}

impl SocketTags {
    pub(crate) fn of(map: SkStorage<MapData, TagValue>) -> Self {
        Self { map }
    }

    /// Opens the map that a marker pinned in `pin`.
    ///
    /// # Errors
    /// When there is none, or this user may not open it.
    pub fn open(pin: &Path) -> Result<Self, MarkerError> {
        let path = pin.join(FORMAT).join("sockets");
        if !path.exists() {
            return Err(MarkerError::Absent(pin.to_owned()));
        }
        let opened = MapData::from_pin(&path).and_then(Map::from_map_data);
        let map = opened.map_err(|error| {
            MarkerError::kernel(format!("open the map of sockets {}", path.display()), error)
        })?;
        Ok(Self { map: typed(map)? })
    }

    /// Returns the tag of `socket`, if it has one.
    #[must_use]
    pub fn get(&self, socket: &impl AsRawFd) -> Option<LabelAction> {
        self.map.get(socket, 0).ok().and_then(|value| action_of(&value))
    }

    /// Tags `socket` from its next packet on; `None` removes the tag.
    ///
    /// # Errors
    /// When the descriptor is not a socket, or the kernel refuses.
    pub fn set(
        &mut self,
        socket: &impl AsRawFd,
        action: Option<LabelAction>,
    ) -> Result<(), MarkerError> {
        let mut value = self.map.get(socket, 0).unwrap_or([0; 32]);
        value[..8].copy_from_slice(&action.map_or([0; 8], action_bytes));
        self.write(socket, value)
    }

    /// Records the process name of `socket` for rules by program.
    pub(crate) fn note(&mut self, socket: &impl AsRawFd, program: &str) -> Result<(), MarkerError> {
        let Some(key) = program_key(program) else { return Ok(()) };
        let mut value = self.map.get(socket, 0).unwrap_or([0; 32]);
        value[8..24].copy_from_slice(&key);
        self.write(socket, value)
    }

    fn write(&mut self, socket: &impl AsRawFd, value: TagValue) -> Result<(), MarkerError> {
        let written = self.map.insert(socket, value, 0);
        written.map_err(|error| MarkerError::kernel("tag a socket", error))
    }
}
