//! Accepted configurations, and errors with their lines.

use super::*;

const NETWORK: &str = r#"
name = "n"
[[site]]
name = "a"
[[host]]
name = "a1"
site = "a"
interface = [{ name = "eth0", rate = "1G" }]
[[switch]]
name = "s"
[[link]]
ends = ["a1:eth0", "s"]
rate = "1G"
"#;

fn read(table: &str) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("network.toml"), NETWORK).unwrap();
    let file = directory.path().join("penstock.toml");
    let text = format!("[agent]\nroot = \"/\"\n[controller]\n{table}");
    let document = ConfigFile::from_text(&file, text);
    let read = ConfigReader { document: &document, registry: Registry::builtin() }.read();
    read.map_err(|error| error.to_string().rsplit_once("penstock.toml").unwrap().1.to_owned())
}

#[test]
fn valid_config_is_loaded() {
    let config = read(
        "topology = \"network.toml\"\nround = \"200ms\"\nlease = \"10s\"\nusable = 0.9\n\
         [[controller.class]]\nname = \"production\"\nlabel = \"cms/data-consolidation\"\nweight = 3\nmark = \"60G\"\n\
         windows = [\"mon-fri 18:00-06:00\"]\n\
         [[controller.token]]\nname = \"robot\"\nsha256 = \"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\"\n\
         scopes = [\"submit:production\", \"agent:a1\"]\n",
    );
    let config = config.unwrap();
    assert_eq!((config.lease_seconds, config.round), (10, Duration::from_millis(200)));
    assert_eq!(config.rules.usable_permille, 900);
    let class = config.class("production").unwrap();
    assert_eq!((class.weight, class.mark_bps), (3, Some(60_000_000_000)));
    assert!(class.scitag.is_some() && class.windows.len() == 1);
    assert!(config.is_site("a") && config.is_host("a1") && !config.is_host("s"));
    let little = read("topology = \"network.toml\"").unwrap();
    assert_eq!(little.classes, [WorkClass::new("default")]);
    assert!(little.circuits.is_none() && little.telemetry.is_none());
    let more = read(
        "topology = \"network.toml\"\n[controller.circuits]\nprovider = \"lab\"\nlab = \"/labs/two\"\n\
         [controller.telemetry]\nurl = \"https://collector.example.org:8621\"\ntoken = \"t\"\n",
    );
    let more = more.unwrap();
    assert_eq!(more.circuits, Some(Provider::Lab("/labs/two".into())));
    assert!(more.telemetry.is_some_and(|one| one.url.is_encrypted() && one.token.is_some()));
}

#[test]
fn config_error_names_its_line() {
    for (table, expected) in [
        ("", ": [controller] needs topology"),
        ("topology = \"none.toml\"", ":4: "),
        ("topology = \"network.toml\"\nrounds = \"1s\"", ":5: unknown field `rounds`"),
        (
            "topology = \"network.toml\"\ndatabase = \"mysql://x\"",
            ":5: database: it is no database",
        ),
        ("topology = \"network.toml\"\nround = \"1ms\"", ":5: '1ms' is too short"),
        ("topology = \"network.toml\"\nbatch_files = 0", ":5: batch_files is from 1"),
        ("topology = \"network.toml\"\nusable = 2.0", ":5: usable is the part"),
        (
            "topology = \"network.toml\"\n[[controller.class]]\nname = \"a b\"",
            ":5: 'a b' cannot name a class",
        ),
        (
            "topology = \"network.toml\"\n[[controller.class]]\nname = \"x\"\nfloor = \"2G\"\ncap = \"1G\"",
            ":5: class x: its cap is below",
        ),
        (
            "topology = \"network.toml\"\n[[controller.token]]\nname = \"t\"\nscopes = []",
            ":5: token t: give sha256 or file",
        ),
        (
            "topology = \"network.toml\"\n[[controller.token]]\nname = \"t\"\nfile = \"f\"\nscopes = [\"submit:none\"]",
            ":5: token t: there is no class 'none'",
        ),
        (
            "topology = \"network.toml\"\n[[controller.token]]\nname = \"t\"\nfile = \"f\"\nscopes = [\"agent:b\"]",
            ":5: token t: the topology has no host 'b'",
        ),
        (
            "topology = \"network.toml\"\n[[controller.issuer]]\nname = \"i\"\nurl = \"https://i.org/\"\naudience = \"a\"\ngrant = [{ scopes = [\"submit:none\"] }]",
            ":5: issuer i: grant: there is no class 'none'",
        ),
        (
            "topology = \"network.toml\"\n[[controller.issuer]]\nname = \"i\"\nurl = \"https://i.org/\"\naudience = \"a\"\ngrant = [{ group = \"g\", scopes = [] }]",
            ":5: issuer i: grant: scopes is empty",
        ),
        (
            "topology = \"network.toml\"\n[[controller.issuer]]\nname = \"i\"\nurl = \"http://i.org/\"\naudience = \"a\"\ngrant = []",
            ":5: issuer i: url: keys are fetched over https only",
        ),
        (
            "topology = \"network.toml\"\n[[controller.issuer]]\nname = \"i\"\nurl = \"https://i.org/\"\ngrant = []",
            ":5: issuer i: audience: name at least one",
        ),
        (
            "topology = \"network.toml\"\n[controller.circuits]\nprovider = \"oscars\"",
            ":5: provider = \"oscars\" makes no circuits here",
        ),
        (
            "topology = \"network.toml\"\n[controller.circuits]\nprovider = \"lab\"",
            ":5: [controller.circuits] needs lab = \"DIR\"",
        ),
        (
            "topology = \"network.toml\"\n[controller.telemetry]\nurl = \"http://192.0.2.1:8621\"\ntoken = \"t\"",
            ":5: [controller.telemetry] http://192.0.2.1:8621/ would carry a token in the clear",
        ),
    ] {
        let error = read(table).unwrap_err();
        assert!(error.starts_with(expected), "{table}: {error}");
    }
}
