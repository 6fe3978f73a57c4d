//! The per-packet paths of this stack as the model's programs.
//!
//! Above: [`curves`](super::curves), [`control`](super::control). Below: `paths.txt`, which the
//! test `accesses` makes from traces and compares with new ones.
//!
//! A path has two CPUs, their instructions for one packet or request, and the accesses to lines
//! that both CPUs use. A line with a name in [`HOST_WIDE`] is one line for all CPUs of a machine;
//! every other one exists once for each pair of CPUs, as a connection or a core does.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{
    directory::Access,
    program::{Layout, Program, Step},
    trace::{SharedLine, Trace},
};

mod text;

pub use text::parse;

/// Structures that all connections and cores of a host share.
pub const HOST_WIDE: [&str; 10] = [
    "Dst",
    "Net",
    "Host",
    "Router",
    "TcpMemory",
    "NeighborEntry",
    "DeviceTx",
    "Attached",
    "Device",
    "CounterPage",
];

/// Accesses of the same line within so many instructions are one access of the strongest kind: the
/// line does not leave the CPU in between.
const NEAR: u32 = 100;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// Instructions that use no shared line.
    Instructions(u32),
    /// An access to a line, by its index.
    Line(usize, Access),
    /// A conditional increment of a count.
    CompareAndSwap(usize),
    /// An atomic operation on a line of the CPU's own after a write to a shared line: it waits for
    /// the write.
    Fence,
}

/// The path of a packet or a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Name of its subject.
    pub name: String,
    /// Names of its lines.
    pub lines: Vec<String>,
    /// Steps of both CPUs.
    pub cpus: [Vec<PathStep>; 2],
    /// Stores of both CPUs to lines of their own.
    pub own_stores: [u32; 2],
}

static PATHS: LazyLock<Vec<Path>> =
    LazyLock::new(|| parse(include_str!("paths.txt")).expect("paths.txt has paths"));

impl Path {
    /// All paths of `paths.txt`.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &PATHS
    }

    /// The path of a subject.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|path| path.name == name)
    }

    /// Instructions of one CPU.
    #[must_use]
    pub fn instructions(&self, cpu: usize) -> u32 {
        let count = |step: &PathStep| match step {
            PathStep::Instructions(count) => *count,
            _ => 0,
        };
        self.cpus[cpu].iter().map(count).sum()
    }

    /// Programs of `pairs` pairs of CPUs. The two CPUs of a pair follow each other, so that they
    /// are on one socket.
    #[must_use]
    pub fn programs(&self, pairs: usize, ns_per_instruction: f64) -> (Layout, Vec<Program>) {
        let mut layout = Layout::new();
        let wide: Vec<_> = self
            .lines
            .iter()
            .map(|name| is_host_wide(name).then(|| layout.line(name.clone())))
            .collect();
        let mut programs = Vec::new();
        for _ in 0..pairs {
            let lines: Vec<_> = wide
                .iter()
                .zip(&self.lines)
                .map(|(wide, name)| wide.unwrap_or_else(|| layout.line(name.clone())))
                .collect();
            for (cpu, steps) in self.cpus.iter().enumerate() {
                let computing_ns = f64::from(self.instructions(cpu)) * ns_per_instruction;
                let program = match self.own_stores[cpu] {
                    0 => Program::new(),
                    stores => Program::new().own_stores(computing_ns / f64::from(stores)),
                };
                let steps = steps.iter().map(|step| match *step {
                    PathStep::Instructions(count) => {
                        Step::Think(f64::from(count) * ns_per_instruction)
                    }
                    PathStep::Line(line, access) => Step::Line(lines[line], access),
                    PathStep::CompareAndSwap(line) => Step::CompareAndSwap(lines[line]),
                    PathStep::Fence => Step::Fence,
                });
                programs.push(steps.fold(program, Program::step));
            }
        }
        (layout, programs)
    }

    /// Makes the path of a trace: the round of the median length.
    #[must_use]
    pub fn of(name: &str, trace: &Trace, shared: &[SharedLine]) -> Self {
        let lines: Vec<String> = shared.iter().map(SharedLine::name).collect();
        let index: BTreeMap<u64, usize> =
            shared.iter().enumerate().map(|(index, line)| (line.number, index)).collect();
        let retries = name.ends_with("cas");
        let mut own_stores = [0; 2];
        let cpus = [0_u8, 1].map(|cpu| {
            let own_stores = &mut own_stores[usize::from(cpu)];
            let mut rounds = trace.rounds_of(cpu);
            rounds.sort_by_key(|parts| parts.iter().map(|part| part.instructions).sum::<u32>());
            let mut steps = Steps::default();
            for part in rounds.get(rounds.len() / 2).into_iter().flatten() {
                for traced in &part.accesses {
                    match index.get(&traced.line()) {
                        Some(&line) => steps.access(traced.at, line, traced.access),
                        None if traced.access == Access::Read => {}
                        None => {
                            *own_stores += 1;
                            if traced.access == Access::Rmw {
                                steps.fence(traced.at);
                            }
                        }
                    }
                }
                steps.end(part.instructions);
            }
            steps.finish(|line| retries && lines[line].contains("Dst count"))
        });
        Self { name: name.to_owned(), lines, cpus, own_stores }
    }
}

/// Whether a line, by the names of its structures, is one line for all CPUs.
#[must_use]
pub fn is_host_wide(line: &str) -> bool {
    let is_wide = |name: &str| {
        let first = name.split(['.', ' ']).next().unwrap_or(name);
        HOST_WIDE.contains(&first) || first.starts_with("Dst")
    };
    line.split(" + ").any(is_wide)
}

/// Steps of one CPU while they are gathered.
#[derive(Default)]
struct Steps {
    /// Accesses with the number of instructions before them, over all parts of a round. `None`: an
    /// atomic operation on a line of the CPU's own.
    accesses: Vec<(u32, Option<usize>, Access)>,
    /// Whether no atomic operation has followed the last write to a shared line.
    has_unordered: bool,
    /// Instructions of the parts that have ended.
    before: u32,
}

impl Steps {
    fn access(&mut self, at: u32, line: usize, access: Access) {
        let at = self.before + at;
        match access {
            Access::Read => {}
            Access::Write => self.has_unordered = true,
            Access::Rmw => self.has_unordered = false,
        }
        let near = self.accesses.iter_mut().rev().take_while(|(then, ..)| at - *then <= NEAR);
        let strength = |access: Access| match access {
            Access::Read => 0,
            Access::Write => 1,
            Access::Rmw => 2,
        };
        let mut same = near.filter(|(_, other, _)| *other == Some(line));
        match same.next() {
            // A second atomic operation is one more, however near.
            Some((_, _, Access::Rmw)) if access == Access::Rmw => {}
            Some((_, _, known)) => {
                if strength(access) > strength(*known) {
                    *known = access;
                }
                return;
            }
            None => {}
        }
        self.accesses.push((at, Some(line), access));
    }

    /// An atomic operation on another line.
    fn fence(&mut self, at: u32) {
        if self.has_unordered {
            self.accesses.push((self.before + at, None, Access::Rmw));
            self.has_unordered = false;
        }
    }

    const fn end(&mut self, instructions: u32) {
        self.before += instructions;
    }

    /// The steps. The first atomic operation on a line of `retries` is a conditional increment, the
    /// second one is the decrement.
    fn finish(self, retries: impl Fn(usize) -> bool) -> Vec<PathStep> {
        let (mut steps, mut at, mut gets) = (Vec::new(), 0, 0);
        for (then, line, access) in self.accesses {
            if then > at {
                steps.push(PathStep::Instructions(then - at));
                at = then;
            }
            let Some(line) = line else {
                steps.push(PathStep::Fence);
                continue;
            };
            let is_count = access == Access::Rmw && retries(line);
            gets += u32::from(is_count);
            steps.push(if is_count && gets == 1 {
                PathStep::CompareAndSwap(line)
            } else {
                PathStep::Line(line, access)
            });
        }
        if self.before > at {
            steps.push(PathStep::Instructions(self.before - at));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_path_is_read_back() {
        for path in Path::all() {
            assert_eq!(parse(&path.text()).expect("a path"), std::slice::from_ref(path));
        }
    }

    #[test]
    fn a_line_of_a_route_entry_is_one_line_for_all_connections() {
        assert!(is_host_wide("Dst count + DstTail"));
        assert!(is_host_wide("Net.orphans"));
        assert!(!is_host_wide("Connection.lock"));
        let path = Path {
            name: "made up".into(),
            lines: vec!["Dst count".into(), "Connection.lock".into()],
            cpus: [
                vec![PathStep::Line(0, Access::Rmw), PathStep::Line(1, Access::Rmw)],
                vec![PathStep::Instructions(100), PathStep::Line(1, Access::Write)],
            ],
            own_stores: [0, 25],
        };
        let (layout, programs) = path.programs(3, 0.5);
        assert_eq!((layout.len(), programs.len()), (4, 6));
        assert_eq!(programs[5].steps()[0], Step::Think(50.0));
        assert_eq!(programs[5].own_store_ns(), 2.0);
    }

    #[test]
    fn an_own_atomic_operation_counts_after_a_write_to_a_shared_line() {
        let mut steps = Steps::default();
        steps.fence(5);
        steps.access(10, 0, Access::Write);
        steps.fence(20);
        steps.fence(30);
        steps.end(30);
        let instructions = PathStep::Instructions;
        let write = PathStep::Line(0, Access::Write);
        assert_eq!(
            steps.finish(|_| false),
            [instructions(10), write, instructions(10), PathStep::Fence, instructions(10)]
        );
    }

    #[test]
    fn near_accesses_are_one_and_atomic_operations_are_not() {
        let mut steps = Steps::default();
        for (at, access) in [
            (10, Access::Read),
            (12, Access::Write),
            (13, Access::Rmw),
            (20, Access::Rmw),
            (290, Access::Read),
        ] {
            steps.access(at, 0, access);
        }
        steps.end(300);
        let rmw = PathStep::Line(0, Access::Rmw);
        let instructions = PathStep::Instructions;
        assert_eq!(
            steps.finish(|_| false),
            [
                instructions(10),
                rmw,
                instructions(10),
                rmw,
                instructions(270),
                PathStep::Line(0, Access::Read),
                instructions(10)
            ]
        );
    }
}
