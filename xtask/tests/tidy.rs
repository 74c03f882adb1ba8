//! This checkout passes `cargo xtask tidy`.

#[test]
fn this_checkout_is_tidy() {
    let faults = xtask::tidy::check(&xtask::workspace_root()).expect("the checkout can be read");
    let list: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} faults:\n{}", list.len(), list.join("\n"));
}
