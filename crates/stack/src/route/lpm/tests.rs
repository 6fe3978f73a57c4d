use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;

/// One step of a random sequence of operations on a map.
#[derive(Clone, Debug)]
enum Step<A> {
    Insert(A, u8, u32),
    /// Removes the prefix of an earlier insertion, which may have been removed already.
    Remove(prop::sample::Index),
    RemoveOther(A, u8),
    /// Looks up the address of an inserted prefix, and another address.
    Lookup(prop::sample::Index, A),
    /// Keeps a clone of the map, which later changes must not affect.
    Snapshot,
}

/// Generates addresses of which half differ in a few bits only, so that prefixes nest, share nodes
/// and diverge at different levels.
fn v4() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![any::<u32>(), any::<u32>().prop_map(|bits| bits & 0xc003_0103)]
}

fn v6() -> impl Strategy<Value = u128> + Clone {
    let few = any::<u128>().prop_map(|bits| bits & 0xe000_0003_0000_0001_0010_0000_0000_0003);
    prop_oneof![any::<u128>(), few]
}

fn steps<A: Address>(
    address: impl Strategy<Value = A> + Clone + 'static,
) -> impl Strategy<Value = Vec<Step<A>>> {
    let len = || prop_oneof![0..=u8::try_from(A::BITS).expect("128"), Just(24), Just(32)];
    let insert = (address.clone(), len(), any::<u32>());
    let step = prop_oneof![
        6 => insert.prop_map(|(prefix, len, value)| Step::Insert(prefix, len, value)),
        3 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => (address.clone(), len()).prop_map(|(prefix, len)| Step::RemoveOther(prefix, len)),
        6 => (any::<prop::sample::Index>(), address).prop_map(|(at, noise)| Step::Lookup(at, noise)),
        1 => Just(Step::Snapshot),
    ];
    vec(step, 0..120)
}

type Model<A> = BTreeMap<(A, u8), u32>;

/// Returns length and value of all prefixes of `model` that contain the address, in ascending order
/// of length.
fn matches<A: Address + Ord>(model: &Model<A>, address: A) -> Vec<(u8, u32)> {
    let mut found: Vec<_> = model
        .iter()
        .filter(|&(&(prefix, len), _)| address.masked(len.into()) == prefix)
        .map(|(&(_, len), &value)| (len, value))
        .collect();
    found.sort_unstable();
    found
}

fn check<A: Address + Ord>(lpm: &Lpm<A, u32>, model: &Model<A>, address: A) {
    let expected = matches(model, address);
    let found = lpm.lookup(address).map(|found| (found.len, *found.value));
    assert_eq!(found, expected.last().copied());
    let mut all = Vec::new();
    lpm.for_each_match(address, |len, value| all.push((len, *value)));
    assert_eq!(all, expected);
}

/// Checks that the map lists the prefixes of the model, and needs the same memory as a map into
/// which only these prefixes were inserted.
fn check_all<A: Address + Ord>(lpm: &Lpm<A, u32>, model: &Model<A>) {
    let mut listed = Vec::new();
    lpm.for_each(|prefix, len, value| listed.push(((prefix, len), *value)));
    let expected: Vec<_> = model.iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(listed, expected);
    assert_eq!(lpm.len(), model.len());
    let mut fresh = Lpm::new();
    for (&(prefix, len), &value) in model.iter().rev() {
        fresh.insert(prefix, len, value);
    }
    assert_eq!(fresh.memory(), lpm.memory(), "removal left nodes behind");
}

fn play<A: Address + Ord>(steps: Vec<Step<A>>) {
    let (mut lpm, mut model) = (Lpm::new(), Model::new());
    let mut snapshots = Vec::new();
    let mut seen: Vec<(A, u8)> = Vec::new();
    for step in steps {
        match step {
            Step::Insert(prefix, len, value) => {
                let key = (prefix.masked(len.into()), len);
                assert_eq!(lpm.insert(prefix, len, value), model.insert(key, value));
                assert_eq!(lpm.get(prefix, len), Some(&value));
                seen.push(key);
            }
            Step::Remove(at) if !seen.is_empty() => {
                let (prefix, len) = *at.get(&seen);
                assert_eq!(lpm.remove(prefix, len), model.remove(&(prefix, len)));
                assert_eq!(lpm.get(prefix, len), None);
            }
            Step::RemoveOther(prefix, len) => {
                let key = (prefix.masked(len.into()), len);
                assert_eq!(lpm.get(key.0, len), model.get(&key));
                assert_eq!(lpm.remove(prefix, len), model.remove(&key));
            }
            Step::Lookup(at, noise) if !seen.is_empty() => {
                let (prefix, _) = *at.get(&seen);
                check(&lpm, &model, prefix);
                check(&lpm, &model, noise);
            }
            Step::Snapshot => snapshots.push((lpm.clone(), model.clone())),
            Step::Remove(_) | Step::Lookup(..) => {}
        }
    }
    snapshots.push((lpm, model));
    for (lpm, model) in &snapshots {
        check_all(lpm, model);
        for &(prefix, _) in &seen {
            check(lpm, model, prefix);
        }
    }
}

proptest! {
    /// Lookups in the map, and in clones made between the changes, must agree with a linear scan
    /// over the prefixes.
    #[test]
    fn the_map_agrees_with_a_list_of_ipv4_prefixes(steps in steps(v4())) {
        play(steps);
    }

    #[test]
    fn the_map_agrees_with_a_list_of_ipv6_prefixes(steps in steps(v6())) {
        play(steps);
    }
}

#[test]
fn every_length_matches_at_its_first_and_last_address() {
    for len in 0..=32_u8 {
        let prefix = 0x5555_5555_u32.masked(len.into());
        let mut lpm = Lpm::new();
        lpm.insert(prefix, len, len);
        let last = prefix | u32::MAX.checked_shr(len.into()).unwrap_or(0);
        for address in [prefix, last] {
            assert_eq!(lpm.lookup(address).map(|found| found.len), Some(len));
        }
        let beside = prefix.wrapping_sub(1);
        assert_eq!(lpm.lookup(beside).is_some(), len == 0, "{len}");
        assert_eq!(lpm.remove(prefix, len), Some(len));
        assert!(lpm.is_empty() && lpm.lookup(prefix).is_none());
    }
}

/// Returns random prefixes from a fixed seed, with the distribution of prefix lengths in the
/// routing table of the Internet.
fn internet(routes: usize) -> Vec<(u32, u8)> {
    let mut state = 0x9e37_79b9_u32;
    let mut draw = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut prefixes = std::collections::BTreeSet::new();
    while prefixes.len() < routes {
        // Frequency of each length per 1,000 prefixes, from the routing reports of 2024.
        let len = match draw() % 1000 {
            0..600 => 24,
            600..710 => 23,
            710..830 => 22,
            830..880 => 21,
            880..925 => 20,
            925..955 => 19,
            955..970 => 18,
            970..980 => 17,
            980..993 => 16,
            _ => 8 + u8::try_from(draw() % 8).unwrap_or(0),
        };
        // Addresses from 1.0.0.0 to 223.255.255.255, the announced unicast space. Most prefixes
        // have neighbors that are announced, too.
        let block = (draw() % 0xdf_0000) << 8 & 0xffff_e000 | draw() & 0x1fff;
        prefixes.insert((block.wrapping_add(0x0100_0000).masked(len.into()), len));
    }
    prefixes.into_iter().collect()
}

/// Bounds the memory per route, and the number of nodes that a lookup visits.
#[test]
fn a_million_routes_take_less_than_44_bytes_each() {
    let routes = internet(1_000_000);
    let mut lpm = Lpm::new();
    for &(prefix, len) in &routes {
        lpm.insert(prefix, len, Arc::new(()));
    }
    let (nodes, bytes) = lpm.memory();
    let per_route = bytes as f64 / routes.len() as f64;
    assert!(per_route < 44.0, "{nodes} nodes, {per_route:.1} bytes per route");
    let depth = routes.iter().step_by(997).map(|&(prefix, _)| {
        let mut nodes = 0;
        let mut next = lpm.root.as_deref();
        while let Some(node) = next.filter(|node| node.covers(prefix)) {
            nodes += 1;
            next = node.child(node.chunk(prefix));
        }
        nodes
    });
    assert!(depth.max() <= Some(6));
}

/// A change while readers use a clone copies the nodes from the root to the changed prefix and no
/// others: of the root's children, only one is copied.
#[test]
fn a_change_beside_a_clone_copies_one_child_of_the_root() {
    let mut lpm = Lpm::new();
    for (prefix, len) in internet(20_000) {
        lpm.insert(prefix, len, 0);
    }
    let clone = lpm.clone();
    lpm.insert(0x0a01_0203, 32, 1);
    let shared = |a: &Arc<Node<u32, u32>>, b: &Arc<Node<u32, u32>>| Arc::ptr_eq(a, b);
    let (old, new) = (
        clone.root.as_ref().expect("the table has a root"),
        lpm.root.as_ref().expect("the table has a root"),
    );
    assert!(!shared(old, new));
    let copied = new.children.iter().filter(|child| !old.children.iter().any(|c| shared(c, child)));
    assert_eq!(copied.count(), 1);
}
