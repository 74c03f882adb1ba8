//! PostgreSQL beside the cluster, for a controller of several replicas.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::cluster::{KubernetesCluster, control_address, output};

/// Time for the server to answer.
const DATABASE_START_LIMIT: Duration = Duration::from_secs(60);

/// Name of the database and of its user.
const DATABASE_NAME: &str = "penstock";

/// Programs of PostgreSQL, a folder for each version.
const DEBIAN_PROGRAMS: &str = "/usr/lib/postgresql";

/// A PostgreSQL server in the network of the control plane, which asks for a password; ends when dropped.
#[derive(Debug)]
pub(super) struct ClusterDatabase {
    /// Password of its user.
    pub(super) password: String,
    folder: tempfile::TempDir,
    server: Child,
}

impl ClusterDatabase {
    /// Starts a server with one empty database.
    pub(super) fn start(cluster: &KubernetesCluster) -> Result<Self> {
        let programs = programs().context("no PostgreSQL: tools/setup.sh kubernetes")?;
        let folder = tempfile::Builder::new().prefix("kube-postgres").tempdir_in("/tmp")?;
        let id = |flag: &str| output(Command::new("id").args([flag, "postgres"]));
        chown(folder.path(), Some(id("-u")?.parse()?), Some(id("-g")?.parse()?))?;
        let password = output(Command::new("openssl").args(["rand", "-hex", "16"]))?;
        let password_file = folder.path().join("password");
        fs::write(&password_file, &password)?;
        fs::set_permissions(&password_file, fs::Permissions::from_mode(0o644))?;
        let data = folder.path().join("data");
        let as_postgres = |command: &mut Command, program: &str| {
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
            command.arg(programs.join(program)).current_dir(folder.path());
        };
        let mut initialize = Command::new("setpriv");
        as_postgres(&mut initialize, "initdb");
        initialize.args(["--no-sync", "-A", "scram-sha-256", "-U", DATABASE_NAME, "--pwfile"]);
        output(initialize.arg(&password_file).arg("-D").arg(&data))?;
        // Addresses of pods and nodes.
        let access = "host all all 10.0.0.0/8 scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), access)?;
        let log = fs::File::create(folder.path().join("server.log"))?;
        let mut server = cluster.command("setpriv");
        as_postgres(&mut server, "postgres");
        server.arg("-D").arg(&data).arg("-k").arg(folder.path());
        server.args(["-c", &format!("listen_addresses={}", control_address()), "-c", "fsync=off"]);
        server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = server.spawn().context("cannot run setpriv")?;
        let database = Self { password, folder, server };
        cluster.wait("PostgreSQL answers", DATABASE_START_LIMIT, |cluster| {
            let mut create = cluster.command(programs.join("createdb"));
            create.args(["-h", &control_address(), "-U", DATABASE_NAME, DATABASE_NAME]);
            create.env("PGPASSWORD", &database.password).current_dir(database.folder.path());
            output(&mut create).map(Some)
        })?;
        Ok(database)
    }

    /// URL of the database, without the password.
    pub(super) fn url() -> String {
        format!("postgres://{DATABASE_NAME}@{}/{DATABASE_NAME}", control_address())
    }
}

impl Drop for ClusterDatabase {
    fn drop(&mut self) {
        // An immediate shutdown, which also ends the processes of its connections.
        let _ = output(Command::new("kill").args(["-QUIT", &self.server.id().to_string()]));
        let _ = self.server.wait();
    }
}

/// Folder with the programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN_PROGRAMS).ok()?;
    let mut found: Vec<_> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|folder| folder.join("postgres").exists());
    found.sort();
    found.pop()
}
