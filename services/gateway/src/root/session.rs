//! One connection of `root://`: handshake, login, and requests one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use penstock_http::server::ConnectionProof;
use penstock_http::{HEADER_TIMEOUT, REQUEST_TIMEOUT, SEND_TIMEOUT};
use penstock_mover::Caller;
use penstock_sys::fs;
use penstock_xrootd::request::{
    HANDSHAKE_BYTES, HANDSHAKE_MESSAGE, REQUEST_HEAD_BYTES, XrdFileHandle,
};
use penstock_xrootd::response::{self, DataStatus};
use penstock_xrootd::{RequestHead, XrdError, XrdErrorCode, XrdPath, XrdRequest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::RootServer;
use super::data::{self, DataPiece, RootFile};
use super::files::{self, ListingReader, failed, refused};
use super::login::{LoginState, OpenedPaths, REJECTED_TOKENS_MAX};
use super::query::{self, CHECKSUM_RETRY_S, PendingChecksums};
use crate::account::{ConnectionAccount, scitag_mark};
use crate::dispatch::blocking;
use crate::head;

/// Time from the connection to a valid token.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time without a request after which a connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Time without a request after which a connection is no transfer of the agent, so that idle jobs leave room for others.
const TRANSFER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Files that one connection has open.
const OPEN_FILES_MAX: usize = 256;

/// Bytes of a refused request that are read, so that its client gets the answer.
const DRAIN_BYTES_MAX: u64 = 16 << 20;

/// Time for that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Next step after the requests that a stream carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStep {
    /// The client changes to TLS.
    StartTls,
    /// The connection ends.
    End,
}

/// State of one connection.
pub(super) struct RootSession<'s> {
    pub(super) server: &'s RootServer,
    pub(super) peer: SocketAddr,
    pub(super) proof: ConnectionProof,
    pub(super) local: SocketAddr,
    pub(super) socket: TcpStream,
    stop: watch::Receiver<bool>,
    connected: Instant,
    pub(super) state: LoginState,
    pub(super) is_encrypted: bool,
    /// Name of this server as the client wrote it (SNI).
    server_name: Option<String>,
    pub(super) id: [u8; 16],
    /// Client by the token of the session.
    pub(super) caller: Option<Caller>,
    /// Refusal of that token, which another one in the path of a request may make up for.
    pub(super) refusal: Option<XrdError>,
    /// True once a request had a valid token.
    pub(super) is_known: bool,
    /// True while no file is in a transfer because the client is idle.
    is_paused: bool,
    pub(super) rejected_tokens: u32,
    files: BTreeMap<XrdFileHandle, Arc<RootFile>>,
    pub(super) opened: OpenedPaths,
    last_handle: u32,
    pub(super) account: Arc<ConnectionAccount>,
    checksums: PendingChecksums,
}

/// Answer to a request.
pub(super) enum RootAnswer {
    Bytes(Vec<u8>),
    Data(VecDeque<DataPiece>),
    Listing(Box<ListingReader>),
    StartTls(Vec<u8>),
    End(Vec<u8>),
}

impl<'s> RootSession<'s> {
    pub(super) fn new(
        server: &'s RootServer,
        (peer, proof): (SocketAddr, ConnectionProof),
        local: SocketAddr,
        socket: TcpStream,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).expect("the system's random generator works");
        Self {
            server,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            proof,
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            socket,
            stop,
            connected: Instant::now(),
            state: LoginState::Connected,
            is_encrypted: false,
            server_name: None,
            id,
            caller: None,
            refusal: None,
            is_known: false,
            is_paused: false,
            rejected_tokens: 0,
            files: BTreeMap::new(),
            opened: OpenedPaths::default(),
            last_handle: 0,
            account: Arc::default(),
            checksums: PendingChecksums::default(),
        }
    }

    /// Goes on over TLS.
    pub(super) fn encrypted_as(&mut self, server_name: Option<String>) {
        self.is_encrypted = true;
        self.server_name = server_name;
    }

    /// Handles requests until the stream ends or changes to TLS.
    pub(super) async fn run<S>(&mut self, stream: &mut S) -> io::Result<SessionStep>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if self.state == LoginState::Connected {
            let mut bytes = [0; HANDSHAKE_BYTES];
            within(HEADER_TIMEOUT, stream.read_exact(&mut bytes)).await?;
            if bytes != HANDSHAKE_MESSAGE {
                return Err(io::Error::other("the client does not speak root://"));
            }
            send(stream, &response::handshake()).await?;
            self.state = LoginState::Greeted;
        }
        while let Some(head) = self.next_head(stream).await? {
            let answer = match head.body_len() {
                Ok(bytes) => {
                    let mut body = vec![0; bytes];
                    within(REQUEST_TIMEOUT, stream.read_exact(&mut body)).await?;
                    self.answer(&head, &body).await
                }
                Err(error) => {
                    send(stream, &response::error(head.stream_id, &error)).await?;
                    drain(stream, u64::from(head.body_bytes)).await;
                    return Ok(SessionStep::End);
                }
            };
            match answer {
                Ok(RootAnswer::Bytes(bytes)) => send(stream, &bytes).await?,
                Ok(RootAnswer::Data(pieces)) => {
                    data::send(stream, pieces, &self.server.gateway.buffers).await?;
                    within(SEND_TIMEOUT, stream.flush()).await?;
                }
                Ok(RootAnswer::Listing(listing)) => list(stream, head.stream_id, *listing).await?,
                Ok(RootAnswer::StartTls(bytes)) => {
                    send(stream, &bytes).await?;
                    return Ok(SessionStep::StartTls);
                }
                Ok(RootAnswer::End(bytes)) => {
                    send(stream, &bytes).await?;
                    return Ok(SessionStep::End);
                }
                Err(error) => {
                    tracing::debug!(peer = %self.peer, code = head.code, "refused: {error}");
                    send(stream, &response::error(head.stream_id, &error)).await?;
                    if self.rejected_tokens >= REJECTED_TOKENS_MAX {
                        return Ok(SessionStep::End);
                    }
                }
            }
        }
        // A client may leave without closing its files.
        self.files.values().for_each(|file| file.finish());
        Ok(SessionStep::End)
    }

    /// Reads the next request without its body; `None` at the end of the connection.
    async fn next_head<S>(&mut self, stream: &mut S) -> io::Result<Option<RequestHead>>
    where
        S: AsyncRead + Unpin,
    {
        let mut bytes = [0; REQUEST_HEAD_BYTES];
        let idle = match self.is_known {
            true => IDLE_TIMEOUT,
            false => LOGIN_TIMEOUT.saturating_sub(self.connected.elapsed()),
        };
        let until = Instant::now() + idle;
        let pause = Instant::now() + TRANSFER_IDLE_TIMEOUT;
        let count = loop {
            let paused = self.is_paused;
            tokio::select! {
                read = timeout_at(until, stream.read(&mut bytes)) => match read {
                    Ok(read) => break read?,
                    Err(_) => return Ok(None),
                },
                () = sleep_until(pause), if !paused => {
                    self.files.values().for_each(|file| file.pause());
                    self.is_paused = true;
                }
                _ = self.stop.wait_for(|stop| *stop) => return Ok(None),
            }
        };
        self.is_paused = false;
        if count == 0 {
            return Ok(None);
        }
        within(REQUEST_TIMEOUT, stream.read_exact(&mut bytes[count..])).await?;
        Ok(Some(RequestHead::parse(&bytes)))
    }

    async fn answer(&mut self, head: &RequestHead, body: &[u8]) -> Result<RootAnswer, XrdError> {
        let id = head.stream_id;
        let request = XrdRequest::parse(head, body);
        match (&request, self.state) {
            (Ok(XrdRequest::Protocol { .. } | XrdRequest::EndSession { .. }), _)
            | (Ok(XrdRequest::Login { .. }), LoginState::Greeted)
            | (Ok(XrdRequest::Auth { .. }) | Err(_), LoginState::NeedsToken)
            | (_, LoginState::LoggedIn) => {}
            (_, LoginState::NeedsToken) => {
                let text = "show a bearer token first: set BEARER_TOKEN or BEARER_TOKEN_FILE";
                return Err(XrdError::new(XrdErrorCode::NotAuthorized, text));
            }
            (_, LoginState::Connected | LoginState::Greeted) => {
                return Err(XrdError::new(XrdErrorCode::InvalidRequest, "log in first"));
            }
        }
        match request? {
            XrdRequest::Protocol { able_tls, want_tls } => self.protocol(id, able_tls, want_tls),
            XrdRequest::Login { user } => self.login(id, &user),
            XrdRequest::Auth { token } => {
                self.show_token(token.to_owned()).await?;
                Ok(RootAnswer::Bytes(response::ok(id, &[])))
            }
            XrdRequest::Ping | XrdRequest::Set => Ok(RootAnswer::Bytes(response::ok(id, &[]))),
            XrdRequest::EndSession { session } => {
                let answer = response::ok(id, &[]);
                // Sessions of broken connections have ended already.
                Ok(if session == self.id {
                    RootAnswer::End(answer)
                } else {
                    RootAnswer::Bytes(answer)
                })
            }
            XrdRequest::Stat { path, file_system } => {
                let caller = self.caller_of(&path).await?;
                let gateway = &self.server.gateway;
                let stat = files::stat(gateway, &caller, &path.normalized()).await?;
                // Nodes, free space and use for writing, then for staging: none.
                let text = if file_system { "0 0 0 0 0 0".to_owned() } else { stat.text() };
                Ok(RootAnswer::Bytes(response::text(id, &text)))
            }
            XrdRequest::StatHandle(handle) => {
                let stat = stat_file(self.file(handle)?).await?;
                Ok(RootAnswer::Bytes(response::text(id, &files::listed(&stat).text())))
            }
            XrdRequest::Dirlist { path, with_stat } => {
                let caller = self.caller_of(&path).await?;
                let (gateway, path) = (&self.server.gateway, path.normalized());
                let listing = ListingReader::open(gateway, &caller, &path, with_stat).await?;
                Ok(RootAnswer::Listing(Box::new(listing)))
            }
            XrdRequest::Open { path, with_stat } => self.open(id, &path, with_stat).await,
            XrdRequest::Read { handle, offset, bytes } => {
                self.read(id, handle, offset, bytes).await
            }
            XrdRequest::ReadVector(segments) => self.read_vector(id, &segments).await,
            XrdRequest::Close(handle) => {
                let file = self.files.remove(&handle).ok_or_else(not_open)?;
                file.finish();
                Ok(RootAnswer::Bytes(response::ok(id, &[])))
            }
            XrdRequest::Locate { path, any_server } => {
                let caller = self.caller_of(&path).await?;
                if !any_server {
                    files::stat(&self.server.gateway, &caller, &path.normalized()).await?;
                }
                Ok(RootAnswer::Bytes(response::text(id, &self.location())))
            }
            XrdRequest::Checksum(path) => {
                let caller = self.caller_of_checksum(&path).await?;
                let gateway = &self.server.gateway;
                let answer = self.checksums.checksum(gateway, &caller, &path).await?;
                Ok(RootAnswer::Bytes(match answer {
                    Some(text) => response::text(id, &text),
                    None => response::wait(id, CHECKSUM_RETRY_S, "the checksum is being computed"),
                }))
            }
            XrdRequest::Configuration(names) => {
                // Without NUL: uproot takes the lines as numbers.
                let lines = query::configuration(&names);
                Ok(RootAnswer::Bytes(response::ok(id, lines.as_bytes())))
            }
            XrdRequest::Space(path) => {
                let caller = self.caller_of(&path).await?;
                let text = query::space(&self.server.gateway, &caller, &path).await?;
                Ok(RootAnswer::Bytes(response::text(id, &text)))
            }
        }
    }

    async fn open(
        &mut self,
        id: [u8; 2],
        path: &XrdPath<'_>,
        with_stat: bool,
    ) -> Result<RootAnswer, XrdError> {
        let client = self.opener(path).await?;
        let caller = &client.caller;
        if self.files.len() >= OPEN_FILES_MAX {
            let text = format!("{OPEN_FILES_MAX} files are open: close some");
            return Err(XrdError::new(XrdErrorCode::Overloaded, text));
        }
        let permit = Arc::clone(&self.server.open_files).try_acquire_owned().map_err(|_| {
            let text = "too many files are open at this server: try it again";
            XrdError::new(XrdErrorCode::Overloaded, text)
        })?;
        let asked = match path.value("scitag.flow") {
            None => None,
            Some(text) => {
                let mark = std::str::from_utf8(text).ok().and_then(scitag_mark);
                Some(mark.ok_or_else(|| {
                    let text = "scitag.flow: a number of an experiment and an activity (https://www.scitags.org)";
                    XrdError::new(XrdErrorCode::ArgInvalid, text)
                })?)
            }
        };
        let gateway = &self.server.gateway;
        let bytes = path.normalized();
        let mark = gateway.keeper.mark(caller, &bytes, asked).map_err(refused)?;
        let (file, stat, shown) = files::open(gateway, caller, &bytes).await?;
        if let Some(head) = gateway.head.as_deref().filter(|_| !client.is_redirected) {
            match head::redirect_root(head, caller, &bytes) {
                Ok(None) => {}
                Ok(Some(target)) => {
                    let opaque = format!("authz=Bearer%20{}", target.token);
                    let server = (target.host, target.port);
                    let answer = response::redirect(id, server, &opaque, self.is_encrypted);
                    return Ok(RootAnswer::Bytes(answer));
                }
                Err(problem) => {
                    let pause = head::NO_ROOM_RETRY_AFTER_S.into();
                    return Ok(RootAnswer::Bytes(response::wait(id, pause, &problem.detail)));
                }
            }
        }
        self.opened.push(bytes, client.clone());
        let file = RootFile {
            file: Arc::new(file),
            shown,
            client,
            mark,
            transfer: std::sync::Mutex::default(),
            _permit: permit,
        };
        self.last_handle = self.last_handle.wrapping_add(1);
        let handle = XrdFileHandle(self.last_handle);
        self.files.insert(handle, Arc::new(file));
        let stat = with_stat.then(|| files::listed(&stat));
        Ok(RootAnswer::Bytes(response::open(id, handle, stat.as_ref())))
    }

    pub(super) fn file(&self, handle: XrdFileHandle) -> Result<&Arc<RootFile>, XrdError> {
        let file = self.files.get(&handle).ok_or_else(not_open)?;
        self.check_admitted(&file.client)?;
        Ok(file)
    }

    /// This server, as `locate` names it: for reading, by the name that the client used or the address it reached.
    fn location(&self) -> String {
        let port = self.local.port();
        match (&self.server_name, self.local.ip()) {
            (Some(name), _) => format!("Sr{name}:{port}"),
            (None, IpAddr::V4(address)) => format!("Sr[::{address}]:{port}"),
            (None, IpAddr::V6(address)) => format!("Sr[{address}]:{port}"),
        }
    }
}

pub(super) async fn stat_file(file: &RootFile) -> Result<fs::Stat, XrdError> {
    let open = Arc::clone(&file.file);
    let stat = blocking(move || fs::stat_file(&open)).await;
    stat.map_err(|error| failed(&file.shown, &error))
}

fn not_open() -> XrdError {
    XrdError::new(XrdErrorCode::FileNotOpen, "no file is open with this handle")
}

async fn within<T>(limit: Duration, run: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, run).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    within(SEND_TIMEOUT, async {
        stream.write_all(bytes).await?;
        stream.flush().await
    })
    .await
}

/// Reads a body that the server does not take.
async fn drain(stream: &mut (impl AsyncRead + Unpin), bytes: u64) {
    let mut rest = stream.take(bytes.min(DRAIN_BYTES_MAX));
    let mut discarded = tokio::io::sink();
    let _ = timeout(DRAIN_TIMEOUT, tokio::io::copy(&mut rest, &mut discarded)).await;
}

/// Sends a listing part by part. An error within it ends the listing as that of the request.
async fn list(
    stream: &mut (impl AsyncWrite + Unpin),
    id: [u8; 2],
    mut listing: ListingReader,
) -> io::Result<()> {
    loop {
        match listing.next_part(id).await {
            Ok((rest, part, status)) => {
                send(stream, &part).await?;
                if status == DataStatus::Final {
                    return Ok(());
                }
                listing = rest;
            }
            Err(error) => return send(stream, &response::error(id, &error)).await,
        }
    }
}
