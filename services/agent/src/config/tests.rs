//! Tests of layers, errors with their lines, and the shipped example.

use penstock_daemon::config::ConfigFile;

use penstock_http::issued_tokens::IssuedToken;
use penstock_mover::{DscpPolicy, TuningMode};
use penstock_units::Dscp;

use super::*;
use crate::disks::DiskSecrets;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct Setting {
    directory: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Setting {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let state = directory.path().join("state").display().to_string();
        Self { directory, variables: vec![("PENSTOCK_STATE", state)] }
    }

    fn load(&self, text: &str, flags: Layer) -> Result<Config, ConfigError> {
        let file = self.directory.path().join("penstock.toml");
        std::fs::write(&file, text).unwrap();
        let variable = |name: &str| {
            self.variables.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone().into())
        };
        Config::load(Some(&file), Environment::new(&variable), flags)
    }
}

fn addresses(addresses: &[SocketAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn exports_admit_issued_names() {
    let setting = Setting::new();
    let text = "[[export]]\nname = \"/\"\npath = \"data\"\nwho = [\"alice\"]\n";
    assert!(setting.load(text, Layer::default()).is_err());
    let state = setting.directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let (alice, _) = IssuedToken::new("alice", vec!["read".to_owned()], 0, u64::MAX);
    let file = state.join(ISSUED_TOKENS);
    let list = IssuedTokenList { tokens: vec![alice] };
    std::fs::write(&file, serde_json::to_string(&list).unwrap()).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    setting.load(text, Layer::default()).unwrap();
}

#[test]
fn later_layers_win() {
    let mut setting = Setting::new();
    let text = "
[agent]
listen = [\"127.0.0.1:1\", \"[::1]\"]
http = \"127.0.0.1:2\"
root = \"data\"
cpu = \"auto\"
[limits]
rate = \"10G\"
streams = 8
memory = \"512MiB\"
transfers = 3
[tuning]
mode = \"off\"
";
    let config = setting.load(text, Layer::default()).unwrap();
    assert_eq!(addresses(&config.listen), ["127.0.0.1:1", "[::1]:8620"]);
    assert_eq!(addresses(&config.http), ["127.0.0.1:2"]);
    assert_eq!(config.exports[0].path, setting.directory.path().join("data"));
    assert_eq!(config.limits.rate_bps, Some(10_000_000_000));
    assert_eq!((config.limits.transfers, config.limits.streams_per_transfer), (3, 8));
    assert_eq!(config.limits.memory_bytes, 512 << 20);
    assert_eq!(config.cpu, Some(PlacementPolicy::Auto));
    assert_eq!(config.limits.tuning, TuningMode::Off);

    setting.variables.push(("PENSTOCK_RATE", "5G".into()));
    setting.variables.push(("PENSTOCK_HTTP", "none".into()));
    setting.variables.push(("PENSTOCK_CPU", "2-4".into()));
    setting.variables.push(("PENSTOCK_TUNING", "observe".into()));
    setting.variables.push(("PENSTOCK_STREAMS", String::new()));
    setting.variables.push(("PENSTOCK_SERVICE_HOST", "10.0.0.1".into()));
    let config = setting.load(text, Layer::default()).unwrap();
    assert_eq!((config.limits.rate_bps, config.http.len()), (Some(5_000_000_000), 0));
    assert_eq!(config.cpu, Some(PlacementPolicy::Cpus(vec![2, 3, 4])));
    assert_eq!(config.limits.tuning, TuningMode::Observe);

    let flags = Layer { rate: Some(BitRate(0)), ..Layer::default() };
    assert_eq!(setting.load(text, flags).unwrap().limits.rate_bps, None);
}

#[test]
fn dscp_is_number_or_name() {
    let setting = Setting::new();
    let policy = |text: &str| {
        let text = format!("{text}[[export]]\nname = \"/\"\npath = \"data\"\nwho = [\"*\"]\n");
        setting.load(&text, Layer::default()).unwrap().limits.dscp
    };
    let dscp = |text: &str| text.parse::<Dscp>().unwrap();
    assert_eq!(policy(""), DscpPolicy::default());
    let given = policy("[agent]\ndscp = \"af31\"\n[limits]\ndscp = [\"ef\", 1]\n");
    assert_eq!(given, DscpPolicy { own: dscp("af31"), clients: vec![dscp("ef"), dscp("le")] });
    assert!(policy("[limits]\ndscp = []\n").clients.is_empty());
}

#[test]
fn disks_have_defaults() {
    let setting = Setting::new();
    let text = "
[agent]
root = \"data\"
[[disk]]
path = \"images/run-7.img\"
to = \"nqn.2020-01.org.example:h\"
[[disk]]
name = \"scratch\"
path = \"/dev/nvme1n1\"
to = [\"nqn.2020-01.org.example:h\", \"nqn.2020-01.org.example:i\"]
transport = \"rdma\"
address = [\"192.0.2.10\", \"2001:db8::10\"]
port = 4421
secret_file = \"secret\"
";
    let config = setting.load(text, Layer::default()).unwrap();
    let [file, device] = config.disks.as_slice() else { panic!("{:?}", config.disks) };
    assert_eq!((file.name.as_str(), file.transport.name()), ("run-7", "tcp"));
    assert_eq!(file.path, setting.directory.path().join("images/run-7.img"));
    assert_eq!(addresses(&file.listens), ["0.0.0.0:4420"]);
    assert_eq!((device.hosts.len(), device.transport.name()), (2, "rdma"));
    assert_eq!(addresses(&device.listens), ["192.0.2.10:4421", "[2001:db8::10]:4421"]);
    let secret = setting.directory.path().join("secret");
    assert_eq!(
        (&file.secrets, &device.secrets),
        (&DiskSecrets::None, &DiskSecrets::Shared(secret))
    );
    assert_eq!(config.disk_exports, DiskExportPolicy::default());
}

#[test]
fn clients_export_allowed_paths() {
    let setting = Setting::new();
    let text = "
[agent]
root = \"data\"
[disks]
allow = [\"images\", \"/dev/nvme1n1\"]
address = \"192.0.2.10\"
";
    let load = |text: &str| setting.load(text, Layer::default()).unwrap().disk_exports;
    let policy = load(text);
    let beside = |name: &str| setting.directory.path().join(name);
    assert_eq!(policy.allow, [beside("images"), "/dev/nvme1n1".into()]);
    assert_eq!(addresses(&policy.listens), ["192.0.2.10:4420"]);
    // Hosts need secrets, unless the operator says otherwise.
    assert!(policy.secrets && !load(&format!("{text}secrets = false\n")).secrets);
}

#[test]
fn errors_name_the_line() {
    let setting = Setting::new();
    let export = "[[export]]\nname = \"/a\"\npath = \"data\"\nwho = [\"*\"]\n";
    for (text, line, expected) in [
        ("[agent]\nlisten = \"x:1\"\nlistem = \"y\"\n".to_owned(), 3, "unknown field `listem`"),
        ("[agents]\n".to_owned(), 1, "unknown field `agents`"),
        ("\n[limits]\nrate = \"fast\"\n".to_owned(), 3, "10G"),
        ("[limits]\nrate = -1\n".to_owned(), 2, "'-1' is not a rate"),
        ("[tuning]\nmode = \"on\"\n".to_owned(), 2, "write auto, history, observe or off"),
        ("[limits]\nmemory = true\n".to_owned(), 2, "a number, or text in quotes"),
        ("[agent]\ndscp = 64\n".to_owned(), 2, "0 to 63, 0x00 to 0x3f, or default, le"),
        ("[limits]\ndscp = [\"le\", \"gold\"]\n".to_owned(), 2, "'gold' is not a DSCP"),
        ("[limits]\nstreams = 0\n".to_owned(), 2, "'0' is no count: write a whole"),
        ("[limits]\ntransfers = 1.5\n".to_owned(), 2, "'1.5' is no count"),
        ("[agent]\nkeep_unfinished = \"0\"\n".to_owned(), 2, "7d, 12h or forever"),
        ("[agent]\nlisten = [\"127.0.0.1:1\",\n  \"127.0.0.1:x\"]\n".to_owned(), 3, "no address"),
        ("[agent]\nlisten = 8620\n".to_owned(), 2, "an address such as"),
        ("[agent\n".to_owned(), 1, ""),
        ("[scitags]\nregistry = \"api.json\"\n".to_owned(), 2, "no address to fetch from"),
        ("[third_party]\nto = [\"any\",\n \"10.0.0.0/33\"]\n".to_owned(), 3, "no destination"),
        (format!("{export}{export}"), 5, "a second export is called /a"),
        (format!("{export}mode = \"append\"\n"), 5, "read-write"),
        (
            "[agent.controller]\nurl = \"https://c.example.org\"\ntoken = \"t\"\nhost = \"a\"\ntransport = \"rdma\"\n"
                .to_owned(),
            5,
            "auto for RDMA where it is possible",
        ),
        (format!("{export}[[disk]]\npath = \"image\"\n"), 5, "disk image admits no host"),
        (
            format!("{export}[[disk]]\npath = \"a b\"\nto = \"nqn.2020-01.org.x:h\"\n"),
            5,
            "no name of a disk",
        ),
        (
            format!("{export}[[disk]]\npath = \"image\"\nto = \"dtn2\"\n"),
            5,
            "no NVMe qualified name",
        ),
        (
            format!("{export}[[disk]]\npath = \"image\"\ntransport = \"roce\"\n"),
            7,
            "`tcp` or `rdma`",
        ),
        ("[[export]]\nname = \"a\"\npath = \"data\"\n".to_owned(), 2, "write it like /store"),
        ("[[export]]\nname = \"/a/../b\"\npath = \"data\"\n".to_owned(), 2, "write it like /store"),
        ("\n[[export]]\nname = \"/a\"\npath = \"data\"\n".to_owned(), 2, "admits no client"),
        ("[[export]]\nname = \"/a\"\n".to_owned(), 1, "missing field `path`"),
        (format!("{export}[[token]]\nname = \"x\"\n"), 5, "sha256 or file"),
        (
            format!("{export}[[token]]\nname = \"owner\"\nsha256 = \"{HEX}\"\n"),
            5,
            "agent's own token",
        ),
        (format!("{export}[[token]]\nname = \"x\"\nsha256 = \"12\"\n"), 5, "sha256sum"),
        (format!("{export}[agent]\ncpu = \"fast\"\n"), 6, "no list of processors"),
        (export.replace('*', "cert:12"), 4, "64 hexadecimal digits"),
        (export.replace('*', "a b"), 4, "cannot name a token"),
    ] {
        let error = setting.load(&text, Layer::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("penstock.toml:{line}: ")), "{text}\n{error}");
        assert!(error.contains(expected), "{text}\n{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn combined_errors_have_a_remedy() {
    let mut setting = Setting::new();
    let export = "[[export]]\nname = \"/\"\npath = \"data\"\nwho = [\"*\"]\n";
    for (text, expected) in [
        (String::new(), "or [[export]] in "),
        (export.replace("data", "none"), "is not a directory"),
        (format!("{export}[agent]\nroot = \"data\"\n"), "drop one"),
        (format!("{export}[agent]\nkey = \"tls.key\"\n"), "belong together"),
        (format!("{export}[limits]\nmemory = \"1MiB\"\n"), "at least 16.0 MiB"),
        (format!("{export}[agent]\nlisten = []\n"), "listens on no address"),
        (export.replace('*', "alice"), "no token has this name"),
    ] {
        let error = setting.load(&text, Layer::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
    // Names in a token list are known only once it is read.
    setting
        .load(&format!("tokens = \"list\"\n{}", export.replace('*', "alice")), Layer::default())
        .unwrap();
    setting.load(&export.replace('*', "owner"), Layer::default()).unwrap();

    setting.variables.push(("PENSTOCK_STREAMS", "many".into()));
    let error = setting.load(export, Layer::default()).unwrap_err().to_string();
    assert!(error.starts_with("environment variable PENSTOCK_STREAMS: "), "{error}");
    let error = Config::load(
        Some(Path::new("/nonexistent")),
        Environment::new(&|_| None),
        Layer::default(),
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "/nonexistent: no such file or directory");
}

#[test]
fn cleartext_networks_parse() {
    let setting = Setting::new();
    let load = |line: &str| {
        let text = format!("[rdma]\n{line}\n[agent]\nroot = \"data\"\n");
        setting.load(&text, Layer::default())
    };
    let networks = load("unencrypted = [\"10.1.0.0/16\", \"2001:db8::1\"]").unwrap().cleartext;
    let has = |address: &str| networks.contains(address.parse().unwrap());
    assert!(has("10.1.2.3") && has("2001:db8::1") && !has("10.2.0.0") && !has("2001:db8::2"));
    assert!(load("").unwrap().cleartext.is_empty());
    for wrong in ["10.1.2.3/16", "10.0.0.0/33", "dtn2", "any", "10.0.0.1:8620", ""] {
        let error = load(&format!("unencrypted = \"{wrong}\"")).unwrap_err().to_string();
        assert!(error.contains(&format!("'{wrong}'")), "{error}");
    }
}

#[test]
fn third_party_destinations_parse() {
    let setting = Setting::new();
    let load = |line: &str| {
        let text = format!("[third_party]\n{line}\n[agent]\nroot = \"data\"\n");
        setting.load(&text, Layer::default()).unwrap().destinations
    };
    let list = |expected: &[&str]| {
        DestinationRules(expected.iter().map(|word| word.parse().unwrap()).collect())
    };
    assert_eq!(load(""), list(&["remote"]));
    assert_eq!(load("to = \"none\""), list(&[]));
    assert_eq!(load("to = \"any\""), list(&["any"]));
    assert_eq!(load("to = [\"dtn2\", \"::1\"]"), list(&["dtn2", "::1"]));
}

fn example(text: &str) -> ConfigFile {
    ConfigFile::from_text(Path::new("deploy/penstock.toml"), text)
}

#[test]
fn shipped_example_is_valid() {
    let text = std::fs::read_to_string("../../deploy/penstock.toml").unwrap();
    file::parse(&example(&text)).unwrap();
    // Commented-out lines are valid as well.
    let all: String = text
        .lines()
        .map(|line| line.strip_prefix("#").filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_ne!(all, text);
    let contents = file::parse(&example(&all)).unwrap();
    assert!(contents.exports.len() >= 2 && contents.tokens.len() >= 2);
}

/// The sample of a page, with directories of the test.
fn documented_issuers(setting: &Setting) -> String {
    let page = std::fs::read_to_string("../../docs/gateways.md").unwrap();
    let (_, section) = page.split_once("## Tokens of issuers").unwrap();
    let (_, sample) = section.split_once("```toml\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let data = setting.directory.path().join("data").display().to_string();
    sample.replace("/srv/store/cms", &data).replace("/srv/production", &data)
}

#[test]
fn documented_issuers_are_valid() {
    let setting = Setting::new();
    let text = documented_issuers(&setting);
    let config = setting.load(&text, Layer::default()).unwrap();
    let [issuer] = config.issuers.as_slice() else { panic!("one issuer") };
    assert_eq!(issuer.url, "https://cms-auth.cern.ch/");
    assert_eq!(issuer.base.to_string(), "/store/cms");
    let shown: Vec<String> =
        config.exports.iter().flat_map(|one| &one.principals).map(ToString::to_string).collect();
    assert_eq!(shown, ["issuer:cms", "group:cms:/cms/production", "subject:cms:62fa7c3e"]);
    // Keys that the sample shows as comments.
    let all: String = text
        .lines()
        .map(|line| line.strip_prefix('#').unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(setting.load(&all, Layer::default()).unwrap().issuers[0].reads_api);
}

#[test]
fn issuer_faults_name_the_remedy() {
    let setting = Setting::new();
    let text = documented_issuers(&setting);
    for (from, to, words) in [
        ("https://cms-auth", "http://cms-auth", "https only"),
        ("https://cms-auth.cern.ch/", "cms", "url"),
        ("[\"https://dtn1.example.org:8443\"]", "[]", "name at least one"),
        ("\"/store/cms\"     ", "\"/elsewhere\" ", "no export at /elsewhere admits tokens"),
        ("group:cms:/cms", "group:cms:cms", "group:ISSUER:/GROUP"),
        ("\"issuer:cms\"", "\"issuer:atlas\"", "no issuer has this name"),
        (
            "[[export]]",
            "[[issuer]]\nname = \"b\"\nurl = \"https://cms-auth.cern.ch/\"\naudience = \"x\"\nbase = \"/\"\n[[export]]",
            "has its url",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let error = setting.load(&text.replacen(from, to, 1), Layer::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{to}: {error}");
    }
}

#[test]
fn nested_exports_withhold_nothing() {
    let setting = Setting::new();
    let here = setting.directory.path();
    std::fs::create_dir_all(here.join("data/team/priv")).unwrap();
    std::fs::create_dir(here.join("data2")).unwrap();
    std::os::unix::fs::symlink(here.join("data/team/priv"), here.join("alias")).unwrap();
    let load_both = |outer: &str, rights: [&str; 2], inner: &str, who: &str, mode: &str| {
        let [outer_who, outer_mode] = rights;
        let text = format!(
            "[[export]]\nname = \"/a\"\npath = \"{outer}\"\nmode = \"{outer_mode}\"\nwho = [{outer_who}]\n\
             [[export]]\nname = \"/a/b\"\npath = \"{inner}\"\nmode = \"{mode}\"\nwho = [{who}]\n"
        );
        setting.load(&text, Layer::default()).map(drop).map_err(|error| error.to_string())
    };
    let load = |outer: &str, inner: &str, who: &str, mode: &str| {
        load_both(outer, ["\"*\"", "read-write"], inner, who, mode)
    };
    // The inner export permits more.
    for who in ["\"*\"", "\"owner\""] {
        assert_eq!(
            load_both("data", ["\"owner\"", "read"], "data/team", who, "read-write"),
            Ok(())
        );
    }
    for inner in ["data/team/priv", "alias", "data/../data/team"] {
        for (who, mode) in [("\"owner\"", "read-write"), ("\"*\"", "read")] {
            let refused = load("data", inner, who, mode).unwrap_err();
            assert!(refused.contains("export /a/b (") && refused.contains("inside export /a"));
        }
        assert_eq!(load("data", inner, "\"*\"", "read-write"), Ok(()));
    }
    assert_eq!(load("data", "data2", "\"owner\"", "read"), Ok(()));
    assert_eq!(load("data", "data", "\"owner\"", "read"), Ok(()));
}

#[test]
fn quotas_without_effect_are_refused() {
    let setting = Setting::new();
    let load = |quotas: &str| {
        let text = format!("[[export]]\nname = \"/\"\npath = \"data\"\nwho = [\"*\"]\n{quotas}");
        setting.load(&text, Layer::default()).map_err(|error| error.to_string())
    };
    let quota = |client: &str| format!("[[quota]]\nclient = \"{client}\"\nbytes = \"10T\"\n");
    let config = load(&[quota("ann"), quota("*")].concat()).unwrap();
    let named = |client: &str| ClientQuota::find(&config.quotas, client).unwrap().client.clone();
    assert_eq!([named("ann"), named("bob")], ["ann", "*"]);
    assert_eq!(config.quotas[0].bytes, Some(10_000_000_000_000));
    let refused = load(&[quota("a*"), quota("ann")].concat()).unwrap_err();
    assert!(refused.contains("penstock.toml:8: ") && refused.contains("earlier"), "{refused}");
    assert!(load("[[quota]]\nclient = \"ann\"\n").unwrap_err().contains("bytes"));
}
