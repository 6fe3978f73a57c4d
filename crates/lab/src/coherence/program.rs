//! Programs of CPUs, and the names of the lines that they use.

use super::directory::{Access, LineId};

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Nanoseconds of work that touches no shared line.
    Think(f64),
    /// Access to a line.
    Line(LineId, Access),
    /// A conditional increment: reads the value, and repeats a compare-and-swap until no other CPU
    /// has changed it in between (`atomic_inc_not_zero`).
    CompareAndSwap(LineId),
    /// An atomic operation on a line of this CPU's own: it waits for all stores before it. Its own
    /// time is part of the computing time.
    Fence,
    /// A spin lock on a line: waits in turn, and keeps the lock for this time in nanoseconds.
    Critical(LineId, f64),
    /// Waits for the next packet: one arrives at this CPU each time this many nanoseconds have
    /// passed. A CPU that is late does not wait.
    Arrival(f64),
}

/// Work of one packet or request, which a CPU repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    steps: Vec<Step>,
    own_store_ns: f64,
}

impl Default for Program {
    fn default() -> Self {
        Self { steps: Vec::new(), own_store_ns: f64::INFINITY }
    }
}

impl Program {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends work that touches no shared line, in nanoseconds.
    #[must_use]
    pub fn think(self, ns: f64) -> Self {
        self.step(Step::Think(ns))
    }

    /// Appends a read.
    #[must_use]
    pub fn read(self, line: LineId) -> Self {
        self.step(Step::Line(line, Access::Read))
    }

    /// Appends a write.
    #[must_use]
    pub fn write(self, line: LineId) -> Self {
        self.step(Step::Line(line, Access::Write))
    }

    /// Appends an atomic read-modify-write.
    #[must_use]
    pub fn rmw(self, line: LineId) -> Self {
        self.step(Step::Line(line, Access::Rmw))
    }

    /// Appends any step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Says that its computing time has a store to a line of its own each so many nanoseconds;
    /// without this, it has none.
    #[must_use]
    pub const fn own_stores(mut self, each_ns: f64) -> Self {
        self.own_store_ns = each_ns;
        self
    }

    /// Time between two stores of its computing time to lines of its own.
    #[must_use]
    pub const fn own_store_ns(&self) -> f64 {
        self.own_store_ns
    }

    /// The same program with all computing times multiplied.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let scaled = |step: &Step| match *step {
            Step::Think(ns) => Step::Think(ns * factor),
            step => step,
        };
        Self { steps: self.steps.iter().map(scaled).collect(), ..self.clone() }
    }

    /// Its steps, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Numbers lines and keeps their names.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    names: Vec<String>,
}

impl Layout {
    /// A layout without lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line. Two fields that share a line are one line here: that is what a layout decides.
    ///
    /// # Panics
    ///
    /// With more than 2³² lines.
    pub fn line(&mut self, name: impl Into<String>) -> LineId {
        let id = u32::try_from(self.names.len()).expect("fewer than 2^32 lines");
        self.names.push(name.into());
        LineId(id)
    }

    /// The name of a line.
    #[must_use]
    pub fn name(&self, line: LineId) -> &str {
        &self.names[line.index()]
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
