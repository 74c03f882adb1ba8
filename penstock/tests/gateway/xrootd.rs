//! A server of XRootD with third-party copy, as a peer.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use penstock_testkit::raw::free_port;

use crate::common::wait_until;
use crate::site::{HostCertificate, missing_program};

/// A running server, which serves `/data`.
pub(crate) struct Xrootd {
    child: Child,
    port: u16,
    pub(crate) data: PathBuf,
    directory: tempfile::TempDir,
}

impl Xrootd {
    /// Starts a server; `None` if it is not installed.
    pub(crate) fn start(certificate: &HostCertificate) -> Option<Self> {
        if missing_program("xrootd") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (data, admin) = (at("root/data"), at("admin"));
        fs::create_dir_all(&data).unwrap();
        fs::create_dir(&admin).unwrap();
        for name in ["ca.pem", "host.pem", "host.key"] {
            fs::copy(certificate.path(name), at(name)).unwrap();
        }
        // The server takes a number only: another process may take this one meanwhile, and then the test fails.
        let port = free_port();
        let (base, root) = (directory.path().display(), at("root"));
        let config = format!(
            "xrd.port {port}\nxrd.protocol http:{port} libXrdHttp.so\nxrd.tls {base}/host.pem {base}/host.key\n\
             xrd.tlsca certfile {base}/ca.pem\nhttp.exthandler xrdtpc libXrdHttpTPC.so\nhttp.desthttps no\n\
             http.selfhttps2http no\noss.localroot {}\nall.export /data\nxrootd.chksum max 2 adler32\n\
             all.adminpath {admin}\nall.pidpath {admin}\n",
            root.display(),
            admin = admin.display(),
        );
        fs::write(at("xrootd.cfg"), config).unwrap();
        if crate::common::is_root() {
            // It refuses to run as root; its package makes the user.
            let output =
                Command::new("chown").arg("-R").arg("xrootd:").arg(directory.path()).output();
            assert!(output.unwrap().status.success());
        }
        let child = Self::spawn(directory.path(), port);
        Some(Self { child, port, data, directory })
    }

    /// Starts the process, and waits until it listens.
    fn spawn(directory: &Path, port: u16) -> Child {
        let admin = directory.join("admin");
        let mut command = Command::new("xrootd");
        command.arg("-c").arg(directory.join("xrootd.cfg")).arg("-l").arg(admin.join("log"));
        if crate::common::is_root() {
            command.args(["-R", "xrootd"]);
        }
        command.current_dir(&admin).env("HOME", &admin).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().unwrap();
        wait_until("XRootD listens", Duration::from_secs(30), || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        child
    }

    /// Kills the server and starts it again.
    pub(crate) fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = Self::spawn(self.directory.path(), self.port);
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/data/{name}", self.port)
    }

    /// Writes a file that the server may read and replace.
    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.data.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    }
}

impl Drop for Xrootd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
