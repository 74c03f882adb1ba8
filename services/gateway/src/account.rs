//! The transfers of one connection, in the accounts of the agent.
//!
//! Files that one client moves in one direction over a connection are one transfer. It ends with the connection, or when
//! no further file follows for a while.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use penstock_http::ProblemDetails;
use penstock_http::server::HttpConnection;
use penstock_mover::{Agent, Caller, GatewayRequest, GatewayTransfer, TransferDirection};
use penstock_protocol::open::{Mark, Refusal, RefusalKind};

/// Time after which a connection without a further file ends its transfer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for room below the agent's limit of transfers, shorter than the patience of clients.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(20);

/// Time between two attempts meanwhile.
const ADMISSION_INTERVAL: Duration = Duration::from_millis(50);

/// The present transfer of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionAccount {
    current: Mutex<CurrentTransfer>,
}

#[derive(Debug, Default)]
struct CurrentTransfer {
    transfer: Option<Arc<GatewayTransfer>>,
    /// Number of files begun, by which an idle timer knows that none followed.
    files_begun: u64,
}

/// A file or a part of one that is being moved. Dropped before [`FileInTransfer::finish`], it counts as failed.
#[derive(Debug)]
pub(crate) struct FileInTransfer {
    transfer: Arc<GatewayTransfer>,
    account: Arc<ConnectionAccount>,
    number: u64,
    is_done: bool,
}

/// A connection that moves files.
#[derive(Debug)]
pub(crate) struct AccountedConnection<'a> {
    pub(crate) account: Arc<ConnectionAccount>,
    pub(crate) peer: SocketAddr,
    pub(crate) socket: Option<&'a TcpStream>,
    /// Protocol, such as `http`.
    pub(crate) protocol: &'static str,
}

impl<'a> From<&'a HttpConnection> for AccountedConnection<'a> {
    fn from(connection: &'a HttpConnection) -> Self {
        Self {
            account: connection.state(),
            peer: connection.peer(),
            socket: connection.socket().ok(),
            protocol: "http",
        }
    }
}

/// A file that a client is about to move.
#[derive(Debug)]
pub(crate) struct FileRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) direction: TransferDirection,
    /// Path as clients name it.
    pub(crate) shown: &'a str,
    /// Bytes to move, if known.
    pub(crate) bytes: Option<u64>,
    pub(crate) mark: Option<Mark>,
}

/// Begins a transfer; waits while a limit of the agent is reached, as few clients try again.
///
/// # Errors
/// As those of `begin`, of a limit if it stays reached.
pub(crate) async fn admitted<T>(
    mut begin: impl FnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let deadline = Instant::now() + ADMISSION_TIMEOUT;
    loop {
        match begin() {
            Err(refusal) if refusal.kind == RefusalKind::Busy && Instant::now() < deadline => {
                tokio::time::sleep(ADMISSION_INTERVAL).await;
            }
            begun => return begun,
        }
    }
}

impl ConnectionAccount {
    /// Begins a file in the present transfer of `connection`, or in a new one, when the agent has room.
    ///
    /// # Errors
    /// If the limit stays reached.
    pub(crate) async fn begin(
        connection: &HttpConnection,
        agent: &Agent,
        request: &FileRequest<'_>,
    ) -> Result<FileInTransfer, Refusal> {
        admitted(|| Self::try_begin(connection, agent, request)).await
    }

    /// Begins a file as [`Self::begin`] does, without waiting.
    ///
    /// # Errors
    /// If the agent's limit of transfers is reached.
    pub(crate) fn try_begin<'a>(
        connection: impl Into<AccountedConnection<'a>>,
        agent: &Agent,
        request: &FileRequest<'_>,
    ) -> Result<FileInTransfer, Refusal> {
        let AccountedConnection { account, peer, socket, protocol } = connection.into();
        let mut current = account.lock();
        let fits = |one: &Arc<GatewayTransfer>| {
            one.caller() == request.caller
                && one.direction() == request.direction
                && one.mark() == request.mark
                && !one.is_cancelled()
        };
        let transfer = match current.transfer.take().filter(fits) {
            Some(transfer) => transfer,
            None => agent.begin_gateway_transfer(GatewayRequest {
                caller: request.caller.clone(),
                peer: peer.to_string(),
                direction: request.direction,
                protocol,
                path: request.shown.to_owned(),
                mark: request.mark,
                connection: socket.and_then(|socket| socket.try_clone().ok()),
            })?,
        };
        transfer.begin_file(request.shown, request.bytes);
        current.transfer = Some(Arc::clone(&transfer));
        current.files_begun += 1;
        let number = current.files_begun;
        drop(current);
        Ok(FileInTransfer { transfer, account, number, is_done: false })
    }

    fn lock(&self) -> MutexGuard<'_, CurrentTransfer> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileInTransfer {
    /// Counts moved bytes; returns the delay that the limits ask for, or an error once the transfer is cancelled.
    pub(crate) fn count(&self, bytes: usize) -> std::io::Result<Duration> {
        if self.is_cancelled() {
            return Err(std::io::Error::other("an operator cancelled the transfer"));
        }
        Ok(self.transfer.count_moved(bytes))
    }

    /// True once the transfer is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.transfer.is_cancelled()
    }

    /// Counts a whole file.
    pub(crate) fn finish(mut self, bytes: u64) {
        self.transfer.finish_files(1, bytes);
        self.is_done = true;
    }

    /// Ends a part of a file, which counts by its bytes alone.
    pub(crate) fn finish_part(mut self) {
        self.is_done = true;
    }
}

impl Drop for FileInTransfer {
    fn drop(&mut self) {
        if !self.is_done {
            self.transfer.fail_file();
        }
        // The end of the connection ends its transfer, too.
        let (account, number) = (Arc::downgrade(&self.account), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(IDLE_TIMEOUT).await;
            let Some(account) = account.upgrade() else { return };
            let mut current = account.lock();
            if current.files_begun == number {
                let ended = current.transfer.take();
                drop(current);
                drop(ended);
            }
        });
    }
}

/// Scitag that a request asks for: the header `SciTag`, else `scitag.flow` in the query of the URL.
///
/// # Errors
/// 400 for a number that is no scitag.
pub(crate) fn requested_scitag(
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Option<Mark>, ProblemDetails> {
    let header = headers.get("scitag").map(|value| value.to_str().unwrap_or("?"));
    let parameter =
        query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("scitag.flow=")));
    let Some(text) = header.or(parameter) else { return Ok(None) };
    let mark = scitag_mark(text).ok_or_else(|| {
        ProblemDetails::bad_request(
            "SciTag: a number of an experiment and an activity (https://www.scitags.org)",
        )
    })?;
    Ok(Some(mark))
}

/// Returns the mark of a scitag's number.
pub(crate) fn scitag_mark(text: &str) -> Option<Mark> {
    let number = text.trim().parse::<u64>().ok()?;
    let tag = penstock_scitags::Scitag::from_number(number).ok()?;
    let scitag = u16::try_from(tag.number()).ok()?;
    Some(Mark { scitag, label: penstock_protocol::open::PacketLabel::Flow })
}
