//! A client of `root://` that sends any request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{AUTHZ, root_authority};
use crate::site::Site;

/// A response: status and body, of all its parts.
#[derive(Debug)]
pub(crate) struct RootResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl RootResponse {
    /// Code of an error; 0 for success.
    pub(crate) fn code(&self) -> u32 {
        match self.status {
            0 => 0,
            _ => u32::from_be_bytes(self.body[..4].try_into().unwrap()),
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body[4..]).into_owned()
    }
}

/// A connection to `root://` of a site.
pub(crate) struct RootClient {
    pub(crate) stream: TcpStream,
}

impl RootClient {
    pub(crate) fn connect(site: &Site) -> Self {
        let stream = TcpStream::connect(root_authority(site)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream }
    }

    pub(crate) fn handshake(&mut self) {
        let numbers = [0_u32, 0, 0, 4, 2012];
        self.stream.write_all(&numbers.map(u32::to_be_bytes).concat()).unwrap();
        let mut answer = [0; 16];
        self.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[8..12], 0x510_u32.to_be_bytes());
    }

    /// Connects and logs in, without a token.
    pub(crate) fn logged_in(site: &Site) -> Self {
        let mut client = Self::connect(site);
        client.handshake();
        assert_eq!(client.ask(3007, [0; 16], b"").unwrap().body.len(), 16);
        client
    }

    pub(crate) fn send(&mut self, code: u16, arguments: [u8; 16], body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).unwrap();
        self.send_with_length(code, arguments, length, body)
    }

    pub(crate) fn send_with_length(
        &mut self,
        code: u16,
        arguments: [u8; 16],
        length: u32,
        body: &[u8],
    ) -> io::Result<()> {
        let head = [&[1, 2], &code.to_be_bytes()[..], &arguments, &length.to_be_bytes()].concat();
        self.stream.write_all(&[&head, body].concat())
    }

    /// Reads one whole response.
    pub(crate) fn receive(&mut self) -> io::Result<RootResponse> {
        let mut all = Vec::new();
        loop {
            let mut head = [0; 8];
            self.stream.read_exact(&mut head)?;
            assert_eq!(head[..2], [1, 2]);
            let status = u16::from_be_bytes([head[2], head[3]]);
            let length = u32::from_be_bytes(head[4..].try_into().unwrap());
            let mut body = vec![0; length as usize];
            self.stream.read_exact(&mut body)?;
            if status == 4003 {
                return Ok(RootResponse { status, body });
            }
            all.extend_from_slice(&body);
            if status != 4000 {
                return Ok(RootResponse { status, body: all });
            }
        }
    }

    pub(crate) fn ask(
        &mut self,
        code: u16,
        arguments: [u8; 16],
        body: &[u8],
    ) -> io::Result<RootResponse> {
        self.send(code, arguments, body)?;
        self.receive()
    }

    /// Opens a path of alice; the error is its code.
    pub(crate) fn open(&mut self, path: &str) -> Result<u32, u32> {
        self.open_raw(format!("{path}?{AUTHZ}").as_bytes())
    }

    pub(crate) fn open_raw(&mut self, path: &[u8]) -> Result<u32, u32> {
        let mut arguments = [0; 16];
        arguments[2..4].copy_from_slice(&0x0410_u16.to_be_bytes());
        let answer = self.ask(3010, arguments, path).unwrap();
        match answer.code() {
            0 => Ok(u32::from_be_bytes(answer.body[..4].try_into().unwrap())),
            code => Err(code),
        }
    }

    pub(crate) fn read(&mut self, handle: u32, offset: i64, bytes: i32) -> io::Result<Vec<u8>> {
        let answer = self.ask(3013, read_arguments(handle, offset, bytes), b"")?;
        match answer.code() {
            0 => Ok(answer.body),
            _ => Err(io::Error::other(answer.text())),
        }
    }

    pub(crate) fn close(&mut self, handle: u32) -> Result<(), u32> {
        let mut arguments = [0; 16];
        arguments[..4].copy_from_slice(&handle.to_be_bytes());
        match self.ask(3003, arguments, b"").unwrap().code() {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

pub(crate) fn read_arguments(handle: u32, offset: i64, bytes: i32) -> [u8; 16] {
    let mut arguments = [0; 16];
    arguments[..4].copy_from_slice(&handle.to_be_bytes());
    arguments[4..12].copy_from_slice(&offset.to_be_bytes());
    arguments[12..].copy_from_slice(&bytes.to_be_bytes());
    arguments
}

/// Bytes of a segment of a vector read.
pub(crate) fn segment(handle: u32, bytes: i32, offset: i64) -> Vec<u8> {
    [&handle.to_be_bytes()[..], &bytes.to_be_bytes(), &offset.to_be_bytes()].concat()
}
