//! Logs that are made and closed while the store runs, where it was not told of a disk.
//!
//! Such a store looks for a log at its start only if it is to have one, and in the usual place. So a log is there while it
//! is wanted, as Redis' append-only files are. One that is made lies beside that place until it is all data: a crash leaves
//! what was there before, or the new log. Until its configuration is changed as well, the store will be started without a
//! log again and read its dump file, so that is still written.

use super::Durable;
use crate::Store;
use alloc::{
    boxed::Box,
    string::{String, ToString},
};
use kayvee_log::{FormatError, Log};
use kayvee_platform::{BlockDevice, Finishing, LogFile};

/// The file of a log that was made while the store ran.
pub(super) struct Made {
    file: Box<dyn LogFile>,
    placing: Option<Box<dyn Finishing>>,
    is_in_place: bool,
}

/// Makes an empty log. Its name is another one each time: what lies on the disk of an earlier log must not pass for its own.
pub(super) fn format(log_ids: &mut fastrand::Rng, device: &mut dyn BlockDevice) -> Result<Log, FormatError> {
    let mut id = [0; 16];
    log_ids.fill(&mut id);
    Log::format(device, id)
}

impl Durable {
    /// Whether the log is on its way to its place, which has to be asked for.
    pub(super) fn is_placing(&self) -> bool {
        self.made.as_ref().is_some_and(|made| made.placing.is_some())
    }

    /// Whether the log has yet to be put in its place.
    pub(super) fn is_beside(&self) -> bool {
        self.made.as_ref().is_some_and(|made| !made.is_in_place)
    }
}

impl Store {
    /// Whether the log, if there is one, is there only while it is wanted.
    fn log_comes_and_goes(&self) -> bool {
        self.options.disk.is_empty() && self.environment.host.has_files()
    }

    /// Whether a log is open, so that its device is needed.
    pub fn log_is_open(&self) -> bool {
        self.durable.is_open()
    }

    /// Whether there is a log.
    pub fn has_log(&self) -> bool {
        self.durable.is_open() && (self.options.appendonly || !self.log_comes_and_goes())
    }

    /// Whether data are saved to the log, rather than to the dump file.
    pub(crate) fn saves_to_log(&self) -> bool {
        self.has_log() && self.durable.made.is_none()
    }

    /// Has a log made in this folder, unless there is one.
    pub(crate) fn need_log(&mut self, dir: &str) -> Result<(), String> {
        if self.durable.is_open() {
            return Ok(());
        }
        let host = self.environment.host;
        host.create_log(self, dir)
    }

    /// Makes a log on a device, with its file, which is not in its place yet. It has yet to get its beginning. If nobody asks
    /// for that in this turn, it is closed.
    pub fn take_new_log(&mut self, device: &mut dyn BlockDevice, file: Box<dyn LogFile>) -> Result<(), String> {
        let log = format(&mut self.log_ids, device).map_err(|error| error.to_string())?;
        self.durable.opened(log, false, self.environment.heap);
        self.durable.made = Some(Made { file, placing: None, is_in_place: false });
        self.measure_live_bytes();
        Ok(())
    }

    /// Puts a log that was made in its place once it is all data, and closes one that is not wanted any more. After the log
    /// was [driven](Self::drive_log), where the host makes logs.
    pub fn settle_log(&mut self, device: &mut dyn BlockDevice) {
        self.put_log_in_place();
        self.close_log_if_over(device);
        self.end_ack_waits();
        self.end_log_waits();
    }

    fn put_log_in_place(&mut self) {
        let durable = &mut self.durable;
        let is_written = durable.finishing.is_some() && durable.is_compacted();
        let Some(made) = durable.made.as_mut().filter(|made| is_written && !made.is_in_place) else { return };
        let Made { file, placing, is_in_place } = made;
        match placing.get_or_insert_with(|| file.put_in_place()).result() {
            None => return,
            Some(Ok(())) => *is_in_place = true,
            Some(Err(why)) => {
                if durable.compaction_trouble.fails(self.environment.clock.monotonic_ns()) {
                    log::error!("the log cannot be put in its place: {why}");
                }
                durable.spoil();
            }
        }
        if let Some(made) = &mut self.durable.made {
            made.placing = None;
        }
        self.end_compaction();
    }

    /// Has the log's end be known for what it is, if there is one, which is written no more.
    pub fn close_log(&mut self, device: &mut dyn BlockDevice) {
        let is_of_use = !self.durable.is_beside();
        if let Some(log) = self.durable.log.as_mut().filter(|_| is_of_use)
            && let Err(error) = log.close(device, self.environment.clock.monotonic_ns())
        {
            log::warn!("closing the log: {error}");
        }
    }

    /// What was being written down goes on to its end, if the disk works.
    fn close_log_if_over(&mut self, device: &mut dyn BlockDevice) {
        let Some(log) = self.durable.log.as_ref().filter(|_| !self.has_log()) else { return };
        if self.durable.is_compacting() && log.failure().is_none() {
            return;
        }
        self.close_log(device);
        let mut old = core::mem::take(&mut self.durable);
        if old.is_compacting() {
            old.status.failed();
        }
        log::info!("the log is closed");
        self.durable = Durable {
            epoch: old.epoch,
            abandoned: old.abandoned,
            sizes: old.sizes,
            status: old.status,
            waiters: old.waiters,
            reload_failed: old.reload_is_wanted,
            ..Durable::default()
        };
    }
}
