//! A ClickHouse server with its own directory, which tests crash and restart.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use penstock_testkit::http::TestRequest;
use penstock_testkit::raw::free_port;

use crate::common::wait_until;
use crate::site::POLL_TIMEOUT;

pub(crate) const PASSWORD: &str = "se'cret";

pub(crate) struct Database {
    dir: PathBuf,
    pub(crate) port: u16,
    child: Option<Child>,
}

/// True if no ClickHouse server is installed; prints that the test is skipped.
pub(crate) fn server_missing() -> bool {
    let found = ["/usr/bin/clickhouse-server", "/usr/sbin/clickhouse-server"];
    let none = !found.iter().any(|path| Path::new(path).exists());
    if none {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "there is no clickhouse-server: tools/setup.sh test installs it",
        );
    }
    none
}

impl Database {
    pub(crate) fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let users = format!(
            "<yandex><profiles><default/></profiles><quotas><default/></quotas><users><default>
             <password>{PASSWORD}</password><networks><ip>::/0</ip></networks><profile>default</profile>
             <quota>default</quota></default></users></yandex>"
        );
        fs::write(dir.join("users.xml"), users).unwrap();
        let mut this = Self { dir: dir.to_owned(), port: 0, child: None };
        this.up();
        this
    }

    /// Starts the server and waits until it answers. Retries: another process may take the free port first.
    pub(crate) fn up(&mut self) {
        for _ in 0..5 {
            if self.port == 0 {
                self.port = free_port();
            }
            if self.try_up() {
                return;
            }
            self.port = 0;
        }
        let log = fs::read_to_string(self.dir.join("error.log")).unwrap_or_default();
        panic!("clickhouse-server does not start: {log}");
    }

    fn try_up(&mut self) -> bool {
        let (dir, http, tcp) = (self.dir.display(), self.port, free_port());
        let config = format!(
            "<yandex><logger><level>warning</level><log>{dir}/log</log><errorlog>{dir}/error.log</errorlog></logger>
             <http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host>
             <path>{dir}/data/</path><tmp_path>{dir}/tmp/</tmp_path><mark_cache_size>16777216</mark_cache_size>
             <users_config>users.xml</users_config><default_profile>default</default_profile>
             <default_database>default</default_database></yandex>"
        );
        let file = self.dir.join("config.xml");
        fs::write(&file, config).unwrap();
        let mut argument = std::ffi::OsString::from("--config-file=");
        argument.push(&file);
        let child = Command::new("clickhouse-server")
            .arg(argument)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let mut up = false;
        wait_until("clickhouse-server is up or gone", POLL_TIMEOUT, || {
            up = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            let gone = self.child.as_mut().is_some_and(|c| c.try_wait().unwrap().is_some());
            (up || gone).then_some(())
        });
        up
    }

    /// Sends SIGKILL: memory is lost, the disk's cache is not.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns the answer of a statement.
    pub(crate) fn query(&self, statement: &str) -> String {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let response = TestRequest::new(address, "POST", "/")
            .header("x-clickhouse-user", "default")
            .header("x-clickhouse-key", PASSWORD)
            .body(statement.as_bytes())
            .send();
        assert_eq!(response.status, 200, "{statement}: {}", response.text());
        response.text().trim().to_owned()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.kill();
    }
}
