use super::*;

const COSTS: Costs = Costs { dirty_ns: 83.0, rmw_ns: 0.0, ..Costs::PUBLISHED };
/// Length of a run in the model's time, 10 ms.
const RUN_NS: f64 = 1e7;

/// Relative distance of a figure from the wanted one.
fn error(found: f64, wanted: f64) -> f64 {
    (found / wanted - 1.0).abs()
}

#[test]
fn cpus_without_a_shared_line_scale_with_their_number() {
    let mut layout = Layout::new();
    let rate = |cpus: usize, layout: &mut Layout| {
        let programs = (0..cpus).map(|_| Program::new().think(99.0).rmw(layout.line("own")));
        let programs = programs.collect();
        Machine::new(COSTS, layout, programs).run(RUN_NS, 1).rounds_per_second()
    };
    let one = rate(1, &mut layout);
    assert!(error(one, 1e7) < 0.01, "{one}");
    assert!(error(rate(64, &mut layout), 64.0 * one) < 0.01);
}

/// Two atomic operations per packet on one line: 1 / (2 × 83 ns) = 6 million packets per second,
/// however many CPUs.
#[test]
fn a_line_that_every_cpu_writes_twice_per_packet_bounds_the_packet_rate() {
    let mut layout = Layout::new();
    let count = layout.line("refcount");
    let program = Program::new().think(300.0).rmw(count).think(300.0).rmw(count);
    for cpus in [16, 48, 112] {
        let machine = Machine::new(COSTS, &layout, vec![program.clone(); cpus]);
        let totals = machine.run(RUN_NS, 1);
        assert!(error(totals.rounds_per_second(), 1e9 / 166.0) < 0.02, "{cpus}: {totals:?}");
        assert!(totals.stalled(0) > 0.3, "{cpus}");
    }
}

#[test]
fn readers_of_a_line_that_no_cpu_writes_do_not_wait_for_each_other() {
    let mut layout = Layout::new();
    let fields = layout.line("fields");
    let program = Program::new().think(99.0).read(fields);
    let totals = Machine::new(COSTS, &layout, vec![program; 100]).run(RUN_NS, 1);
    assert!(error(totals.rounds_per_second(), 100.0 * 1e7) < 0.01, "{totals:?}");
    assert_eq!(totals.transfers(fields), 100);
}

#[test]
fn a_seed_repeats_its_run() {
    let mut layout = Layout::new();
    let line = layout.line("line");
    let machine = Machine::new(COSTS, &layout, vec![Program::new().think(50.0).rmw(line); 8]);
    assert_eq!(machine.run(1e5, 4), machine.run(1e5, 4));
    assert_ne!(machine.run(1e5, 4), machine.run(1e5, 5));
    assert_eq!(layout.name(line), "line");
}

/// The store buffer hides the transfer of a stored line, until an atomic operation waits for it.
#[test]
fn a_cpu_waits_for_its_stores_at_an_atomic_operation_only() {
    let mut layout = Layout::new();
    let (shared, own) = (layout.line("shared"), layout.line("own"));
    let other = Program::new().write(shared).think(1000.0);
    let time = |program: &Program| {
        let machine = Machine::new(COSTS, &layout, vec![program.clone(), other.clone()]);
        1e9 / machine.run(RUN_NS, 1).rounds_per_second_of([0])
    };
    let stores = Program::new().think(500.0).write(shared);
    assert!(error(time(&stores), 501.0) < 0.01, "{}", time(&stores));
    let waits = stores.think(1.0).rmw(own);
    // Nearly every second round of this CPU lies after a store of the other one.
    assert!(time(&waits) > 530.0, "{}", time(&waits));
}

/// A store that waits delays no computing, unless the computing stores so often that the buffer is
/// full before: 83 ns of transfer, 55 places of 1 ns each.
#[test]
fn stores_of_the_computing_time_wait_behind_a_store_of_a_shared_line() {
    let mut layout = Layout::new();
    let shared = layout.line("shared");
    let time = |own_ns: f64| {
        let program = Program::new().write(shared).think(1000.0).own_stores(own_ns);
        let other = Program::new().rmw(shared).think(300.0);
        let machine = Machine::new(COSTS, &layout, vec![program, other]);
        1e9 / machine.run(RUN_NS, 1).rounds_per_second_of([0])
    };
    assert!(error(time(f64::INFINITY), 1001.0) < 0.005, "{}", time(f64::INFINITY));
    assert!(error(time(2.0), 1001.0) < 0.005, "{}", time(2.0));
    let stalled = time(1.0) - 1001.0;
    assert!((20.0..60.0).contains(&stalled), "{stalled}");
}

#[test]
fn stores_beyond_the_store_buffer_wait() {
    let mut layout = Layout::new();
    let line = layout.line("line");
    let machine = Machine::new(COSTS, &layout, vec![Program::new().write(line); 2]);
    let rate = machine.run(RUN_NS, 1).rounds_per_second();
    assert!(error(rate, 1e9 / COSTS.dirty_ns) < 0.05, "{rate}");
}

/// Without contention, a conditional increment costs a read and one atomic operation.
#[test]
fn a_compare_and_swap_is_repeated_until_it_succeeds() {
    let mut layout = Layout::new();
    let line = layout.line("count");
    let program = Program::new().think(100.0).step(Step::CompareAndSwap(line));
    let rate = |cpus| Machine::new(COSTS, &layout, vec![program.clone(); cpus]).run(RUN_NS, 1);
    let one = rate(1);
    assert!(error(one.rounds_per_second(), 1e9 / 102.0) < 0.01, "{one:?}");
    assert_eq!(one.retries(), 0.0);
    let many = rate(32);
    assert!(many.retries() > 1.0, "{}", many.retries());
    assert!(many.rounds_per_second() < one.rounds_per_second());
}

#[test]
fn a_critical_section_is_taken_in_turn() {
    let mut layout = Layout::new();
    let lock = layout.line("lock");
    let program = Program::new().think(10.0).step(Step::Critical(lock, 200.0));
    let totals = Machine::new(COSTS, &layout, vec![program; 20]).run(RUN_NS, 1);
    assert!(error(totals.rounds_per_second(), 1e9 / 283.0) < 0.02, "{totals:?}");
}

#[test]
fn a_cpu_that_is_faster_than_its_packets_is_idle() {
    let layout = Layout::new();
    let program = Program::new().step(Step::Arrival(1000.0)).think(350.0);
    let totals = Machine::new(COSTS, &layout, vec![program; 4]).run(RUN_NS, 1);
    assert!(error(totals.rounds_per_second(), 4e6) < 0.02, "{totals:?}");
    assert!(error(totals.load(), 0.35) < 0.03, "{}", totals.load());
}
