//! Disks that an agent exports, by its HTTP API: where they are, the secret of this host, exports and their end.

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use penstock_agent::client::AgentClient;
use penstock_agent::config::HTTP_PORT;
use penstock_agent::http::disks::{DiskConnectionFacts, DiskExportBody, DiskFacts};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::nvme::nqn;
use penstock_disk::{DEFAULT_PORT, DiskHost, DiskLocation, FabricsTransport};

use super::DiskTarget;
use crate::credentials::{self, AgentAddress, Service};
use crate::exit::{Code, CommandFailure, OrExit};
use crate::transfers::failure;

/// Asks the agent at the host of `source` how `host` connects to the disk.
///
/// # Errors
/// When no login is known, or the agent does not answer or refuses.
pub(super) fn target(source: &DiskLocation, host: DiskHost) -> Result<DiskTarget, CommandFailure> {
    let client = client_at(source)?;
    let name = nqn::export_name(&source.nqn).unwrap_or(&source.nqn);
    let answer = client.disk_connection(name, &host.identity.nqn).map_err(failure)?;
    of_answer(source, host, &answer).or_exit(Code::Failed)
}

/// Client of the agent at the host of `disk`, whose port is that of the HTTP API.
fn client_at(disk: &DiskLocation) -> Result<AgentClient, CommandFailure> {
    // A location without a port has that of NVMe.
    let port = if disk.port == DEFAULT_PORT { HTTP_PORT } else { disk.port };
    client(&AgentAddress { host: disk.host.to_ascii_lowercase(), port })
}

fn client(address: &AgentAddress) -> Result<AgentClient, CommandFailure> {
    let state = credentials::state()?;
    let known = credentials::find_api(&state, address)?;
    let known = known.ok_or_else(|| credentials::unknown(Service::AgentApi, address));
    let known = known.or_exit(Code::Refused)?;
    let client = AgentClient::new(&address.to_string(), &known.token, Some(known.fingerprint));
    Ok(client.context("cannot start a client")?)
}

/// Lets the agent at `address` export a disk.
///
/// # Errors
/// When no login is known, or the agent does not answer or refuses.
pub(super) fn export(
    address: &str,
    name: &str,
    disk: &DiskExportBody,
) -> Result<DiskFacts, CommandFailure> {
    let address = AgentAddress::parse(address, HTTP_PORT).or_exit(Code::Usage)?;
    client(&address)?.ask("PUT", &format!("/api/v1/disks/{name}"), Some(disk)).map_err(failure)
}

/// Lets the agent at the host of `disk` end its export.
///
/// # Errors
/// When no login is known, or the agent does not answer or refuses.
pub(super) fn remove(disk: &DiskLocation) -> Result<DiskFacts, CommandFailure> {
    let name = nqn::export_name(&disk.nqn).unwrap_or(&disk.nqn);
    let path = format!("/api/v1/disks/{name}");
    client_at(disk)?.ask("DELETE", &path, None::<&()>).map_err(failure)
}

fn of_answer(
    source: &DiskLocation,
    host: DiskHost,
    answer: &DiskConnectionFacts,
) -> anyhow::Result<DiskTarget> {
    let first = answer.listens.first().map(|listens| listens.parse::<SocketAddr>());
    let Some(Ok(listens)) = first else {
        return Err(anyhow!("the agent names no address of the disk: it runs another release"));
    };
    let transport = match answer.transport.as_str() {
        "tcp" => FabricsTransport::Tcp,
        "rdma" => FabricsTransport::Rdma,
        other => {
            return Err(anyhow!(
                "the agent exports the disk over {other:?}, which is not known here"
            ));
        }
    };
    let secret = answer.secret.as_deref().map(HostSecret::parse).transpose();
    let secret = secret.context("the secret that the agent states")?;
    let at = match listens.ip().is_unspecified() {
        true => source.host.clone(),
        false => listens.ip().to_string(),
    };
    let location = DiskLocation { host: at, port: listens.port(), nqn: answer.nqn.clone() };
    Ok(DiskTarget { location, host: DiskHost { secret, ..host }, transport })
}

#[cfg(test)]
mod tests {
    use penstock_disk::NvmeHostIdentity;

    use super::*;

    fn answer(listens: &str, transport: &str) -> DiskConnectionFacts {
        DiskConnectionFacts {
            nqn: "nqn.2020-01.org.example:run-7".to_owned(),
            transport: transport.to_owned(),
            listens: vec![listens.to_owned()],
            secret: Some(HostSecret::of_key([7; 32]).text()),
        }
    }

    fn target(answer: &DiskConnectionFacts) -> anyhow::Result<DiskTarget> {
        let source: DiskLocation = "dtn1.example.org/run-7".parse()?;
        let identity = NvmeHostIdentity::named("nqn.2020-01.org.example:h")?;
        of_answer(&source, DiskHost::new(identity), answer)
    }

    #[test]
    fn answer_names_address_and_secret() {
        let found = target(&answer("192.0.2.10:4421", "rdma")).unwrap();
        assert_eq!((found.location.host.as_str(), found.location.port), ("192.0.2.10", 4421));
        assert_eq!(found.transport, FabricsTransport::Rdma);
        assert_eq!(found.location.nqn, "nqn.2020-01.org.example:run-7");
        assert!(found.host.secret == Some(HostSecret::of_key([7; 32])));
        assert!(found.over_tcp().is_err());
    }

    #[test]
    fn unspecified_address_is_that_of_source() {
        for listens in ["0.0.0.0:4420", "[::]:4420"] {
            let found = target(&answer(listens, "tcp")).unwrap();
            assert_eq!(found.location.host, "dtn1.example.org", "{listens}");
        }
    }

    #[test]
    fn damaged_answers_are_refused() {
        for (listens, transport) in [("dtn1", "tcp"), ("192.0.2.10:4420", "fc")] {
            assert!(target(&answer(listens, transport)).is_err(), "{listens} {transport}");
        }
        let damaged = DiskConnectionFacts {
            secret: Some("password".to_owned()),
            ..answer("192.0.2.10:4420", "tcp")
        };
        assert!(target(&damaged).is_err());
    }
}
