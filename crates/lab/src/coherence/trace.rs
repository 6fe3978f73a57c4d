//! Reads the memory accesses that valgrind records of a [`Subject`](super::subject::Subject), and
//! finds the cache lines that two CPUs share.
//!
//! Above: the test `accesses`. Below: `valgrind --tool=lackey --trace-mem=yes`, whose report on
//! standard error has one line for each instruction and for each access, in order. The subject
//! writes its markers ([`Marks`]) between them.
//!
//! Lackey shows an atomic read-modify-write as a load and a store. [`Image`] tells them apart: it
//! reads the instruction in the file of the program and looks for the prefix `lock`, or for `xchg`.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead},
};

use quietline::sans_io::Region;
use rustix::{fd::AsFd as _, io::write};

use super::{directory::Access, subject::Watch};

mod image;
mod shared;

pub use image::Image;
pub use shared::{SharedLine, Uses};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Writes the markers of a traced subject to standard error.
#[derive(Clone, Copy, Debug)]
pub struct Marks;

impl Marks {
    /// One system call, without the lock of `io::Stderr`, which both CPUs would write.
    fn line(text: &str) {
        // A marker that cannot be written is missing in the trace, which the reader reports.
        let _ = write(io::stderr().as_fd(), text.as_bytes());
    }
}

impl Watch for Marks {
    fn regions(&self, regions: &[Region]) {
        for Region { name, address, bytes } in regions {
            Self::line(&format!("@region {address} {bytes} {name}\n"));
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let own = std::env::current_exe().unwrap_or_default();
        for line in maps.lines().filter(|line| line.ends_with(&*own.to_string_lossy())) {
            Self::line(&format!("@map {line}\n"));
        }
    }

    fn part(&self, cpu: Option<u8>) {
        const CPUS: [&str; 2] = ["@cpu 0\n", "@cpu 1\n"];
        match cpu {
            Some(cpu) => Self::line(CPUS[usize::from(cpu)]),
            None => Self::line("@off\n"),
        }
    }
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Instructions of this part before it.
    pub at: u32,
    /// Address of the instruction.
    pub pc: u64,
    /// First byte.
    pub address: u64,
    /// Kind.
    pub access: Access,
}

impl Traced {
    /// Number of its line.
    #[must_use]
    pub const fn line(&self) -> u64 {
        self.address / LINE_BYTES as u64
    }
}

/// Work of one CPU between two markers.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its number.
    pub cpu: u8,
    /// Instructions.
    pub instructions: u32,
    /// Accesses, in order.
    pub accesses: Vec<Traced>,
}

/// A whole trace.
#[derive(Debug)]
pub struct Trace {
    /// Structures.
    pub regions: Vec<Region>,
    /// The parts, in order.
    pub parts: Vec<Part>,
    image: Image,
}

impl Trace {
    /// Reads the report of valgrind. `image` is the traced program.
    pub fn read(mut input: impl BufRead, mut image: Image) -> io::Result<Self> {
        let (mut regions, mut parts) = (Vec::new(), Vec::<Part>::new());
        let (mut is_on, mut pc) = (false, 0);
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line)? > 0 {
            let text = str::from_utf8(&line).unwrap_or_default().trim_end();
            if let Some(mark) = text.strip_prefix('@') {
                let (word, rest) = mark.split_once(' ').unwrap_or((mark, ""));
                is_on = word == "cpu";
                match word {
                    "cpu" => {
                        let cpu = rest.parse().map_err(|_| unreadable(text))?;
                        parts.push(Part { cpu, ..Part::default() });
                    }
                    "region" => regions.push(region(rest).ok_or_else(|| unreadable(text))?),
                    "map" => image.add(rest).ok_or_else(|| unreadable(text))?,
                    _ => {}
                }
            } else if is_on && let Some(part) = parts.last_mut() {
                match text.as_bytes() {
                    [b'I', ..] => {
                        pc = access(&text[1..]).ok_or_else(|| unreadable(text))?;
                        part.instructions += 1;
                    }
                    [b' ', kind @ (b'L' | b'S' | b'M'), ..] => {
                        let address = access(&text[2..]).ok_or_else(|| unreadable(text))?;
                        let access = match kind {
                            _ if image.is_atomic(pc) => Access::Rmw,
                            b'L' => Access::Read,
                            _ => Access::Write,
                        };
                        let traced = Traced { at: part.instructions, pc, address, access };
                        // An atomic operation is one access, reported as a load and a store.
                        if access != Access::Rmw || part.accesses.last() != Some(&traced) {
                            part.accesses.push(traced);
                        }
                    }
                    _ => {}
                }
            }
            line.clear();
        }
        Ok(Self { regions, parts, image })
    }

    /// Address of an instruction as the symbols of the program have it, for `addr2line`.
    #[must_use]
    pub fn symbol_address(&self, pc: u64) -> Option<u64> {
        self.image.symbol_address(pc)
    }

    /// Name of the smallest structure that covers an address.
    fn name(&self, address: u64) -> Option<&str> {
        let address = usize::try_from(address).ok()?;
        let covers = |region: &&Region| {
            (region.address..region.address + region.bytes.max(1)).contains(&address)
        };
        let smallest = self.regions.iter().filter(covers).min_by_key(|region| region.bytes)?;
        Some(&smallest.name)
    }

    /// Rounds of the trace: parts of the CPU that has the fewest.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let of = |cpu| self.parts.iter().filter(|part| part.cpu == cpu).count();
        of(0).min(of(1))
    }

    /// The parts of each round of a CPU. A CPU may have several parts in a round.
    #[must_use]
    pub fn rounds_of(&self, cpu: u8) -> Vec<Vec<&Part>> {
        let parts: Vec<_> = self.parts.iter().filter(|part| part.cpu == cpu).collect();
        let each = (parts.len() / self.rounds().max(1)).max(1);
        parts.chunks_exact(each).map(<[_]>::to_vec).collect()
    }

    /// The lines that both CPUs access for every packet, one of them with a write, by address.
    ///
    /// An access belongs to every packet if at least a quarter of the rounds have it. Fewer belong
    /// to timers and to growth.
    #[must_use]
    pub fn shared(&self) -> Vec<SharedLine> {
        let mut lines: BTreeMap<u64, SharedLine> = BTreeMap::new();
        for part in &self.parts {
            let mut seen: BTreeMap<u64, Vec<&Traced>> = BTreeMap::new();
            for traced in &part.accesses {
                seen.entry(traced.line()).or_default().push(traced);
            }
            for (number, accesses) in seen {
                let line = lines.entry(number).or_insert_with(|| SharedLine::new(number));
                line.add(part.cpu, &accesses, |address| self.name(address));
            }
        }
        let enough = self.rounds().div_ceil(4).max(1);
        let is_shared = |line: &SharedLine| line.is_shared(enough) && !line.is_chance();
        lines.into_values().filter(is_shared).collect()
    }
}

fn unreadable(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a line of a trace: {text:?}"))
}

fn region(text: &str) -> Option<Region> {
    let mut words = text.splitn(3, ' ');
    let mut number = || words.next()?.parse().ok();
    let (address, bytes) = (number()?, number()?);
    Some(Region { address, bytes, name: words.next()?.to_owned() })
}

/// The address in `ADDRESS,BYTES`.
fn access(text: &str) -> Option<u64> {
    let (address, _) = text.trim_start().split_once(',')?;
    u64::from_str_radix(address, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
==1== Lackey
I  00001000,4
 L 00009000,8
@region 32768 64 Lock
@region 32776 8 Lock.word
@cpu 0
I  00001000,4
 M 00008008,8
I  00001004,4
 L 00008100,8
@off
 S 00008008,8
@cpu 1
I  00001000,4
 L 00008000,8
I  00001004,4
 S 00008100,8
@off
";

    #[test]
    fn a_trace_has_the_accesses_between_markers() {
        let trace = Trace::read(REPORT.as_bytes(), Image::default()).expect("a trace");
        let counts: Vec<_> = trace.parts.iter().map(|part| part.accesses.len()).collect();
        assert_eq!(counts, [2, 2]);
        assert_eq!(trace.parts[0].accesses[0].access, Access::Write);
        assert_eq!(trace.parts[0].instructions, 2);
        assert_eq!(trace.rounds(), 1);
    }

    #[test]
    fn a_line_that_one_cpu_writes_and_the_other_reads_is_shared() {
        let trace = Trace::read(REPORT.as_bytes(), Image::default()).expect("a trace");
        let shared = trace.shared();
        let names: Vec<_> = shared.iter().map(SharedLine::name).collect();
        assert_eq!(names, ["Lock + Lock.word", "unnamed"]);
        assert!(shared.iter().all(|line| !line.is_written_by_both(1)));
        assert_eq!(shared[0].uses[0].word(1), "write");
    }
}
