//! All slices that can be made of a few bytes in a few steps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::page::Slice;
use crate::pool::{Domain, DomainConfig, Pool};

/// The bytes of the first slice.
const BYTES: &[u8] = b"abcd";

/// Number of operations applied one after the other.
const DEPTH: usize = 3;

fn with_slice(test: impl FnOnce(&mut Pool, Slice)) {
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    let cursor = pool.cursor().expect("memory");
    cursor.unused()[..BYTES.len()].copy_from_slice(BYTES);
    let slice = cursor.carve(BYTES.len());
    test(&mut pool, slice);
    drop(pool);
    assert_eq!(domain.stats().pages_live, 0, "references are left");
}

/// Applies every operation to `slice`, whose bytes are `expected`, and `depth` further operations
/// to the results. Returns the number of slices seen.
fn explore(pool: &mut Pool, slice: Slice, expected: &[u8], depth: usize) -> usize {
    assert_eq!(slice.bytes(), expected);
    assert_eq!((slice.len(), slice.len_u32() as usize), (expected.len(), expected.len()));
    let mut seen = 1;
    if depth > 0 {
        seen += advances(pool, &slice, expected, depth - 1);
        seen += truncations(pool, &slice, expected, depth - 1);
        seen += parts(pool, &slice, expected, depth - 1);
        seen += covers(pool, &slice, expected, depth - 1);
    }
    pool.put_slice(slice);
    seen
}

fn advances(pool: &mut Pool, slice: &Slice, expected: &[u8], depth: usize) -> usize {
    let each = (0..expected.len()).map(|count| {
        let mut rest = slice.share();
        assert_eq!(rest.advance(count) as usize, count);
        explore(pool, rest, &expected[count..], depth)
    });
    each.sum()
}

fn truncations(pool: &mut Pool, slice: &Slice, expected: &[u8], depth: usize) -> usize {
    let each = (1..=expected.len()).map(|len| {
        let mut first = slice.share();
        assert_eq!(first.truncate(len) as usize, expected.len() - len);
        explore(pool, first, &expected[..len], depth)
    });
    each.sum()
}

fn parts(pool: &mut Pool, slice: &Slice, expected: &[u8], depth: usize) -> usize {
    let mut seen = 0;
    for skip in 0..expected.len() {
        for len in 1..=expected.len() - skip {
            let mut whole = slice.share();
            whole.hold(1);
            let part = whole.part(skip, len);
            seen += explore(pool, part, &expected[skip..skip + len], depth);
            // Taking a part leaves the whole slice as it was.
            seen += explore(pool, whole, expected, 0);
        }
    }
    seen
}

/// Of a slice cut in two, only the second part follows the first. Joined, they are the whole slice
/// with the references of both.
fn covers(pool: &mut Pool, slice: &Slice, expected: &[u8], depth: usize) -> usize {
    let each = (1..expected.len()).map(|at| {
        let (mut first, mut second) = (slice.share(), slice.share());
        first.truncate(at);
        second.advance(at);
        assert!(first.is_followed_by(&second) && !second.is_followed_by(&first));
        let Err(first) = second.cover(first) else { panic!("the first follows the second") };
        let mut whole = first;
        assert_eq!(whole.cover(second).expect("it follows") as usize, expected.len() - at);
        explore(pool, whole, expected, depth)
    });
    each.sum()
}

#[test]
fn every_derived_slice_has_its_bytes_and_returns_its_references() {
    with_slice(|pool, slice| {
        let seen = explore(pool, slice, BYTES, DEPTH);
        assert!(seen > 3000, "{seen} slices");
    });
}

#[test]
fn no_derived_slice_is_empty_or_longer_than_its_source() {
    with_slice(|pool, mut slice| {
        slice.hold(1);
        let len = slice.len();
        let mut panics = |change: &dyn Fn(&mut Slice)| {
            catch_unwind(AssertUnwindSafe(|| change(&mut slice))).is_err()
        };
        for beyond in len..len + 3 {
            assert!(panics(&|slice| _ = slice.advance(beyond)), "advance {beyond}");
            assert!(panics(&|slice| _ = slice.truncate(beyond + 1)), "truncate {beyond}");
        }
        assert!(panics(&|slice| _ = slice.truncate(0)));
        for (skip, count) in [(0, 0), (0, len + 1), (1, len), (len, 1), (usize::MAX, 1)] {
            assert!(panics(&|slice| _ = slice.part(skip, count)), "part {skip} {count}");
        }
        assert_eq!(slice.bytes(), BYTES);
        pool.put_slice(slice);
    });
}
