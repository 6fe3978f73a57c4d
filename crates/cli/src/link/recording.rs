//! The capture of a run, with the name of its file (`--pcap`).

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use quietline::device::{Capture, CaptureConfig, CaptureFile};

use crate::{failure::Failure, output};

/// File of a capture that has not started.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    file: CaptureFile,
    name: String,
}

/// A running capture, with the name of its file.
#[derive(Debug)]
pub(crate) struct Recording {
    capture: Arc<Capture>,
    file: String,
}

impl RecordingFile {
    /// Creates the file.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = CaptureFile::create(path).map_err(anyhow::Error::new)?;
        Ok(Self { file, name: path.display().to_string() })
    }

    /// Starts the thread that writes the file. If a later write fails, the thread prints a line on
    /// stderr at once.
    pub(crate) fn start(self, config: &CaptureConfig) -> Result<Recording, Failure> {
        let capture = Capture::start(self.file, config).map_err(anyhow::Error::new)?;
        let name = self.name.clone();
        capture.on_failure(move |error| {
            output::complain(&format!("cannot write {name}: {error}; the capture ends here"));
        });
        Ok(Recording { capture, file: self.name })
    }
}

impl Recording {
    /// Creates a file and starts the capture.
    pub(crate) fn start(path: &Path, config: &CaptureConfig) -> Result<Self, Failure> {
        RecordingFile::create(path)?.start(config)
    }

    /// Returns the capture, for a stack's builder.
    pub(crate) fn handle(&self) -> Arc<Capture> {
        Arc::clone(&self.capture)
    }

    /// Completes the file and prints the packet counts. A failure is returned, for the command to
    /// report after its results.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let report = self
            .capture
            .finish()
            .with_context(|| format!("the capture {} is incomplete", self.file))?;
        output::remark(&format!(
            "quietline: {} packets in {}, {} left out",
            report.written, self.file, report.lost
        ));
        Ok(())
    }
}
