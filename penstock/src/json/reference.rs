//! docs/json.md: every object that `--json` prints, from the types that are serialised.
//!
//! Descriptions are the types' doc comments. The unit of a number follows from its name (`rate_bits_per_second`), from
//! the name of the object that it is in, or stands in brackets in its description: `Latitude [degrees]`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use penstock_agent::http::disks::DiskFacts;
use penstock_agent::http::tuning::TuningFacts;
use penstock_controller::api::network::{Drained, Hosts};
use penstock_controller::api::objects::{RequestFacts, Requests};
use penstock_controller::api::reservations::{ReservationFacts, Reservations};
use penstock_disk::fabrics::ConnectedDisk;
use penstock_disk::stream::DiskStreamReport;
use penstock_host::facts::Facts;
use penstock_host::restore::Restored;
use penstock_lab::control::{CircuitReport, LinkReport};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Object, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};

use super::{
    copy, disk, experiment, fabric, host, lab, nettest, node, plan, rehearsal, sample, tag, token,
    topology, tune,
};

const HEAD: &str = "\
# Objects of `--json`

With `--json` a command prints one JSON object to standard output, on one line except for `nettest` and `host facts`;
commands that run on print a line for each event. Errors are text on standard error, with or without `--json`. Fields keep their names, types, units and meanings;
later versions may add fields. `penstock generate json` prints this page: it is made from the types that are printed, and
a test compares it with the output of the commands. The objects of the HTTP API are in [openapi.json](openapi.json).

- `a.b` is field `b` of the object `a`, `a[]` is each element of the list `a`, and `a.*` each value of an object whose
  names are data.
- An *optional* field is left out where it does not apply; its meaning says when, else it is left out where the value is
  not known. Every other field is always there.
- A field of type *or null* is null where the value is not known or does not apply.
- *With `x`* in a meaning: only in objects whose `event`, `kind` or `verdict` is `x`.
- Numbers have SI units, with bit and byte (B); *count* is a number of things, *number* a name or code in digits. Fields
  whose names end with `unix_seconds` are times in seconds since 1970-01-01 00:00 UTC; *RFC 3339* times are text such as
  `2026-03-01T12:00:00Z`.

";

/// An object: the commands that print it, and its fields.
struct ObjectEntry {
    /// Commands, separated by commas; after a colon the case in which they print this object.
    commands: &'static str,
    note: &'static str,
    schema: fn() -> (RefOr<Schema>, Schemas),
}

type Schemas = BTreeMap<String, RefOr<Schema>>;

fn schema_of<T: ToSchema>() -> (RefOr<Schema>, Schemas) {
    let mut all = Vec::new();
    T::schemas(&mut all);
    (T::schema(), all.into_iter().collect())
}

impl ObjectEntry {
    /// Fields of the object, sorted by their paths.
    fn fields(&self) -> Vec<Field> {
        let (root, schemas) = (self.schema)();
        let mut fields = Vec::new();
        Walk { schemas: &schemas, fields: &mut fields }.object("", &root, false, 0);
        fields.sort_by(|a, b| a.path.cmp(&b.path));
        fields
    }

    /// The commands as Markdown, and the case.
    fn heading(&self) -> String {
        let (commands, case) = self.commands.split_once(": ").unwrap_or((self.commands, ""));
        let commands: Vec<String> =
            commands.split(", ").map(|command| format!("`penstock {command} --json`")).collect();
        let case = if case.is_empty() { String::new() } else { format!(": {case}") };
        commands.join(", ") + &case
    }
}

const fn entry<T: ToSchema>(commands: &'static str, note: &'static str) -> ObjectEntry {
    ObjectEntry { commands, note, schema: schema_of::<T> }
}

const ENTRIES: &[ObjectEntry] = &[
    entry::<copy::Copied>("cp", "Printed when the copy has ended, well or not."),
    entry::<copy::TransferListJson>("transfers", ""),
    entry::<copy::Changed>(
        "transfers show, transfers set, transfers cancel",
        "The transfer or copy, after the change.",
    ),
    entry::<TuningFacts>(
        "transfers show --why",
        "Decisions about the streams of a copy or of a transfer of the agent; kept for the latest 32 copies that changed \
         theirs, and for the latest 200 transfers of an agent.",
    ),
    entry::<tune::HistoryJson>("tune history", ""),
    entry::<tune::PredictionJson>("tune predict", "Also where a forecast is refused."),
    entry::<node::Ready>("serve", "The first line of standard output."),
    entry::<node::LoggedIn>("login", ""),
    entry::<token::CreatedTokenJson>("token create", ""),
    entry::<token::TokenListJson>(
        "token list, token revoke",
        "Without secrets; `revoke` prints the tokens that it revoked.",
    ),
    entry::<RequestFacts>(
        "submit, set, cancel",
        "The request after the command; `cancel` prints an object for each request.",
    ),
    entry::<Requests>("list", ""),
    entry::<copy::RequestDetails>("show", ""),
    entry::<Hosts>("drain", "Without a name: all hosts."),
    entry::<Drained>("drain NAME", ""),
    entry::<Reservations>("reserve", "Without arguments: all reservations."),
    entry::<ReservationFacts>("reserve FROM TO RATE, reserve --cancel", ""),
    entry::<node::Initialized>("controller init", ""),
    entry::<nettest::Tested>("nettest HOST", ""),
    entry::<nettest::Swept>("nettest HOST --sweep", ""),
    entry::<nettest::Listening>("nettest --listen", "The first line of standard output."),
    entry::<nettest::ListenerEventJson>(
        "nettest --listen: events",
        "A line of standard error each.",
    ),
    entry::<DiskStreamReport>("disk stream", "Left out where the destination is standard output."),
    entry::<disk::ExportedDisk>("disk export", "The first line of standard output."),
    entry::<DiskFacts>("disk remove", ""),
    entry::<ConnectedDisk>("disk connect", ""),
    entry::<disk::DiskListJson>("disk list", ""),
    entry::<disk::DisconnectedDisks>("disk disconnect", ""),
    entry::<disk::DiskCheckJson>("disk check", ""),
    entry::<disk::DiskSecretJson>("disk secret", ""),
    entry::<host::HostCheckJson>("host check", ""),
    entry::<host::Tuned>(
        "host tune",
        "`id`, `outcomes`, `files`, `kept`, `overruled_by` and `revert_after_seconds` are left out without `--apply`.",
    ),
    entry::<host::Confirmed>("host tune --confirm", ""),
    entry::<Restored>("host restore", ""),
    entry::<host::RulesJson>("host explain", "Without a name: all rules."),
    entry::<host::Explained>("host explain RULE", ""),
    entry::<Facts>("host facts", "With and without `--json`."),
    entry::<tag::Encoded>("tag encode", ""),
    entry::<tag::Decoded>("tag decode", ""),
    entry::<tag::Registered>("tag registry, tag registry show", ""),
    entry::<tag::RegistryUpdate>("tag registry update", ""),
    entry::<tag::Running>("tag run", "The first line of standard output."),
    entry::<tag::TagStatusJson>("tag status", ""),
    entry::<tag::Stopped>("tag stop", ""),
    entry::<sample::SampleEventJson>("sample", "An object a line."),
    entry::<topology::TopologyCheckJson>("topology check", ""),
    entry::<topology::NetworkJson>("topology show", ""),
    entry::<topology::PathsJson>("topology paths", ""),
    entry::<plan::CapacityPlan>("plan", ""),
    entry::<rehearsal::Rehearsal>("rehearse", "Also `result.json` of `--output`."),
    entry::<lab::Up>("lab up", ""),
    entry::<lab::LabStatus>("lab status", ""),
    entry::<lab::Labs>("lab status: several labs, or none", ""),
    entry::<lab::Down>("lab down", ""),
    entry::<LinkReport>("lab set, lab cut, lab mend", "The link after the change."),
    entry::<CircuitReport>("lab circuit", ""),
    entry::<lab::CalibrationJson>("lab calibrate", ""),
    entry::<lab::ScenarioReportJson>("lab run", "Also the file of `--report`."),
    entry::<fabric::FabricRunJson>("fabric run", "Also `result.json` of `--out`."),
    entry::<fabric::PerftestJson>(
        "fabric run: perftest",
        "With `--workload write_bw`, `read_bw`, `send_bw` or `write_lat`.",
    ),
    entry::<fabric::SweepJson>("fabric sweep", ""),
    entry::<fabric::Parameters>("fabric parameters", ""),
    entry::<experiment::ExperimentListJson>("experiment list", ""),
    entry::<experiment::ExperimentRunJson>("experiment run", ""),
    entry::<node::ManPages>("generate man", ""),
    entry::<node::Completions>("generate completions", ""),
];

/// Commands that take `--json` and print no object, with the reason.
const WITHOUT_OBJECT: &[(&str, &str)] = &[
    ("generate json", "prints this page as Markdown"),
    ("lab capture", "writes packets"),
    ("lab exec", "prints what the program prints"),
    ("lab release", "prints nothing"),
    ("lab route", "prints nothing"),
    ("topology draw", "prints a picture"),
];

/// A field of an object, by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    path: String,
    kind: String,
    optional: bool,
    unit: String,
    meaning: String,
}

/// The page in Markdown.
pub(crate) fn page() -> String {
    let mut text = HEAD.to_owned();
    for entry in ENTRIES {
        let _ = writeln!(text, "## {}\n", entry.heading());
        if !entry.note.is_empty() {
            let _ = writeln!(text, "{}\n", entry.note);
        }
        text += "| field | type | unit | meaning |\n|---|---|---|---|\n";
        for Field { path, kind, optional, unit, meaning } in entry.fields() {
            let optional = if optional { ", optional" } else { "" };
            let meaning = meaning.replace('|', "\\|");
            let _ = writeln!(text, "| `{path}` | {kind}{optional} | {unit} | {meaning} |");
        }
        text.push('\n');
    }
    text += "## Commands without an object\n\n";
    for (command, reason) in WITHOUT_OBJECT {
        let _ = writeln!(text, "- `penstock {command} --json` {reason}.");
    }
    text
}

/// Deepest object within objects: none of ours contains itself.
const DEPTH_MAX: usize = 12;

struct Walk<'a> {
    schemas: &'a Schemas,
    fields: &'a mut Vec<Field>,
}

impl Walk<'_> {
    fn resolve<'s>(&'s self, schema: &'s RefOr<Schema>) -> &'s Schema {
        match schema {
            RefOr::T(schema) => schema,
            RefOr::Ref(Ref { ref_location, .. }) => {
                let name = ref_location.rsplit('/').next().unwrap_or_default();
                let found = self.schemas.get(name);
                self.resolve(found.unwrap_or_else(|| panic!("no schema {name}")))
            }
        }
    }

    /// Fields of an object at `path`, which ends with a dot or is empty.
    fn object(&mut self, path: &str, schema: &RefOr<Schema>, optional: bool, depth: usize) {
        assert!(depth < DEPTH_MAX, "{path}: too deep");
        let schema = self.resolve(schema).clone();
        match schema {
            Schema::Object(object) => {
                for (name, field) in &object.properties {
                    // A value that may be null is null, not left out.
                    let is_left_out = !object.required.contains(name)
                        && !self.kind(field).0.ends_with(" or null");
                    self.field(&format!("{path}{name}"), field, optional || is_left_out, depth);
                }
                if let Some(more) = &object.additional_properties
                    && let AdditionalProperties::RefOr(value) = &**more
                {
                    self.field(&format!("{path}*"), value, false, depth);
                }
            }
            Schema::AllOf(all) => {
                all.items.iter().for_each(|part| self.object(path, part, optional, depth + 1));
            }
            Schema::OneOf(one) => {
                let parts: Vec<_> = one.items.iter().filter(|part| !is_null(part)).collect();
                let optional = optional || parts.len() < one.items.len();
                match parts[..] {
                    [part] => self.object(path, part, optional, depth + 1),
                    _ => self.variants(path, &parts, optional, depth),
                }
            }
            Schema::Array(array) => {
                if let ArrayItems::RefOrSchema(items) = &array.items {
                    self.object(path, items, optional, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Fields of an enumeration: all variants together, each field once.
    fn variants(&mut self, path: &str, parts: &[&RefOr<Schema>], optional: bool, depth: usize) {
        let mut variants = Vec::new();
        for part in parts {
            let mut fields = Vec::new();
            let mut walk = Walk { schemas: self.schemas, fields: &mut fields };
            walk.object(path, part, optional, depth + 1);
            let tag = fields.iter().position(|field| field.is_tag());
            let tag = tag.map(|index| fields.remove(index));
            let description = description_of(part).unwrap_or_default();
            variants.push(Variant { tag, description, fields });
        }
        let tags = variants.iter().filter_map(Variant::tag_line).collect::<Vec<_>>();
        if let Some(tag) = variants.iter().find_map(|variant| variant.tag.clone()) {
            self.fields.push(Field { kind: "string".to_owned(), meaning: tags.join(" "), ..tag });
        }
        let mut paths: Vec<&str> = Vec::new();
        for field in variants.iter().flat_map(|variant| &variant.fields) {
            if !paths.contains(&field.path.as_str()) {
                paths.push(&field.path);
            }
        }
        for at in paths {
            self.fields.push(merged(&variants, at, !at[path.len()..].contains(['.', '['])));
        }
    }

    fn field(&mut self, path: &str, schema: &RefOr<Schema>, optional: bool, depth: usize) {
        let (kind, inner, suffix) = self.kind(schema);
        let description = description_of(schema)
            .or_else(|| description_of(&RefOr::T(self.resolve(schema).clone())))
            .unwrap_or_default();
        let (mut meaning, given) = split_unit(&description);
        if meaning.is_empty()
            && let Some(names) = path.strip_suffix(".*")
        {
            meaning = format!("Value of each name: see `{names}`.");
        }
        let is_number = kind.contains("integer") || kind.contains("number");
        let unit =
            if is_number { given.unwrap_or_else(|| unit_of(path, &kind)) } else { String::new() };
        self.fields.push(Field { path: path.to_owned(), kind, optional, unit, meaning });
        if let Some(inner) = inner {
            self.object(&format!("{path}{suffix}."), &inner, false, depth + 1);
        }
    }

    /// Type of a value in words, the object in it, and what leads to that: `[]` for a list.
    fn kind(&self, schema: &RefOr<Schema>) -> (String, Option<RefOr<Schema>>, String) {
        let resolved = self.resolve(schema);
        match resolved {
            Schema::Array(array) => {
                let ArrayItems::RefOrSchema(items) = &array.items else {
                    return ("list".to_owned(), None, String::new());
                };
                let (kind, inner, suffix) = self.kind(items);
                let kind = if kind.contains(" or ") { format!("({kind})") } else { kind };
                let null = if is_nullable(&array.schema_type) { " or null" } else { "" };
                (format!("list of {kind}{null}"), inner, format!("[]{suffix}"))
            }
            Schema::Object(object) => self.object_kind(object, schema),
            Schema::OneOf(one) => {
                let null = if one.items.iter().any(is_null) { " or null" } else { "" };
                let mut parts = one.items.iter().filter(|part| !is_null(part));
                match (parts.next(), parts.next()) {
                    (Some(part), None) => {
                        let (kind, inner, suffix) = self.kind(part);
                        (format!("{kind}{null}"), inner, suffix)
                    }
                    _ => (format!("object{null}"), Some(schema.clone()), String::new()),
                }
            }
            Schema::AllOf(_) => ("object".to_owned(), Some(schema.clone()), String::new()),
            _ => ("any value".to_owned(), None, String::new()),
        }
    }

    fn object_kind(
        &self,
        object: &Object,
        schema: &RefOr<Schema>,
    ) -> (String, Option<RefOr<Schema>>, String) {
        let word = |kind: &Type| match kind {
            Type::Object => "object",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::Array => "list",
            Type::Null => "null",
        };
        let kind = match &object.schema_type {
            SchemaType::Type(kind) => word(kind).to_owned(),
            SchemaType::Array(kinds) => kinds.iter().map(word).collect::<Vec<_>>().join(" or "),
            SchemaType::AnyValue => "any value".to_owned(),
        };
        let kind = match &object.enum_values {
            Some(values) => {
                let values: Vec<String> = values
                    .iter()
                    .filter_map(|value| value.as_str())
                    .map(|value| format!("`{value}`"))
                    .collect();
                format!("{kind}: {}", values.join(", "))
            }
            None => kind,
        };
        let is_map = object.additional_properties.is_some() && object.properties.is_empty();
        let inner = (is_map || !object.properties.is_empty()).then(|| schema.clone());
        (kind, inner, String::new())
    }
}

impl Field {
    /// True if the field distinguishes variants: a string with one value and no comment of its own.
    fn is_tag(&self) -> bool {
        self.meaning.is_empty() && self.kind.starts_with("string: `")
    }
}

/// A variant of an enumeration.
struct Variant {
    tag: Option<Field>,
    description: String,
    fields: Vec<Field>,
}

impl Variant {
    /// Value of the tag, as `` `started` ``.
    fn value(&self) -> Option<&str> {
        self.tag.as_ref()?.kind.strip_prefix("string: ")
    }

    fn tag_line(&self) -> Option<String> {
        let value = self.value()?;
        let description = self.description.trim_end_matches('.');
        Some(if description.is_empty() {
            format!("{value}.")
        } else {
            format!("{value}: {description}.")
        })
    }
}

/// The field at `path` of all variants that have it. One that others lack is optional where it `is_direct`.
fn merged(variants: &[Variant], path: &str, is_direct: bool) -> Field {
    // Meanings with the variants that have them.
    let mut meanings: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    let mut result: Option<Field> = None;
    let mut count = 0;
    for variant in variants {
        let Some(field) = variant.fields.iter().find(|field| field.path == path) else { continue };
        count += 1;
        if !kinds.contains(&field.kind.as_str()) {
            kinds.push(&field.kind);
        }
        let value = variant.value().unwrap_or_default();
        match meanings.iter_mut().find(|(meaning, _)| *meaning == field.meaning) {
            Some((_, values)) => values.push(value),
            None => meanings.push((&field.meaning, vec![value])),
        }
        result.get_or_insert_with(|| field.clone());
    }
    let mut field = result.expect("a variant has it");
    let in_all = count == variants.len();
    let with = |(meaning, values): &(&str, Vec<&str>)| match values[..] {
        [] | ["", ..] => (*meaning).to_owned(),
        _ => format!("With {}: {meaning}", values.join(", ")),
    };
    field.meaning = match &meanings[..] {
        [(meaning, _)] if in_all || !is_direct => (*meaning).to_owned(),
        all => all.iter().map(with).collect::<Vec<_>>().join(" "),
    };
    field.kind = kinds.join(" or ");
    field.optional |= is_direct && !in_all;
    field
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    let RefOr::T(Schema::Object(object)) = schema else { return false };
    object.schema_type == SchemaType::Type(Type::Null)
}

fn is_nullable(kind: &SchemaType) -> bool {
    matches!(kind, SchemaType::Array(kinds) if kinds.contains(&Type::Null))
}

fn description_of(schema: &RefOr<Schema>) -> Option<String> {
    let text = match schema {
        RefOr::Ref(Ref { description, .. }) => Some(description.clone()),
        RefOr::T(Schema::Object(object)) => object.description.clone(),
        RefOr::T(Schema::Array(array)) => array.description.clone(),
        RefOr::T(Schema::OneOf(one)) => one.description.clone().or_else(|| {
            let mut parts = one.items.iter().filter(|part| !is_null(part));
            match (parts.next(), parts.next()) {
                (Some(part), None) => description_of(part),
                _ => None,
            }
        }),
        RefOr::T(Schema::AllOf(all)) => all.description.clone(),
        RefOr::T(_) => None,
    };
    text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|text| !text.is_empty())
}

/// A description without its unit in brackets, and the unit.
fn split_unit(description: &str) -> (String, Option<String>) {
    // Rustdoc takes a bracket without a backslash for a link.
    let description = description.replace("\\[", "[").replace("\\]", "]");
    let Some((before, rest)) = description.rsplit_once(" [") else {
        return (description, None);
    };
    match rest.split_once(']') {
        Some((unit, after)) if after.len() <= 1 => {
            (format!("{before}{after}"), Some(unit.to_owned()))
        }
        _ => (description, None),
    }
}

/// Units by the ends of names.
const UNITS: &[(&str, &str)] = &[
    ("bits_per_second", "bit/s"),
    ("per_second", "1/s"),
    ("bps", "bit/s"),
    ("mbps", "Mbit/s"),
    ("unix_seconds", "s since 1970"),
    ("seconds", "s"),
    ("microseconds", "us"),
    ("bytes", "B"),
    ("size", "B"),
    ("kib", "KiB"),
    ("percent", "%"),
    ("us", "us"),
    ("ms", "ms"),
    ("s", "s"),
    ("gts", "GT/s"),
    ("packets", "count"),
    ("rounds", "count"),
];

/// Names of integers that count nothing.
const NUMBERS: &[&str] = &[
    "id",
    "order",
    "vlan",
    "scitag",
    "owner_id",
    "activity_id",
    "cgroup_id",
    "priority",
    "year",
    "overflows",
    "index",
    "ifindex",
    "pid",
    "exit",
    "numa_node",
    "number",
    "value",
    "without_entropy",
    "mask",
    "entropy",
    "source_port",
    "destination_port",
    "sub_agent",
    "seed",
    "version",
    "line",
    "column",
    "file",
    "next",
    "knee",
    "steps_left",
    "request",
    "completion_affinity",
    "rp_filter",
    "score",
];

/// Floating-point numbers without a unit.
const RATIOS: &[&str] =
    &["loss", "growth_per_year", "times", "utilisation", "fairness", "slowdown", "jain"];

/// The unit of the number at that path: by the name of its field, else of the objects around it.
fn unit_of(path: &str, kind: &str) -> String {
    let mut own = true;
    for name in path.rsplit('.') {
        let name = name.trim_end_matches("[]");
        if name == "*" {
            continue;
        }
        if name.starts_with("bytes_") {
            return "B".to_owned();
        }
        let bare = name.strip_suffix("_max").or_else(|| name.strip_suffix("_min")).unwrap_or(name);
        if RATIOS.contains(&bare) {
            return "ratio".to_owned();
        }
        let ends = |end: &str| {
            bare == end || bare.strip_suffix(end).is_some_and(|rest| rest.ends_with('_'))
        };
        let unit = UNITS.iter().filter(|(end, _)| ends(end)).max_by_key(|(end, _)| end.len());
        if let Some((_, unit)) = unit {
            return (*unit).to_owned();
        }
        if own && NUMBERS.contains(&name) {
            return "number".to_owned();
        }
        if own && kind.contains("integer") {
            return "count".to_owned();
        }
        own = false;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_field_has_a_meaning() {
        let mut faults = Vec::new();
        for entry in ENTRIES {
            let fields = entry.fields();
            assert!(!fields.is_empty(), "{} has no fields", entry.commands);
            for field in fields {
                if field.meaning.is_empty() {
                    faults.push(format!("{}: {}: no doc comment", entry.commands, field.path));
                }
                let is_number = field.kind.contains("integer") || field.kind.contains("number");
                if is_number && field.unit.is_empty() {
                    faults.push(format!("{}: {}: no unit", entry.commands, field.path));
                }
                if field.meaning.contains(" [") {
                    let text = "a unit in brackets stands at the end";
                    faults.push(format!("{}: {}: {text}", entry.commands, field.path));
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// Commands that run by themselves and take `--json`, below `command`.
    fn with_json(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
        if command.get_name() == "help" {
            return;
        }
        let runs = !command.has_subcommands() || !command.is_subcommand_required_set();
        let is_json = |arg: &clap::Arg| arg.get_long() == Some("json");
        if runs && command.get_arguments().any(is_json) {
            found.insert(path.to_owned());
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            with_json(inner, format!("{path} {}", inner.get_name()).trim(), found);
        }
    }

    #[test]
    fn every_command_is_in_the_page() {
        let mut command = crate::CommandLine::command();
        command.build();
        let mut wanted = BTreeSet::new();
        with_json(&command, "", &mut wanted);
        assert!(wanted.contains("cp") && wanted.contains("host check"), "{wanted:?}");
        let mut documented: BTreeSet<String> =
            WITHOUT_OBJECT.iter().map(|(command, _)| (*command).to_owned()).collect();
        for entry in ENTRIES {
            let (commands, _) = entry.commands.split_once(": ").unwrap_or((entry.commands, ""));
            for command in commands.split(", ") {
                let is_verb = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
                let verbs: Vec<&str> = command.split(' ').take_while(is_verb).collect();
                documented.insert(verbs.join(" "));
            }
        }
        assert_eq!(wanted, documented);
    }

    #[test]
    fn units_follow_names() {
        for (path, kind, unit) in [
            ("rate_bits_per_second", "integer", "bit/s"),
            ("links[].rates_bits_per_second", "list of integer", "bit/s"),
            ("completion_seconds.p50", "number", "s"),
            ("queue_bytes_max", "integer", "B"),
            ("slowdown_by_size[].slowdown.p50", "number", "ratio"),
            ("files", "integer", "count"),
            ("vlan", "integer or null", "number"),
            ("started_unix_seconds", "number", "s since 1970"),
            ("latitude", "number", ""),
        ] {
            assert_eq!(unit_of(path, kind), unit, "{path}");
        }
        assert_eq!(split_unit("Latitude [degrees]."), ("Latitude.".into(), Some("degrees".into())));
        assert_eq!(
            split_unit("A list [of things] and more"),
            ("A list [of things] and more".into(), None)
        );
    }
}
