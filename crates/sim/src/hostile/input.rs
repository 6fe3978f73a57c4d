//! The string of a play, read from the front.

/// What is left of the string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte, if there is one.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next byte; zeros behind the end.
    pub(crate) fn next(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// The next two bytes.
    pub(crate) fn next_u16(&mut self) -> u16 {
        u16::from_be_bytes([self.next(), self.next()])
    }

    /// The next four bytes.
    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::from(self.next_u16()) << 16 | u32::from(self.next_u16())
    }

    /// The next bytes, as many as the byte in front of them says, or all that are left.
    pub(crate) fn counted(&mut self) -> &'a [u8] {
        let count = usize::from(self.next()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.next()) % choices.len()]
    }
}
