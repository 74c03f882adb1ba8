//! What transfers leave behind that do not come back: their own agent removes it, and nothing else.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{
    Agent, House, Random, Run, assert_no_leftovers, assert_same, parts, until, write_tree,
};

fn start(house: &House, agent: &Agent) -> Run {
    let options = ["-r", "--rate", "24M", "--block", "64KiB", "--memory", "512KiB"];
    Run::start(house.cp(&options).arg(house.source.join("data")).arg(agent.url("")))
}

/// A copy that died in the middle with its agent; where that listened, and something that looks like a
/// small file of the copy that was not whole.
fn died(house: &House) -> (String, PathBuf) {
    let mut agent = house.agent();
    write_tree(&mut Random::seeded(71), &house.source.join("data"), 3, 40);
    let client = start(house, &agent);
    until("the middle", Duration::from_secs(20), || {
        let running = agent.transfers(&house.state);
        let moved = running.first()?["moved_bytes"].as_u64()?;
        (moved > 2 << 20 && house.root.join("data/deep/small1").exists()).then_some(())
    });
    agent.kill();
    client.kill();
    // The second half of a journal's name is in the names of small files that are not whole.
    let journals = fs::read_dir(house.state.join("transfers")).unwrap();
    let journal = journals
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.ends_with(".journal"))
        .unwrap();
    let command = &journal[16..32];
    let small = house.root.join(format!("data/deep/.penstock-{command}-00112233445566778899.part"));
    fs::write(&small, "half of it").unwrap();
    (agent.listen.clone(), small)
}

#[test]
fn what_is_abandoned_is_removed_and_nothing_else() {
    let house = House::new();
    let (_, small) = died(&house);
    let foreign = [
        house.root.join("data/deep/.penstock-0123456789abcdef-00112233445566778899.part"),
        house.root.join("data/deep/notes.part"),
    ];
    foreign.iter().for_each(|path| fs::write(path, "not its own").unwrap());
    let names = || fs::read_dir(house.root.join("data/deep")).unwrap().count();
    let before = names();
    let _agent =
        Agent::start(&house.state, &house.root, "127.0.0.1:0", &["--keep-unfinished", "1s"]);
    until("it is removed", Duration::from_secs(20), || {
        fs::read_dir(house.state.join("transfers")).unwrap().next().is_none().then_some(())
    });
    assert_eq!(parts(&house.root), [foreign[0].strip_prefix(&house.root).unwrap()]);
    assert!(!small.exists() && foreign[1].exists());
    assert_eq!(names(), before - 1);
}

/// The same command goes on from what its first run left, and leaves nothing of either.
#[test]
fn what_comes_back_finds_its_own() {
    let house = House::new();
    let (listen, small) = died(&house);
    let agent = Agent::start(&house.state, &house.root, &listen, &[]);
    let done = start(&house, &agent).wait().good();
    assert!(done.number("resumed_bytes") > 0, "{done:?}");
    assert!(!small.exists());
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);
}
