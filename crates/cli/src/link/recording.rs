//! A capture and the name of its file (`--pcap`).

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use quietline::device::{Capture, CaptureConfig};

use crate::{failure::Failure, output};

/// A capture and the name of its file.
#[derive(Debug)]
pub(crate) struct Recording {
    capture: Arc<Capture>,
    file: String,
}

impl Recording {
    /// Starts to write a file.
    pub(crate) fn start(path: &Path, config: &CaptureConfig) -> Result<Self, Failure> {
        let capture = Capture::create(path, config).map_err(anyhow::Error::new)?;
        Ok(Self { capture, file: path.display().to_string() })
    }

    /// The capture, for a stack's builder.
    pub(crate) fn handle(&self) -> Arc<Capture> {
        Arc::clone(&self.capture)
    }

    /// Completes the file and says what is in it.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let report =
            self.capture.finish().with_context(|| format!("cannot write {}", self.file))?;
        output::remark(&format!(
            "quietline: {} packets in {}, {} left out",
            report.written, self.file, report.lost
        ));
        Ok(())
    }
}
