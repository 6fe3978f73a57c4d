//! Models of everything two threads of this crate share, explored by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quietline-pkt --release --test loom`
//!
//! Packet bodies and page data are tracked cells in these builds: a model fails when memory is reused
//! without being ordered after the last access by its previous holder.
#![cfg(loom)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use loom::{sync::atomic::AtomicUsize, thread};
use pkt::{Domain, DomainConfig, FreeMode, Packet, PacketOwner, Pages, Payload, Pool, PoolKick};
use sync::Llist;

/// Orders that every model has at least: fewer mean that loom does not see where its threads meet.
const ORDERS_MIN: u32 = 15;

/// At most three pre-emptions per execution, so that each model ends in seconds.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    let tried = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let tried = tried.load(Ordering::Relaxed);
    assert!(tried >= ORDERS_MIN, "only {tried} orders were tried");
}

/// Threads pass here in any order, and loom tries them all. It does not where one thread only looks at a word and another looks at it
/// before it changes it: of two looks loom remembers the later one, which is the second thread's own.
#[derive(Clone)]
struct Crossing(loom::sync::Arc<AtomicUsize>);

impl Crossing {
    fn new() -> Self {
        Self(loom::sync::Arc::new(AtomicUsize::new(0)))
    }

    fn pass(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One for each of two threads.
fn crossings() -> (Crossing, Crossing) {
    let crossing = Crossing::new();
    (crossing.clone(), crossing)
}

/// Descriptors in one slab, in models.
const DESCRIPTORS: usize = 4;
/// Bytes of a page, in models; two make a slab.
const PAGE_BYTES: usize = 4096;

fn domain() -> Domain {
    Domain::new(DomainConfig::default())
}

/// All descriptors are at home: they can be had at once, without another slab.
fn assert_complete(domain: &Domain, pool: &mut Pool) {
    assert_eq!(domain.balance(), 0);
    let slabs = pool.stats().slab_refill;
    let held: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
    assert_eq!((held.len(), pool.stats().slab_refill), (DESCRIPTORS, slabs));
    held.into_iter().for_each(|packet| pool.free(packet));
}

/// Two pools that free by `mode`.
fn pools(domain: &Domain, mode: FreeMode) -> (Pool, Pool) {
    let (mut here, mut there) = (domain.pool(), domain.pool());
    here.set_free_mode(mode);
    there.set_free_mode(mode);
    (here, there)
}

fn read(packet: &Packet) -> usize {
    packet.slices().map(|part| usize::from(part[0])).sum()
}

#[test]
fn dropped_elsewhere_and_reused_at_home() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let (first, second) = (packets.pop(), packets.pop());
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            first.expect("memory").push(20).fill(1);
            there.pass();
            second.expect("memory").push(20).fill(2);
            there.pass();
        });
        crossing.pass();
        // Dry: takes from the return list what is there, else a slab.
        let mut reused = pool.alloc().expect("memory");
        reused.push(20).fill(3);
        crossing.pass();
        pool.free(reused);
        other.join().expect("no panic");
        packets.into_iter().for_each(|packet| pool.free(packet));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn freed_through_a_foreign_pool() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Home);
        let packet = here.alloc().expect("memory");
        let mine = there.alloc().expect("memory");
        let other = thread::spawn(move || {
            there.free(packet);
            there.drain_returns();
            there
        });
        here.free(mine);
        here.drain_returns();
        let mut there = other.join().expect("no panic");
        here.drain_returns();
        there.drain_returns();
        assert_complete(&domain, &mut here);
        assert_complete(&domain, &mut there);
    });
}

#[test]
fn a_parcel_comes_home() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Defer { max: 0 });
        let packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| here.alloc()).collect();
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            // Three fill a parcel in models; the fourth starts another, which the drop sends.
            for mut packet in packets {
                packet.push(20).fill(1);
                there.free(packet);
                crossed.pass();
            }
        });
        crossing.pass();
        let mut reused = here.alloc().expect("memory");
        reused.push(20).fill(2);
        crossing.pass();
        here.free(reused);
        other.join().expect("no panic");
        here.drain_returns();
        assert_complete(&domain, &mut here);
    });
}

#[derive(Default)]
struct Kicks(AtomicU32);

impl PoolKick for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// SC9: two cores send packets home while the home drains. All of them die, where they belong or where too many wait, and
/// between two drains at most one of them kicks.
#[test]
fn deferred_packets_of_two_cores_come_home() {
    model(|| {
        let domain = domain();
        let (mut here, mut first) = pools(&domain, FreeMode::Defer { max: 3 });
        let mut second = domain.pool();
        second.set_free_mode(FreeMode::Defer { max: 3 });
        let kicks = Arc::new(Kicks::default());
        here.set_kick(Some(Arc::<Kicks>::clone(&kicks)));
        let mut packets: Vec<_> = (0..3).filter_map(|_| here.alloc()).collect();
        let (one, two) = (packets.pop(), packets.pop());
        let other = thread::spawn(move || {
            first.free(one.expect("memory"));
            first.free(two.expect("memory"));
            first
        });
        second.free(packets.pop().expect("memory"));
        here.drain_returns();
        let mut first = other.join().expect("no panic");
        first.drain_returns();
        second.drain_returns();
        here.drain_returns();
        assert!(kicks.0.load(Ordering::Relaxed) <= 2, "at most once for each drain");
        assert_complete(&domain, &mut here);
    });
}

/// BUG-SC-10: the home is left while packets are on their way to it. Either the one who leaves ends them, or the one who
/// sent them.
#[test]
fn a_home_is_left_while_packets_come() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Defer { max: 64 });
        let packet = here.alloc().expect("memory");
        let other = thread::spawn(move || {
            there.free(packet);
            there.drain_returns();
        });
        drop(here);
        other.join().expect("no panic");
        assert_eq!(domain.stats().packets_deferred, 0, "nothing waits for nobody");
        assert_eq!(domain.balance(), 0);
    });
}

/// A descriptor changes its home in every hand, and the depot passes it on.
#[test]
fn descriptors_move_through_the_depot() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Unified);
        let packets: Vec<_> = (0..2 * DESCRIPTORS).filter_map(|_| here.alloc()).collect();
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            // More than a magazine: some go to the depot.
            for mut packet in packets {
                packet.push(20).fill(1);
                there.free(packet);
                crossed.pass();
            }
            there
        });
        crossing.pass();
        // Dry: from the depot if something is there, else a slab.
        let mut packet = here.alloc().expect("memory");
        packet.push(20).fill(2);
        here.free(packet);
        drop(other.join().expect("no panic"));
        assert_eq!(domain.balance(), 0);
    });
}

/// The companion's half makes its way to another home than the original's.
#[test]
fn a_pair_is_adopted_by_whoever_frees_it_last() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Unified);
        let packet = here.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut here).expect("memory");
        let (crossing, crossed) = crossings();
        let other = thread::spawn(move || {
            crossed.pass();
            there.free(clone);
            crossed.pass();
            let mut reused = there.alloc().expect("memory");
            reused.push(20).fill(1);
            there.free(reused);
        });
        crossing.pass();
        here.free(packet);
        crossing.pass();
        let mut reused = here.alloc().expect("memory");
        reused.push(20).fill(2);
        here.free(reused);
        other.join().expect("no panic");
        drop(here);
        assert_eq!(domain.balance(), 0);
    });
}

#[test]
fn both_halves_of_a_pair_die_at_once() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        assert!(packet.clone_busy());
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        pool.free(packet);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_is_used_again_once_the_clone_is_gone() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        let busy = packet.clone_busy();
        crossing.pass();
        let again = packet.clone_in(&mut pool).expect("memory");
        crossing.pass();
        assert!(busy || packet.clone_busy(), "not busy, so the next clone is the companion");
        other.join().expect("no panic");
        pool.free(packet);
        drop(again);
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_clone_leaves_while_its_original_dies() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let mut clone = packet.clone_in(&mut pool).expect("memory");
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            // The peer's thread: the clone has left and is still read.
            there.pass();
            clone.orphan();
            there.pass();
            clone.push(20).fill(1);
            drop(clone);
        });
        crossing.pass();
        pool.free(packet);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_is_used_again_once_the_clone_has_left() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_fclone().expect("memory");
        let mut clone = packet.clone_in(&mut pool).expect("memory");
        let mark = clone.take_clone_mark();
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(mark);
            there.pass();
        });
        crossing.pass();
        let busy = packet.clone_busy();
        crossing.pass();
        let again = packet.clone_in(&mut pool).expect("memory");
        crossing.pass();
        assert!(busy || packet.clone_busy(), "not busy, so the next clone is the companion");
        other.join().expect("no panic");
        pool.free(packet);
        drop((clone, again));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_pair_dies_away_from_home() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (2..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let mut packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let first = thread::spawn(move || {
            packet.push(20).fill(1);
            drop(packet);
        });
        let second = thread::spawn(move || drop(clone));
        let mut reused = pool.alloc().expect("memory");
        reused.push(20).fill(2);
        packets.push(reused);
        first.join().expect("no panic");
        second.join().expect("no panic");
        packets.into_iter().for_each(|packet| pool.free(packet));
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

#[test]
fn a_full_page_is_retired_after_its_last_reader() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; PAGE_BYTES]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        pool.free(packet);
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            assert_eq!(read(&clone), 1);
            there.pass();
            drop(clone);
            there.pass();
        });
        crossing.pass();
        // Retires the page, and opens it again when it comes free by that.
        let packet = pool.alloc_from(&[2; 200]).expect("memory");
        crossing.pass();
        pool.free(packet);
        other.join().expect("no panic");
        drop(pool);
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

/// A slot may be finished with a pool that is not its home: then the cursor is abroad.
#[test]
fn a_page_is_carved_and_retired_abroad() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = (domain.pool(), domain.pool());
        let slot = here.rx_slot(3000).expect("memory");
        let queue = Arc::new(Llist::new());
        let to_here = Arc::<Llist<Packet>>::clone(&queue);
        let other = thread::spawn(move || {
            to_here.push(slot.finish(&mut there, 300));
            // The rest of the same page.
            let mut slot = there.rx_slot(100).expect("memory");
            slot.io_slices(&mut ArrayVec::<_, 4>::new());
            drop(slot);
        });
        for packet in queue.take_all() {
            assert_eq!(read(&packet), 0);
            here.free(packet);
        }
        for _ in 0..2 {
            let packet = here.alloc_from(&[1; PAGE_BYTES - 512]).expect("memory");
            here.free(packet);
        }
        other.join().expect("no panic");
        drop((queue, here));
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

#[test]
fn a_page_is_reused_after_its_last_reader() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; 3000]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        let other = thread::spawn(move || {
            assert_eq!(read(&clone), 1);
            drop(clone);
        });
        assert_eq!(read(&packet), 1);
        pool.free(packet);
        // Uses up the page and the slab's other one, so that the first is wanted again.
        for _ in 0..3 {
            let packet = pool.alloc_from(&[2; 3000]).expect("memory");
            pool.free(packet);
        }
        other.join().expect("no panic");
        drop(pool);
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

#[test]
fn the_last_slice_of_a_retired_page() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[1; 3000]).expect("memory");
        let clone = packet.clone_in(&mut pool).expect("memory");
        // Retires the cursors: the slices alone keep the page.
        drop(pool);
        let other = thread::spawn(move || {
            assert_eq!(read(&clone), 1);
            drop(clone);
        });
        assert_eq!(read(&packet), 1);
        drop(packet);
        other.join().expect("no panic");
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
        let mut pool = domain.pool();
        let packet = pool.alloc_from(&[2; 9000]).expect("memory");
        pool.free(packet);
        assert_eq!(pool.stats().slab_refill, 3, "both pages of the first slab were found again");
    });
}

/// A superframe comes apart away from home: the references of its pieces are taken at once, and some stay with what was not
/// cut, while the packet that shares the page dies where the page is being carved.
#[test]
fn the_pieces_of_a_superframe_give_their_page_back() {
    model(|| {
        let domain = domain();
        let (mut here, mut there) = pools(&domain, FreeMode::Home);
        let packet = here.alloc_from(&[1; 3000]).expect("memory");
        let mut clone = packet.clone_in(&mut here).expect("memory");
        let other = thread::spawn(move || {
            let mut cutter = clone.cut(&mut there, 0, 1000);
            let (mut first, _) = cutter.next_piece(&mut there).expect("memory");
            let (second, _) = cutter.next_piece(&mut there).expect("memory");
            first.append_frags_of(&mut there, second).expect("it follows in the page");
            drop(clone);
            assert_eq!((read(&first), first.frag_count()), (1, 1));
            drop(first);
            there
        });
        assert_eq!(read(&packet), 1);
        here.free(packet);
        // Uses up the page and the slab's other one, so that the first is wanted again.
        for _ in 0..3 {
            let packet = here.alloc_from(&[2; 3000]).expect("memory");
            here.free(packet);
        }
        let there = other.join().expect("no panic");
        drop((here, there));
        assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0));
    });
}

#[test]
fn a_pool_is_adopted_while_its_packets_come_home() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut packets: Vec<_> = (0..DESCRIPTORS).filter_map(|_| pool.alloc()).collect();
        let packet = packets.pop();
        let in_other = domain.clone();
        drop(pool);
        let other = thread::spawn(move || {
            let mut pool = in_other.pool();
            let packet = pool.alloc().expect("memory");
            pool.free(packet);
        });
        drop(packet);
        drop(packets);
        other.join().expect("no panic");
        assert_eq!((domain.balance(), domain.stats().pools), (0, 1));
    });
}

#[derive(Default)]
struct Owner(AtomicU32);

impl PacketOwner for Owner {
    fn on_complete(&self, _truesize: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn domain_dies_while_a_packet_does() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let owner = Arc::new(Owner::default());
        let mut packet = pool.alloc_from(&[1; 200]).expect("memory");
        packet.set_owner(Arc::<Owner>::clone(&owner));
        // Either all memory is home when the domain looks, and is freed, or it is leaked; in both cases the
        // packet's way home leads through memory that exists.
        let other = thread::spawn(move || drop(packet));
        drop((pool, domain));
        other.join().expect("no panic");
        assert_eq!(owner.0.load(Ordering::Relaxed), 1);
    });
}

/// Two packets that hold a lent page die on two threads while its owner waits to write it again.
#[test]
fn lent_pages_come_back_when_the_last_packet_dies() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let mut pages = Pages::new(&mut pool, 8).expect("memory");
        let mut packet = || {
            let mut packet = pool.alloc().expect("memory");
            assert_eq!(pages.range(0..8).append_to(&mut packet, &mut pool), 8);
            packet
        };
        let (first, second) = (packet(), packet());
        let other = thread::spawn(move || {
            assert_eq!(read(&first), 0);
        });
        pages.recall();
        assert_eq!(read(&second), 0);
        drop(second);
        while !pages.is_back() {
            let token = pages.events().prepare();
            if pages.is_back() {
                pages.events().cancel(token);
            } else {
                let _ = pages.events().wait(token, None);
            }
        }
        assert!(pages.collect());
        pages.chunks_mut().expect("nobody holds the page").flatten().for_each(|byte| *byte = 1);
        other.join().expect("no panic");
        drop(pages);
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}

/// The owner drops lent pages while a packet still holds one: it goes home, and the shelf ends with it.
#[test]
fn lent_pages_outlive_their_owner() {
    model(|| {
        let domain = domain();
        let mut pool = domain.pool();
        let pages = Pages::new(&mut pool, 8).expect("memory");
        let mut packet = pool.alloc().expect("memory");
        assert_eq!(pages.range(0..8).append_to(&mut packet, &mut pool), 8);
        let (crossing, there) = crossings();
        let other = thread::spawn(move || {
            there.pass();
            drop(packet);
            there.pass();
        });
        crossing.pass();
        drop(pages);
        crossing.pass();
        other.join().expect("no panic");
        pool.drain_returns();
        assert_complete(&domain, &mut pool);
    });
}
