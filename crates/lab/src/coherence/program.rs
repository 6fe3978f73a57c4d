//! Programs of CPUs, and the names of the lines that they use.

use super::directory::{Access, LineId};

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Nanoseconds of work that touches no shared line.
    Think(f64),
    /// Access to a line.
    Line(LineId, Access),
}

/// What a CPU repeats: the work of one packet or request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    steps: Vec<Step>,
}

impl Program {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends work that touches no shared line, in nanoseconds.
    #[must_use]
    pub fn think(mut self, ns: f64) -> Self {
        self.steps.push(Step::Think(ns));
        self
    }

    /// Appends a read.
    #[must_use]
    pub fn read(self, line: LineId) -> Self {
        self.line(line, Access::Read)
    }

    /// Appends a write.
    #[must_use]
    pub fn write(self, line: LineId) -> Self {
        self.line(line, Access::Write)
    }

    /// Appends an atomic read-modify-write.
    #[must_use]
    pub fn rmw(self, line: LineId) -> Self {
        self.line(line, Access::Rmw)
    }

    fn line(mut self, line: LineId, access: Access) -> Self {
        self.steps.push(Step::Line(line, access));
        self
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
        &self.names[line.0 as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
