//! Checks of the Helm chart without a cluster: lint, rendered manifests as golden files, schemas of Kubernetes.
//!
//! helm and kubeconform are built once (`cargo xtask kubernetes`); until then the tests report themselves as skipped. Schemas come
//! from the API description in the module of Kubernetes, and from that of the Prometheus operator.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::tools::{self, Tool};

/// Folder of the chart, in the checkout.
const CHART: &str = "deploy/helm/penstock";

/// Folder with values, and with what the chart makes of them.
const CASES: &str = "deploy/helm/testdata";

/// Module of the Prometheus operator, without what it needs itself: only two files of it are read.
const OPERATOR_MODULE: &str = "github.com/prometheus-operator/prometheus-operator";
const OPERATOR_VERSION: &str = "v0.85.0";

/// Definitions of its kinds in the chart.
const OPERATOR_DEFINITIONS: [&str; 2] = ["servicemonitors-crd.json", "prometheusrules-crd.json"];

/// Length from which a value of a Secret counts as generated.
const GENERATED_CHARS_MIN: usize = 60;

/// The chart with the programs that check it.
#[derive(Debug)]
pub struct Chart {
    root: PathBuf,
    helm: PathBuf,
    kubeconform: PathBuf,
}

impl Chart {
    /// The chart of the checkout; `None` where helm is not built yet.
    ///
    /// # Errors
    /// When the module file cannot be read.
    pub fn open(root: &Path) -> Result<Option<Self>> {
        let helm = tools::path(root, Tool::Helm)?;
        let kubeconform = tools::path(root, Tool::Kubeconform)?;
        Ok(helm.exists().then(|| Self { root: root.to_owned(), helm, kubeconform }))
    }

    /// Returns true if kubeconform and the schemas are there.
    ///
    /// # Errors
    /// When the module file cannot be read.
    pub fn can_conform(&self) -> Result<bool> {
        Ok(self.kubeconform.exists() && schemas(&self.root)?.exists())
    }

    /// Names of the files with values.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn cases(&self) -> Result<Vec<String>> {
        let folder = self.root.join(CASES);
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let names = entries.flatten().filter_map(|entry| {
            Some(entry.file_name().to_str()?.strip_suffix(".yaml")?.to_owned())
        });
        Ok(names.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn helm(&self, arguments: &[&str], more: &[&str]) -> Result<Output> {
        let home = self.root.join("target/kubernetes/helm");
        Command::new(&self.helm)
            .args(arguments)
            .arg(self.root.join(CHART))
            .args(more)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"))
            .output()
            .context("cannot run helm")
    }

    /// Runs `helm lint --strict` with the values of a case.
    ///
    /// # Errors
    /// When lint finds a fault.
    pub fn lint(&self, case: &str) -> Result<()> {
        let values = self.values(case);
        let output = self.helm(&["lint", "--strict", "-f", &values], &[])?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{case}: {text}");
        Ok(())
    }

    /// Manifests of a case, or of other values where `settings` has some (`--set`).
    ///
    /// # Errors
    /// When the chart refuses the values.
    pub fn render(&self, case: &str, settings: &[&str]) -> Result<String> {
        let values = self.values(case);
        let mut more = vec!["--namespace", "dtn", "-f", &values];
        for setting in settings {
            more.extend(["--set", setting]);
        }
        let output = self.helm(&["template", "penstock"], &more)?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn values(&self, case: &str) -> String {
        self.root.join(CASES).join(case).with_extension("yaml").display().to_string()
    }

    /// The file with the expected manifests of a case.
    #[must_use]
    pub fn golden(&self, case: &str) -> PathBuf {
        self.root.join(CASES).join("golden").join(case).with_extension("yaml")
    }

    /// Checks manifests against the schemas of Kubernetes; unknown fields are faults.
    ///
    /// # Errors
    /// When a manifest does not satisfy its schema.
    pub fn conform(&self, manifests: &str) -> Result<()> {
        let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
        fs::write(file.path(), manifests)?;
        let location = schemas(&self.root)?.join("{{.ResourceKind}}{{.KindSuffix}}.json");
        let output = Command::new(&self.kubeconform)
            .args(["-strict", "-summary", "-schema-location"])
            .args([&location, file.path()])
            .output()
            .context("cannot run kubeconform")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        ensure!(!text.contains("Valid: 0"), "kubeconform checked nothing: {text}");
        Ok(())
    }
}

/// Replaces what each rendering generates anew: tokens, keys, certificates, their fingerprints and sums.
#[must_use]
pub fn without_generated(manifests: &str) -> String {
    let mut text = String::new();
    for line in manifests.lines() {
        let (key, value) = line.split_once(": ").unwrap_or((line, ""));
        let is_base64 = value.len() >= GENERATED_CHARS_MIN
            && value.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c));
        let is_sum = key.trim_start().starts_with("checksum/");
        if is_base64 || is_sum {
            text += &format!("{key}: GENERATED\n");
        } else if let Some(at) = line.find("SHA256:") {
            text += &format!(
                "{}SHA256:FINGERPRINT{}\n",
                &line[..at],
                line[at + 7..].trim_start_matches(|c: char| c.is_ascii_hexdigit())
            );
        } else {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// Folder of the schemas, whether they exist or not.
fn schemas(root: &Path) -> Result<PathBuf> {
    let version = tools::kubernetes_version(root)?;
    Ok(root.join("target/kubernetes").join(format!("schemas-{version}-{OPERATOR_VERSION}")))
}

/// Writes a JSON schema for each kind of Kubernetes and those of the Prometheus operator, in the names that kubeconform looks
/// for; returns their folder.
///
/// # Errors
/// When an API description is not there or the folder cannot be written.
pub fn write_schemas(root: &Path) -> Result<PathBuf> {
    let folder = schemas(root)?;
    if folder.exists() {
        return Ok(folder);
    }
    let file = tools::kubernetes_sources(root)?.join("api/openapi-spec/swagger.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let document: Value = serde_json::from_slice(&text)?;
    let all = document["definitions"].as_object().context("no definitions")?;
    let new = folder.with_extension("new");
    fs::create_dir_all(&new)?;
    for (name, definition) in all {
        let kinds = definition["x-kubernetes-group-version-kind"].as_array();
        // Options of requests have a kind in every group.
        let [kind] = kinds.map_or(&[][..], Vec::as_slice) else { continue };
        let text = |key: &str| kind[key].as_str().unwrap_or_default().to_lowercase();
        let group = text("group").split('.').next().unwrap_or_default().to_owned();
        let suffix =
            if group.is_empty() { text("version") } else { format!("{group}-{}", text("version")) };
        let mut schema = json!({"$ref": format!("#/definitions/{name}")});
        schema["definitions"] = closure(all, name);
        fs::write(new.join(format!("{}-{suffix}.json", text("kind"))), schema.to_string())?;
    }
    write_operator_schemas(root, &new)?;
    fs::rename(&new, &folder)?;
    Ok(folder)
}

fn write_operator_schemas(root: &Path, folder: &Path) -> Result<()> {
    let sources = tools::module_sources(root, OPERATOR_MODULE, OPERATOR_VERSION)?;
    for name in OPERATOR_DEFINITIONS {
        let file = sources.join("jsonnet/prometheus-operator").join(name);
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let definition: Value = serde_json::from_slice(&text)?;
        let spec = &definition["spec"];
        let kind = spec["names"]["kind"].as_str().context("no kind")?.to_lowercase();
        let group = spec["group"].as_str().and_then(|group| group.split('.').next());
        let group = group.context("no group")?;
        for version in spec["versions"].as_array().into_iter().flatten() {
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            tighten(&mut schema, &mut Vec::new());
            let version = version["name"].as_str().context("no version")?;
            fs::write(folder.join(format!("{kind}-{group}-{version}.json")), schema.to_string())?;
        }
    }
    Ok(())
}

/// Definitions that `name` needs, with unknown fields forbidden.
fn closure(all: &Map<String, Value>, name: &str) -> Value {
    let mut found = Map::new();
    let mut waiting = vec![name.to_owned()];
    while let Some(name) = waiting.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let mut definition = all.get(&name).cloned().unwrap_or_default();
        tighten(&mut definition, &mut waiting);
        found.insert(name, definition);
    }
    found.into()
}

/// Forbids unknown fields, admits numbers where Kubernetes does, and collects the names that are referred to.
fn tighten(schema: &mut Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|text| text.strip_prefix("#/definitions/")) {
                names.push(name.to_owned());
            }
            if fields.get("properties").is_some_and(Value::is_object)
                && !fields.contains_key("additionalProperties")
            {
                fields.insert("additionalProperties".to_owned(), false.into());
            }
            if fields.get("format").is_some_and(|format| format == "int-or-string") {
                fields.insert("type".to_owned(), json!(["string", "integer"]));
                fields.remove("format");
            }
            fields.values_mut().for_each(|value| tighten(value, names));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| tighten(value, names)),
        _ => {}
    }
}
