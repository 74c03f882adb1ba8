//! Tests of the registry: the built-in copy, what is refused, and how pairs are found.

use proptest::prelude::*;

use super::*;

fn tag(owner: u64, activity: u64) -> Scitag {
    Scitag::new(owner, activity).unwrap()
}

fn read(json: &str) -> Result<ParsedRegistry, RegistryError> {
    Registry::read(json.as_bytes())
}

fn failure(text: &str) -> String {
    Registry::builtin().find(text).unwrap_err().to_string()
}

#[test]
fn builtin_registry_matches_readme() {
    let reading = Registry::read(BUILTIN).unwrap();
    assert_eq!(reading.left_out, Vec::<String>::new());
    let registry = reading.registry;
    assert_eq!(registry.modified().unwrap().to_string(), "2025-09-04T12:01:55.844133+00:00");
    let readme = include_str!("../../data/README.md");
    assert!(readme.contains("2025-09-04T12:01:55.844133+00:00"));
    assert!(readme.contains(&format!(
        "{} experiments, {} activities",
        registry.owners().len(),
        registry.tags().count()
    )));
    let owners: Vec<_> = registry.owners().iter().map(|(id, o)| (*id, o.name.as_str())).collect();
    assert_eq!(
        owners,
        [
            (1, "default"),
            (2, "atlas"),
            (3, "cms"),
            (4, "lhcb"),
            (5, "alice"),
            (6, "belleii"),
            (7, "ska"),
            (8, "dune"),
            (9, "lsst"),
            (10, "ilc"),
            (11, "auger"),
            (12, "juno"),
            (13, "nova"),
            (14, "xenon"),
        ]
    );
    // Published pairs, from the registry's own users.
    for (text, owner, activity) in [
        ("atlas/Data Consolidation", 2, 4),
        ("atlas/Data Challenge", 2, 26),
        ("alice/Data access", 5, 10),
    ] {
        assert_eq!(registry.find(text), Ok(tag(owner, activity)), "{text}");
    }
}

#[test]
fn spelling_variants_find_the_pair() {
    let registry = Registry::builtin();
    for text in [
        "cms/analysis-input",
        "CMS/Analysis Input",
        "cms/ANALYSIS_INPUT",
        " cms / analysis input ",
        "3/14",
        "cms/14",
        "3/analysis-input",
        "206",
        "0206",
    ] {
        assert_eq!(registry.find(text), Ok(tag(3, 14)), "{text}");
    }
    assert_eq!(registry.find("cms/upload/download (job)"), Ok(tag(3, 19)));
    assert_eq!(registry.find("cms/upload-download-job"), Ok(tag(3, 19)));
    // Numbers need not be registered.
    assert_eq!(registry.find("600/63"), Ok(tag(600, 63)));
    assert_eq!(registry.name(tag(600, 63)), "600/63");
    assert_eq!(registry.name(tag(3, 63)), "cms/63");
    assert_eq!(registry.name(tag(3, 14)), "cms/analysis-input");
}

#[test]
fn names_round_trip() {
    let registry = Registry::builtin();
    for tag in registry.tags() {
        let name = registry.name(tag);
        assert_eq!(registry.find(&name), Ok(tag), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-/".contains(&b)), "{name}");
    }
}

#[test]
fn misspelt_names_get_suggestions() {
    for (text, words) in [
        (
            "cms/analyis-input",
            "unknown activity 'analyis-input' of cms: did you mean 'analysis-input'?",
        ),
        ("cms/express-lane-of-mine", "no such name"),
        ("cms/secondary", "did you mean 'secondary-input'?"),
        ("csm/default", "unknown owner 'csm': did you mean 'cms'?"),
        ("belle2/default", "did you mean 'belleii'?"),
        ("zzz/default", "unknown owner 'zzz': the registry has no such name"),
        ("cms", "write OWNER/ACTIVITY such as cms/default"),
        ("600/default", "give the activity as a number"),
        ("cms/64", "activity 64 does not exist: activities are 1 to 63"),
        ("cms/99999999999999999999999", "99999999999999999999999 is out of every range"),
        ("2000/1", "owner 2000 does not exist"),
        ("64", "64 is no scitag: scitags are 65 to 65535"),
        (
            "3/99999999999999999999",
            "99999999999999999999 is out of every range: owners are 1 to 1023, activities 1 to 63, scitags 65 to 65535",
        ),
        (
            "196664",
            "196664 is not a scitag but the flow label of cms/analysis-input, whose scitag is 206",
        ),
        ("", "unknown owner ''"),
        ("/", "unknown owner ''"),
    ] {
        let line = failure(text);
        assert!(line.contains(words), "{text}: {line}");
        assert!(!line.contains('\n'), "{line}");
    }
    assert!(failure(&"x".repeat(9000)).len() < 400);
    assert!(!failure("\x1b[2Jcms/x").contains('\x1b'));
}

#[test]
fn unknown_fields_pass_duplicate_ids_fail() {
    let reading = read(
        r#"{"source": [1, {"a": null}], "experiments": [{"expName": "one", "expID": 1, "x": 1,
            "activities": [{"activityName": "A", "activityId": 1, "colour": "red"}]}]}"#,
    )
    .unwrap();
    assert_eq!(reading.registry.modified(), None);
    assert_eq!(reading.registry.find("one/a"), Ok(tag(1, 1)));

    let activity =
        |name: &str, id: u64| format!(r#"{{"activityName": "{name}", "activityId": {id}}}"#);
    let owner = |name: &str, id: u64, activities: &[String]| {
        let activities = activities.join(",");
        format!(r#"{{"expName": "{name}", "expId": {id}, "activities": [{activities}]}}"#)
    };
    let registry =
        |owners: &[String]| format!(r#"{{"version": 1, "experiments": [{}]}}"#, owners.join(","));
    let twice = read(&registry(&[owner("a", 7, &[]), owner("b", 7, &[])])).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "experiment id 7 stands for 'a' and for 'b': one of them is wrong"
    );
    let twice = registry(&[owner("a", 7, &[activity("x", 2), activity("y", 2)])]);
    assert!(read(&twice).unwrap_err().to_string().contains("activity id 2 of a"));

    let odd = registry(&[
        owner("far", 5000, &[]),
        owner("\\u0007bell", 2, &[]),
        owner("1234", 3, &[]),
        owner(
            "good",
            4,
            &[activity("z", 0), activity("y", 64), activity("x", 63), activity("X", 62)],
        ),
    ]);
    let reading = read(&odd).unwrap();
    assert_eq!(reading.left_out.len(), 5, "{:?}", reading.left_out);
    assert!(reading.left_out.iter().all(|line| !line.contains('\x07')));
    let several = reading.registry.find("good/x").unwrap_err().to_string();
    assert_eq!(several, "'x' fits the numbers 62, 63: give the number");
    assert_eq!(reading.registry.name(tag(4, 63)), "good/63");
}

#[test]
fn large_registry_is_listed_quickly() {
    let owners: Vec<String> = (0..2000)
        .map(|id| {
            let activities: Vec<String> = (1..=30)
                .map(|a| format!(r#"{{"activityName":"a{a}","activityId":{a}}}"#))
                .collect();
            format!(r#"{{"expName":"o{id}","expId":{id},"activities":[{}]}}"#, activities.join(","))
        })
        .collect();
    let json = format!(r#"{{"experiments":[{}]}}"#, owners.join(","));
    let reading = read(&json).unwrap();
    assert_eq!(reading.left_out.len(), LEFT_OUT_MAX + 1);
    assert_eq!(reading.left_out.last().unwrap(), "957 more entries");
    let names: Vec<String> =
        reading.registry.tags().map(|tag| reading.registry.name(tag)).collect();
    assert_eq!((names.len(), names.last().unwrap().as_str()), (1023 * 30, "o1023/a30"));
}

#[test]
fn malformed_registry_is_refused() {
    for (json, words) in [
        ("", "not the JSON of a scitags registry"),
        ("<html>", "not the JSON"),
        ("{}", "missing field `experiments`"),
        (r#"{"version": 2, "experiments": []}"#, "update penstock"),
        (r#"{"version": 1, "experiments": []}"#, "no experiment"),
        (r#"{"experiments": [{"expName": "a"}]}"#, "missing field `expId`"),
        (r#"{"experiments": [{"expName": "a", "expId": -1}]}"#, "invalid value"),
        (r#"{"experiments": [{"expName": "a", "expId": "1"}]}"#, "invalid type"),
    ] {
        let line = read(json).unwrap_err().to_string();
        assert!(line.contains(words), "{json}: {line}");
    }
    let long = vec![b' '; REGISTRY_BYTES_MAX + 1];
    assert_eq!(Registry::read(&long), Err(RegistryError::TooLong(REGISTRY_BYTES_MAX + 1)));
    let deep = format!(r#"{{"x": {}"#, "[".repeat(100_000));
    assert!(matches!(read(&deep), Err(RegistryError::Json(_))));
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Registry::read(&bytes);
    }

    #[test]
    fn changed_registry_never_panics(at in 0..BUILTIN.len(), byte: u8) {
        let mut bytes = BUILTIN.to_vec();
        bytes[at] = byte;
        if let Ok(reading) = Registry::read(&bytes) {
            for tag in reading.registry.tags() {
                prop_assert_eq!(reading.registry.find(&reading.registry.name(tag)), Ok(tag));
            }
        }
    }

    #[test]
    fn lookup_never_panics(text in "\\PC{0,40}", more in "[a-z0-9/_ -]{0,30}") {
        let registry = Registry::builtin();
        let _ = registry.find(&text);
        if let Ok(tag) = registry.find(&more) {
            prop_assert_eq!(registry.find(&registry.name(tag)), Ok(tag));
        }
    }
}
