//! A capture and the name of its file (`--pcap`).

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use quietline::device::{Capture, CaptureConfig, CaptureFile};

use crate::{failure::Failure, output};

/// The file of a recording that has not started.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    file: CaptureFile,
    name: String,
}

/// A capture and the name of its file.
#[derive(Debug)]
pub(crate) struct Recording {
    capture: Arc<Capture>,
    file: String,
}

impl RecordingFile {
    /// Makes the file.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = CaptureFile::create(path).map_err(anyhow::Error::new)?;
        Ok(Self { file, name: path.display().to_string() })
    }

    /// Starts the thread that writes the file. When that fails later, a line on stderr says so at once.
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
    /// Makes a file and starts to write it.
    pub(crate) fn start(path: &Path, config: &CaptureConfig) -> Result<Self, Failure> {
        RecordingFile::create(path)?.start(config)
    }

    /// The capture, for a stack's builder.
    pub(crate) fn handle(&self) -> Arc<Capture> {
        Arc::clone(&self.capture)
    }

    /// Completes the file and says what is in it. A failure is the command's: it is for the end, after the results.
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
