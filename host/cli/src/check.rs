//! What the log on a disk holds, and whether it is sound.

use anyhow::{Result, anyhow};
use kayvee_disk::FileDisk;
use kayvee_log::{Contents, Kind};
use kayvee_platform::BlockDevice;
use std::{
    convert::Infallible,
    fmt::Write,
    io::{self, Write as _},
    path::Path,
};

/// Records by what they are for.
#[derive(Default)]
struct Tally {
    effects: u64,
    states: u64,
    gaps: u64,
}

impl Tally {
    fn count(&mut self, kind: Kind) {
        *match kind {
            Kind::EFFECTS | Kind::RELEASES => &mut self.effects,
            Kind::STATE => &mut self.states,
            _ => &mut self.gaps,
        } += 1;
    }
}

/// Reads a disk and says what is in it; an error means that it is not sound.
pub fn check(file: &Path) -> Result<()> {
    let mut disk = FileDisk::open_read_only(file)?;
    let size_bytes = disk.geometry().size_bytes;
    let mut tally = Tally::default();
    let mut visit = |kind: Kind, _: &[u8]| -> Result<(), Infallible> {
        tally.count(kind);
        Ok(())
    };
    let contents = kayvee_log::check(&mut disk, kayvee_log::READ_AHEAD_BYTES, &mut visit, &mut |_| {});
    let contents = contents.map_err(|error| anyhow!("disk {}: {error}", file.display()))?;
    io::stdout().write_all(report(file, size_bytes, &contents, &tally).as_bytes())?;
    Ok(())
}

fn report(file: &Path, size_bytes: u64, contents: &Contents, tally: &Tally) -> String {
    let mut text = format!("{}: sound\n", file.display());
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<9} {value}");
    };
    let Contents { version, segments, used_segments, records, batches, log_bytes, .. } = *contents;
    line("id", contents.id.iter().map(|byte| format!("{byte:02x}")).collect());
    line("format", format!("version {version}, opened {} times", contents.epoch));
    line("size", format!("{}: {segments} segments of {}", bytes(size_bytes), bytes(contents.segment_bytes.into())));
    line("log", format!("{} in {used_segments} segments, {batches} batches", bytes(log_bytes)));
    let Tally { effects, states, gaps } = tally;
    let gaps = if *gaps > 0 { format!(", {gaps} of gaps") } else { String::new() };
    line("records", format!("{records}: {effects} of changes and {states} of keys' states{gaps}"));
    match records {
        0 => line("numbers", format!("none; the last one ever was {}", contents.last_sequence)),
        _ => line("numbers", format!("{} to {}", contents.first_sequence, contents.last_sequence)),
    }
    line("end", format!("at byte {}", contents.end_at_bytes));
    if contents.is_torn || contents.cut_record_bytes > 0 {
        line("", "what came behind it is damaged, or was cut by a crash".into());
    }
    if contents.bad_superblocks > 0 {
        line("", format!("{} of the 2 superblocks is damaged or old; a start mends it", contents.bad_superblocks));
    }
    text
}

/// A number of bytes for people.
fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(kinds: &[Kind]) -> String {
        let mut tally = Tally::default();
        kinds.iter().for_each(|&kind| tally.count(kind));
        let contents = Contents { records: kinds.len() as u64, ..Contents::default() };
        let report = report(Path::new("d"), 0, &contents, &tally);
        report.lines().find_map(|line| line.trim_start().strip_prefix("records   ")).unwrap().into()
    }

    #[test]
    fn records_are_counted_by_what_they_are_for() {
        let kinds = [Kind::EFFECTS, Kind::STATE, Kind::RELEASES, Kind::STATE, Kind::STATE, Kind::EFFECTS];
        assert_eq!(reported(&kinds), "6: 3 of changes and 3 of keys' states");
        assert_eq!(reported(&[Kind::STATE, Kind::new(2)]), "2: 0 of changes and 1 of keys' states, 1 of gaps");
    }
}
