//! `penstock tag registry`: lists the registry of owners and activities, and updates it.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use penstock_agent::registry::{self, ActiveRegistry, Update};
use penstock_http::Url;
use penstock_scitags::{FlowLabel, Registry};
use serde::Serialize;
use utoipa::ToSchema;

use crate::credentials;
use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::tag::RegistryUpdate;

/// List owners and activities, or renew the registry they come from
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A copy of the public registry is compiled in. update checks a newer copy and stores it in the state \
directory (scitags.json), where it takes precedence; remove the file to go back. An agent renews it \
daily if its configuration has [scitags] registry = \"https://www.scitags.org/api.json\".

Examples:
  penstock tag registry
  penstock tag registry show --json
  penstock tag registry update https://www.scitags.org/api.json
  penstock tag registry update api.json")]
pub(super) struct TagRegistryArgs {
    #[command(subcommand)]
    command: Option<RegistryCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum RegistryCommand {
    /// List owners and activities, with the date and the source of the registry
    #[command(after_help = "Examples:\n  penstock tag registry show --json")]
    Show,
    /// Replace the registry; on any failure the last good one stays
    #[command(after_help = "\
An address is asked whether it has another registry than the copy that came from there. HTTPS trusts the \
system's authorities, or those in the file that SSL_CERT_FILE names. Proxies are not used: behind one, \
download the file by other means and give its name.

Examples:
  penstock tag registry update https://www.scitags.org/api.json
  penstock tag registry update api.json")]
    Update {
        /// A file in the public format, or its http:// or https:// address
        #[arg(value_name = "FILE|URL")]
        from: String,
    },
}

/// The registry of owners and activities.
#[derive(Serialize, ToSchema)]
pub(crate) struct Registered {
    /// RFC 3339 time of the last change of the registry; null where the registry has none.
    modified: Option<String>,
    /// File or address of the registry.
    source: String,
    /// True for the registry that is compiled in.
    builtin: bool,
    /// RFC 3339 time at which the source was last asked; null for the built-in copy.
    checked: Option<String>,
    /// Owners by their numbers.
    owners: Vec<Owner>,
}

/// Owner with its activities.
#[derive(Serialize, ToSchema)]
pub(crate) struct Owner {
    /// Number of the owner.
    owner_id: u16,
    /// Name of the owner in the registry.
    owner: String,
    /// Activities of the owner.
    activities: Vec<Activity>,
}

/// Activity of an owner.
#[derive(Serialize, ToSchema)]
pub(crate) struct Activity {
    /// Number of the activity.
    activity_id: u8,
    /// Name of the activity in the registry.
    activity: String,
    /// Owner and activity, as `cms/default`.
    name: String,
    /// Owner and activity as one number.
    scitag: u32,
}

pub(super) fn run(args: TagRegistryArgs, json: bool) -> Result<Code, CommandFailure> {
    let text = match args.command {
        None | Some(RegistryCommand::Show) => {
            let current = super::current();
            if json { listing_json(&current)? } else { listing(&current) }
        }
        Some(RegistryCommand::Update { from }) => {
            let update = update(&from)?;
            if json { update_json(&update) } else { update_text(&update) }
        }
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Code::Done)
}

fn update(from: &str) -> Result<Update, CommandFailure> {
    let is_url = from.contains("://");
    let url = is_url.then(|| from.parse::<Url>()).transpose();
    let url = url.map_err(|error| anyhow!(error)).or_exit(Code::Usage)?;
    let state = credentials::state()?;
    let updated = match url {
        None => registry::update_from_file(&state, &PathBuf::from(from)),
        Some(url) => registry::update_from_url(&state, &url),
    };
    Ok(updated.map_err(anyhow::Error::from)?)
}

fn size(registry: &Registry) -> (usize, usize) {
    (registry.owners().len(), registry.tags().count())
}

fn date(registry: &Registry) -> String {
    registry.modified().map_or_else(|| "no date".to_owned(), |time| time.to_string())
}

fn update_text(update: &Update) -> String {
    let (owners, activities) = size(&update.current.registry);
    let what = if update.changed { "renewed" } else { "unchanged" };
    let mut text = format!(
        "registry {what}: {}, {owners} owners, {activities} activities, from {}\n",
        date(&update.current.registry),
        update.current.source
    );
    for line in &update.left_out {
        text.push_str(&format!("left out: {line}\n"));
    }
    text
}

fn update_json(update: &Update) -> String {
    let (owners, activities) = size(&update.current.registry);
    let facts = RegistryUpdate {
        changed: update.changed,
        modified: update.current.registry.modified().map(|time| time.to_string()),
        source: update.current.source.clone(),
        checked: update.current.checked.map(|time| time.to_string()),
        owners,
        activities,
        left_out: update.left_out.iter().map(ToString::to_string).collect(),
    };
    format!("{}\n", serde_json::json!(facts))
}

fn listing_json(current: &ActiveRegistry) -> anyhow::Result<String> {
    let registry = &current.registry;
    let owners = registry.owners().iter().map(|(id, owner)| Owner {
        owner_id: *id,
        owner: owner.name.clone(),
        activities: registry
            .tags()
            .filter(|tag| tag.owner() == *id)
            .map(|tag| Activity {
                activity_id: tag.activity(),
                activity: owner.activities[&tag.activity()].clone(),
                name: registry.name(tag),
                scitag: tag.number(),
            })
            .collect(),
    });
    let shown = Registered {
        modified: registry.modified().map(|time| time.to_string()),
        source: current.source.clone(),
        builtin: current.is_builtin(),
        checked: current.checked.map(|time| time.to_string()),
        owners: owners.collect(),
    };
    Ok(format!("{}\n", serde_json::to_string(&shown).context("plain data")?))
}

fn listing(current: &ActiveRegistry) -> String {
    let registry = &current.registry;
    let (owners, activities) = size(registry);
    let kept = match current.checked {
        None => "compiled in, from".to_owned(),
        Some(checked) => format!("checked {checked}, from"),
    };
    let mut text = format!(
        "registry of {}, {owners} owners, {activities} activities\n{kept} {}\n\n",
        date(registry),
        current.source
    );
    let names: Vec<_> = registry.tags().map(|tag| (tag, registry.name(tag))).collect();
    let wide = names.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0).max(14);
    text.push_str(&format!(
        "{:<wide$}  {:>6}  {:<7}  NAME IN THE REGISTRY\n",
        "OWNER/ACTIVITY", "SCITAG", "LABEL"
    ));
    for (tag, name) in names {
        let owner = &registry.owners()[&tag.owner()];
        let label =
            FlowLabel::new(tag, 0).map_or_else(|_| "none".to_owned(), |label| label.to_string());
        text.push_str(&format!(
            "{name:<wide$}  {:>6}  {label}  {} / {}\n",
            tag.number(),
            owner.name,
            owner.activities[&tag.activity()]
        ));
    }
    text
}
