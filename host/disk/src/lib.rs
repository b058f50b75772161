//! Disks for the log on a Linux host: regular files and raw block devices.
//!
//! [`FileDisk`] is a [`BlockDevice`](kayvee_platform::BlockDevice) whose transfers a thread of its own carries out, so that
//! whoever owns it goes on meanwhile; but what takes no longer than waking that thread is done at once. [`Spec`] is what a
//! user names a disk with, and [`prepare`] makes such a disk ready for a guest. It knows of the log only how to tell one from any other file; what a log says is `kayvee-log`'s.
#![forbid(unsafe_code)]

mod claim;
mod complaints;
mod file;
mod fresh;
mod made;
mod open;
mod spec;
mod withheld;
mod worker;

pub use claim::Place;
pub use complaints::Complaints;
pub use file::FileDisk;
pub use fresh::{AHEAD_BYTES, Fresh, STEP_BYTES};
pub use made::NewDisk;
pub use open::{DiskError, Prepared, open_prepared, open_to_read, prepare};
pub use spec::{Spec, USUAL_NAME};
pub use withheld::Withheld;
