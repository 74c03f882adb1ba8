//! Servers of one folder over HTTPS: our gateway, XRootD, nginx, Apache.
//!
//! nginx runs a second time with a library that syncs each uploaded file before nginx answers, as our gateway does: the
//! file before it is renamed, its directory after that.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::OURS;
use crate::bench::movers::find_program;
use crate::bench::process::{Server, free_port};
use crate::bench::succeed;
use crate::bench::work::Work;

/// Bearer token of the client at our gateway; the others admit any client.
pub(super) const TOKEN: &str = "a-token-for-a-benchmark-alone";

/// Name of the release with which ours is compared.
const BASELINE: &str = "penstock before";

/// Name of ours that answers before an upload is on the device.
const UNSYNCED: &str = "penstock, not synced";

/// Name of nginx with a sync of each uploaded file.
const NGINX_SYNCED: &str = "nginx, synced";

/// Source of the library that syncs each file which a program renames.
const SYNC_SOURCE: &str = include_str!("sync_on_rename.c");

/// A running server of the working folder.
#[derive(Debug)]
pub(super) struct DavServer {
    pub(super) name: &'static str,
    pub(super) server: Option<Server>,
    /// Reason for which it does not run.
    pub(super) failure: Option<String>,
    port: u16,
}

impl DavServer {
    /// URL of a path below the working folder.
    pub(super) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.port)
    }
}

/// Starts all servers on one folder with one certificate. One that cannot run keeps its row.
pub(super) fn start_all(
    work: &Work,
    penstock: &Path,
    baseline: Option<&Path>,
) -> Result<Vec<DavServer>> {
    make_certificate(&work.configuration())?;
    let names = [OURS, UNSYNCED, BASELINE, "XRootD", "nginx", NGINX_SYNCED, "Apache"];
    let mut all = Vec::new();
    for name in names.into_iter().filter(|name| *name != BASELINE || baseline.is_some()) {
        let port = free_port()?;
        let log = work.log(&format!("server-{name}"));
        let command = match name {
            OURS => gateway(work, penstock, "penstock", port, ""),
            UNSYNCED => gateway(work, penstock, "unsynced", port, "durable = false\n"),
            BASELINE => gateway(work, baseline.unwrap_or(penstock), "baseline", port, ""),
            "XRootD" => xrootd(work, port),
            "nginx" => nginx(work, "nginx", port),
            NGINX_SYNCED => nginx_synced(work, port),
            _ => apache(work, port),
        };
        let started = command.and_then(|command| Server::start(command, port, &log));
        let (server, failure) = match started {
            Ok(server) => (Some(server), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        all.push(DavServer { name, server, failure, port });
    }
    Ok(all)
}

/// Makes an authority and a host certificate for localhost.
fn make_certificate(conf: &Path) -> Result<()> {
    const SCRIPT: &str = "set -e; cd \"$0\"
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj '/CN=bench authority'
openssl req -newkey rsa:2048 -nodes -keyout host.key -out host.csr -subj /CN=localhost
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n' > host.ext
openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile host.ext -out host.pem
mkdir authorities; cp ca.pem authorities/; openssl rehash authorities
cp host.key xrootd.key; cp host.pem xrootd.pem; chown nobody xrootd.key xrootd.pem; chmod 400 xrootd.key";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(conf).stderr(std::process::Stdio::null());
    succeed(&mut command, "install openssl")
}

fn require(program: &str) -> Result<()> {
    match find_program(program) {
        Some(_) => Ok(()),
        None => bail!("{program} is not installed"),
    }
}

/// Our gateway; `more` are lines of its table in the configuration.
fn gateway(work: &Work, penstock: &Path, name: &str, port: u16, more: &str) -> Result<Command> {
    let conf = work.configuration();
    let tokens = conf.join("tokens");
    std::fs::write(&tokens, format!("bench {TOKEN}\n"))?;
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let text = format!(
        "tokens = {tokens:?}\n[agent]\nlisten = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n[gateway]\n\
         listen = [\"127.0.0.1:{port}\"]\ncertificate = {:?}\nkey = {:?}\n{more}\
         [[export]]\nname = \"/src\"\npath = {:?}\nmode = \"read-write\"\nwho = [\"bench\"]\n\
         [[export]]\nname = \"/dst\"\npath = {:?}\nmode = \"read-write\"\nwho = [\"bench\"]\n",
        conf.join("host.pem"),
        conf.join("host.key"),
        work.root.join("src"),
        work.destination(),
    );
    let path = conf.join(format!("{name}.toml"));
    std::fs::write(&path, text).context("cannot write the configuration of the gateway")?;
    let mut command = Command::new(penstock);
    command.args(["serve", "--roles", "agent", "--config"]).arg(path);
    command.env("PENSTOCK_STATE", conf.join(format!("{name}-state")));
    Ok(command)
}

fn xrootd(work: &Work, port: u16) -> Result<Command> {
    require("xrootd")?;
    let (conf, root) = (work.configuration(), work.root.display().to_string());
    let admin = conf.join("xrootd");
    std::fs::create_dir_all(&admin)?;
    let mut owner = Command::new("chown");
    succeed(owner.arg("nobody").arg(&admin), "run as root")?;
    let (conf, admin) = (conf.display(), admin.display());
    let text = format!(
        "xrd.port {port}\nxrd.protocol http:{port} libXrdHttp.so\nxrd.tls {conf}/xrootd.pem {conf}/xrootd.key\n\
         xrd.tlsca certfile {conf}/ca.pem\nhttp.desthttps no\nhttp.selfhttps2http no\noss.localroot {root}\n\
         all.export /src\nall.export /dst\nall.adminpath {admin}\nall.pidpath {admin}\n"
    );
    let path = work.configuration().join("xrootd-http.cfg");
    std::fs::write(&path, text).context("cannot write xrootd-http.cfg")?;
    let mut command = Command::new("xrootd");
    command.args(["-R", "nobody", "-n", "http", "-c"]).arg(path);
    command.arg("-l").arg(work.configuration().join("xrootd/log"));
    Ok(command)
}

/// nginx that syncs each uploaded file.
fn nginx_synced(work: &Work, port: u16) -> Result<Command> {
    let conf = work.configuration();
    let (source, library) = (conf.join("sync_on_rename.c"), conf.join("sync_on_rename.so"));
    std::fs::write(&source, SYNC_SOURCE).context("cannot write sync_on_rename.c")?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    succeed(&mut compiler, "install gcc")?;
    let mut command = nginx(work, "nginx-synced", port)?;
    command.env("LD_PRELOAD", library);
    Ok(command)
}

fn nginx(work: &Work, name: &str, port: u16) -> Result<Command> {
    require("nginx")?;
    let (conf, root) = (work.configuration(), work.root.display().to_string());
    let module = "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so";
    if !Path::new(module).exists() {
        bail!("libnginx-mod-http-dav-ext is not installed");
    }
    // Its temporary files are on the same file system, so that it renames and does not copy.
    std::fs::create_dir_all(work.root.join("nginx"))?;
    let conf = conf.display();
    let text = format!(
        "user root;\ndaemon off;\nworker_processes auto;\npid {conf}/{name}.pid;\nerror_log {conf}/{name}.err;\n\
         load_module {module};\nevents {{}}\nhttp {{\naccess_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_requests 100000;\n\
         client_max_body_size 0;\nclient_body_temp_path {root}/nginx;\n\
         server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate {conf}/host.pem;\nssl_certificate_key {conf}/host.key;\n\
         ssl_protocols TLSv1.3;\nroot {root};\ndav_methods PUT DELETE MKCOL COPY MOVE;\ndav_ext_methods PROPFIND OPTIONS;\n\
         create_full_put_path on;\n}}\n}}\n"
    );
    let path = work.configuration().join(format!("{name}.conf"));
    std::fs::write(&path, text).context("cannot write the configuration of nginx")?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(path);
    Ok(command)
}

fn apache(work: &Work, port: u16) -> Result<Command> {
    require("apache2")?;
    let (conf, root) = (work.configuration(), work.root.display().to_string());
    let conf = conf.display();
    let modules = ["mpm_event", "authz_core", "ssl", "socache_shmcb", "dav", "dav_fs"];
    let mut text = String::new();
    for module in modules {
        text += &format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n");
    }
    text += &format!(
        "ServerName localhost\nListen 127.0.0.1:{port}\nPidFile {conf}/apache.pid\nErrorLog {conf}/apache.err\n\
         User nobody\nGroup nogroup\nSSLEngine on\nSSLProtocol TLSv1.3\nSSLCertificateFile {conf}/host.pem\n\
         SSLCertificateKeyFile {conf}/host.key\nMutex file:{conf}\nDavLockDB {conf}/davlock\nDocumentRoot {root}\n\
         MaxKeepAliveRequests 0\nLimitRequestBody 0\n<Directory {root}>\nDav On\nRequire all granted\n</Directory>\n"
    );
    let path = work.configuration().join("apache.conf");
    std::fs::write(&path, text).context("cannot write apache.conf")?;
    let mut command = Command::new("apache2");
    command.args(["-D", "FOREGROUND", "-f"]).arg(path);
    Ok(command)
}
