//! Arranges the nodes of a site in rows: hosts below their switches, and those below the switches that connect
//! them.

use std::collections::HashMap;

use crate::{NodeKind, Topology};

/// Rows with more nodes are broken, at this length or more.
const BREAK_NODES_MIN: usize = 12;

/// Neighbours of each node with the rate in bits per second.
pub(super) fn neighbours(topology: &Topology) -> Vec<Vec<(usize, u64)>> {
    let mut all = vec![Vec::new(); topology.nodes.len()];
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| end.node.0);
        all[a].push((b, link.rate.0));
        all[b].push((a, link.rate.0));
    }
    all
}

pub(super) fn rows(
    topology: &Topology,
    neighbours: &[Vec<(usize, u64)>],
    members: &[usize],
) -> Vec<Vec<usize>> {
    let inside: HashMap<usize, ()> = members.iter().map(|id| (*id, ())).collect();
    let switch = |id: usize| topology.nodes[id].kind == NodeKind::Switch;
    let switches: Vec<usize> = members.iter().copied().filter(|id| switch(*id)).collect();
    let hosts: Vec<usize> = members.iter().copied().filter(|id| !switch(*id)).collect();
    let near = |id: usize| {
        let all = neighbours[id].iter().filter(|(other, _)| inside.contains_key(other));
        all.copied().filter(|(other, _)| switch(*other))
    };

    let tiers = tiers(&switches, neighbours, &|id| switch(id), &|id| near(id).collect());
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for id in switches {
        let tier = tiers[&id];
        rows.resize_with(rows.len().max(tier + 1), Vec::new);
        rows[tier].push(id);
    }
    rows.reverse();
    rows.push(hosts);
    rows.retain(|row| !row.is_empty());

    // Order by the neighbours above, so that fewer lines cross.
    let mut place: HashMap<usize, f64> = HashMap::new();
    for row in &mut rows {
        let wanted = |id: &usize| {
            let above: Vec<f64> =
                near(*id).filter_map(|(other, _)| place.get(&other).copied()).collect();
            if above.is_empty() { 0.5 } else { above.iter().sum::<f64>() / above.len() as f64 }
        };
        row.sort_by(|a, b| wanted(a).total_cmp(&wanted(b)));
        let count = row.len() as f64;
        place.extend(row.iter().enumerate().map(|(at, id)| (*id, (at as f64 + 0.5) / count)));
    }
    let broken = |row: Vec<usize>| {
        let most = BREAK_NODES_MIN.max((row.len() as f64).sqrt().ceil() as usize * 2);
        row.chunks(most).map(<[usize]>::to_vec).collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(broken).collect()
}

/// Distance of each switch from the hosts, or from the switches with the fewest links where there are no
/// hosts.
///
/// A leaf without hosts would land above the spines: a switch with the same neighbours at the same rates as
/// another goes into its row.
fn tiers(
    switches: &[usize],
    neighbours: &[Vec<(usize, u64)>],
    is_switch: &dyn Fn(usize) -> bool,
    near: &dyn Fn(usize) -> Vec<(usize, u64)>,
) -> HashMap<usize, usize> {
    let has_host = |id: &usize| neighbours[*id].iter().any(|(other, _)| !is_switch(*other));
    let mut row: Vec<usize> = switches.iter().copied().filter(has_host).collect();
    if row.is_empty() {
        let least = switches.iter().map(|id| near(*id).len()).filter(|links| *links > 0).min();
        row = switches.iter().copied().filter(|id| Some(near(*id).len()) == least).collect();
    }
    let mut found: HashMap<usize, usize> = HashMap::new();
    let mut alike: HashMap<Vec<(usize, u64)>, usize> = HashMap::new();
    let mut tier = 0;
    while !row.is_empty() {
        let mut next = Vec::new();
        for id in row {
            if found.contains_key(&id) {
                continue;
            }
            let mut links = near(id);
            next.extend(links.iter().map(|(other, _)| *other));
            links.sort_unstable();
            let tier = if has_host(&id) { tier } else { *alike.get(&links).unwrap_or(&tier) };
            alike.entry(links).or_insert(tier);
            found.insert(id, tier);
        }
        next.retain(|id| !found.contains_key(id));
        row = next;
        tier += 1;
    }
    switches.iter().for_each(|id| {
        found.entry(*id).or_insert(0);
    });
    found
}
