//! Queries: checksums, configuration, space.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_mover::Caller;
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_xrootd::request::{READV_SEGMENT_BYTES_MAX, READV_SEGMENTS_MAX};
use penstock_xrootd::{XrdError, XrdErrorCode, XrdPath};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::files::{self, failed};
use crate::digest;
use crate::dispatch::Gateway;

/// Time that a client waits for a checksum before the server answers `kXR_wait`: clients give up connections that are
/// silent for longer.
const CHECKSUM_WAIT: Duration = Duration::from_secs(10);

/// Pause before it asks again, in seconds.
pub(super) const CHECKSUM_RETRY_S: u32 = 2;

/// Checksums that one connection has in work.
const CHECKSUMS_PENDING_MAX: usize = 8;

/// Checksums offered by `query config chksum`.
const CHECKSUMS: [&str; 3] = ["adler32", "crc32c", "md5"];

/// Checksums that are being computed for a connection.
#[derive(Debug, Default)]
pub(super) struct PendingChecksums(Vec<PendingChecksum>);

#[derive(Debug)]
struct PendingChecksum {
    path: Vec<u8>,
    algorithm: Algorithm,
    task: JoinHandle<io::Result<Option<Digest>>>,
}

impl Drop for PendingChecksums {
    fn drop(&mut self) {
        self.0.iter().for_each(|pending| pending.task.abort());
    }
}

impl PendingChecksums {
    /// Returns the answer to a query for a checksum; `None` if the client shall ask again.
    pub(super) async fn checksum(
        &mut self,
        gateway: &Arc<Gateway>,
        caller: &Caller,
        path: &XrdPath<'_>,
    ) -> Result<Option<String>, XrdError> {
        let name = path.value("cks.type").unwrap_or(CHECKSUMS[0].as_bytes()).to_ascii_lowercase();
        let name = String::from_utf8_lossy(&name).into_owned();
        let algorithm = CHECKSUMS.contains(&name.as_str()).then(|| digest::algorithm(&name));
        let algorithm = algorithm.flatten().ok_or_else(|| {
            let text =
                format!("checksum '{}' is none of {}", name.escape_default(), CHECKSUMS.join(", "));
            XrdError::new(XrdErrorCode::Unsupported, text)
        })?;
        let bytes = path.normalized();
        // Checked for each query: the client may have lost access meanwhile.
        let (file, _, shown) = files::open(gateway, caller, &bytes).await?;
        let is_it = |one: &PendingChecksum| one.path == bytes && one.algorithm == algorithm;
        let mut pending = match self.0.iter().position(is_it) {
            Some(at) => self.0.swap_remove(at),
            None => {
                if self.0.len() >= CHECKSUMS_PENDING_MAX {
                    self.0.retain(|one| !one.task.is_finished());
                }
                if self.0.len() >= CHECKSUMS_PENDING_MAX {
                    return Ok(None);
                }
                let (gateway, file) = (Arc::clone(gateway), Arc::new(file));
                let task = tokio::spawn(async move { gateway.digest(file, algorithm).await });
                PendingChecksum { path: bytes, algorithm, task }
            }
        };
        match timeout(CHECKSUM_WAIT, &mut pending.task).await {
            Err(_) => {
                self.0.push(pending);
                Ok(None)
            }
            Ok(ended) => {
                let digest = ended.map_err(io::Error::other).and_then(|digest| digest);
                let digest = digest.map_err(|error| failed(&shown, &error))?.ok_or_else(|| {
                    XrdError::new(XrdErrorCode::Unsupported, format!("{name} is not computed"))
                })?;
                Ok(Some(format!("{name} {digest}")))
            }
        }
    }
}

/// Values of configuration names, one a line; an unknown name stands for itself.
pub(super) fn configuration(names: &[&str]) -> String {
    let value = |name: &&str| match *name {
        // No parallel connections, no third-party copies.
        "bind_max" | "tpc" | "tpcdlg" | "wan_port" => "0".to_owned(),
        "chksum" => {
            let names = CHECKSUMS.iter().enumerate();
            names.map(|(at, name)| format!("{at}:{name}")).collect::<Vec<_>>().join(",")
        }
        "pio_max" => "1".to_owned(),
        "readv_ior_max" => READV_SEGMENT_BYTES_MAX.to_string(),
        "readv_iov_max" => READV_SEGMENTS_MAX.to_string(),
        "role" => "server".to_owned(),
        "version" => format!("penstock-{}", env!("CARGO_PKG_VERSION")),
        name => name.to_owned(),
    };
    names.iter().map(|name| value(name) + "\n").collect()
}

/// Space of the file system of a path.
pub(super) async fn space(
    gateway: &Gateway,
    caller: &Caller,
    path: &XrdPath<'_>,
) -> Result<String, XrdError> {
    let space = files::space(gateway, caller, &path.normalized()).await?;
    let (total, free) = (space.total_bytes, space.available_bytes);
    let used = total.saturating_sub(free);
    Ok(format!(
        "oss.cgroup=default&oss.space={total}&oss.free={free}&oss.maxf={free}&oss.used={used}&oss.quota=-1"
    ))
}
