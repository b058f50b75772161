//! The crash-consistency model of the persistent log.
//!
//! A random workload with compactions runs on a [`SimulatedDisk`]. At any of its points the power may go: what is then
//! recovered must be every record that was acknowledged, none that was not issued, in order and without a gap. The
//! workload goes through several lives, with crashes, clean ends and growth of the disk between them.

use crate::{
    disk::{Faults, Lie, SimulatedDisk},
    random::Random,
};
use kayvee_log::{
    CompactionStage, Contents, FlushPolicy, Kind, Log, OpenError, READ_AHEAD_BYTES, RECORD_HEADER_BYTES, RecordError,
    check, minimum_bytes,
};

/// What is varied from run to run, all of it chosen by the seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    policy: FlushPolicy,
    /// What each compaction writes.
    live_bytes: u64,
    steps: usize,
}

/// What has been tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Instants at which the power went.
    pub crash_points: u64,
    /// Records that were issued.
    pub records: u64,
    /// Records that were checked after a crash.
    pub recovered: u64,
    /// Compactions that were finished.
    pub compactions: u64,
    /// Transfers that failed.
    pub failures: u64,
    /// How often a record was refused for want of room.
    pub full: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.crash_points += other.crash_points;
        self.records += other.records;
        self.recovered += other.recovered;
        self.compactions += other.compactions;
        self.failures += other.failures;
        self.full += other.full;
    }
}

/// A record that was issued: its bytes follow from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Issued {
    kind: Kind,
    stamp: u64,
    len: usize,
}

impl Issued {
    fn new(kind: Kind, stamp: u64, len: usize) -> Issued {
        // What is too short for a stamp has a part of it.
        let stamp = if len < 8 { stamp & ((1 << (8 * len)) - 1) } else { stamp };
        Issued { kind, stamp, len }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.stamp.to_le_bytes().repeat(self.len.div_ceil(8));
        bytes.truncate(self.len);
        bytes
    }

    /// What was issued, if these are the bytes of something that was.
    fn read(kind: Kind, bytes: &[u8]) -> Option<Issued> {
        let mut stamp = [0; 8];
        let len = bytes.len().min(8);
        stamp[..len].copy_from_slice(&bytes[..len]);
        let (words, rest) = bytes.as_chunks::<8>();
        let is_regular = words.iter().all(|word| *word == stamp) && *rest == stamp[..rest.len()];
        is_regular.then(|| Issued::new(kind, u64::from_le_bytes(stamp), bytes.len()))
    }
}

/// One run.
struct Model {
    random: Random,
    disk: SimulatedDisk,
    plan: Plan,
    now_ns: u64,
    /// Record `n` is `issued[n - 1]`.
    issued: Vec<Issued>,
    stamp: u64,
    /// The first record after a crash.
    beginning: u64,
    /// What it will be when the compaction is finished.
    started: u64,
    /// What it may be already.
    next_beginning: Option<u64>,
    /// Bytes of state that the compaction still has to write, and whether there must be room for all of them.
    state_left: u64,
    is_room_promised: bool,
    tally: Tally,
}

/// With so much left on the disk a short record that makes data fewer finds room: a batch, and the block that names the
/// next segment.
const LEFT_BYTES: u64 = 2 * 4096 + 4096;
const LIVES: usize = 3;
const SECOND_NS: u64 = 1_000_000_000;

/// Runs the workload that follows from the seed. An error says what was lost, or what appeared out of nowhere.
pub fn run(seed: u64, lie: Option<Lie>) -> Result<Tally, String> {
    let mut random = Random::new(seed);
    let segments = 8 + random.below(16) as u64;
    let size_bytes = minimum_bytes() + (segments - 8) * (64 << 10);
    let mut disk = SimulatedDisk::new(size_bytes as usize, random.next_u64());
    disk.lie = lie;
    let mut id = [0; 16];
    id.copy_from_slice(&random.bytes(16));
    let mut log = Log::format(&mut disk, id).map_err(|error| format!("format: {error}"))?;
    let plan = Plan { policy: FlushPolicy::Always, live_bytes: 0, steps: 0 };
    let mut model = Model {
        random,
        disk,
        plan,
        now_ns: 0,
        issued: Vec::new(),
        stamp: 0,
        beginning: 1,
        started: 0,
        next_beginning: None,
        state_left: 0,
        is_room_promised: false,
        tally: Tally::default(),
    };
    for life in 0..LIVES {
        model.choose_plan();
        log = model.live(log, life).map_err(|error| format!("life {life}, {:?}: {error}", model.plan))?;
    }
    Ok(model.tally)
}

impl Model {
    fn choose_plan(&mut self) {
        let random = &mut self.random;
        let policies = [FlushPolicy::Always, FlushPolicy::Always, FlushPolicy::EverySecond, FlushPolicy::No];
        let faults = if random.one_in(3) {
            let rare = |random: &mut Random| [0, 10, 60][random.below(3)];
            Faults { read_one_in: 0, write_one_in: rare(random), flush_one_in: rare(random), no_space_one_in: 2 }
        } else {
            Faults::NONE
        };
        let size_bytes = self.disk.bytes().len();
        self.plan = Plan {
            policy: policies[random.below(policies.len())],
            live_bytes: random.below(size_bytes / 4) as u64,
            steps: 60 + random.below(60),
        };
        self.disk.queue_depth = 1 + random.below(8);
        self.disk.faults = faults;
    }

    /// From one opening to the next.
    fn live(&mut self, mut log: Log, life: usize) -> Result<Log, String> {
        log.set_live_bytes(self.plan.live_bytes);
        log.set_buffers_bytes(self.random.below(8 << 20));
        for _ in 0..self.plan.steps {
            self.step(&mut log)?;
            if self.random.one_in(2) {
                self.crash_point(&log)?;
            }
        }
        self.settle(&mut log)?;
        self.tally.failures += log.counters().failures;
        let is_clean = self.random.one_in(4);
        let acknowledged = log.durable();
        if is_clean
            && let Err(error) = log.close(&mut self.disk, self.now_ns)
            && self.disk.faults == Faults::NONE
        {
            return Err(format!("close: {error}"));
        }
        let crashed = self.disk.crash();
        self.disk = crashed;
        self.disk.faults = Faults::NONE;
        if life + 1 < LIVES && self.random.one_in(2) {
            let more = self.random.below(200_000);
            self.disk.damage(|bytes| bytes.resize((bytes.len() + more).next_multiple_of(512), 0));
        }
        self.reopen(acknowledged)
    }

    /// Opens the log again, with a crash while that goes on.
    fn reopen(&mut self, acknowledged: u64) -> Result<Log, String> {
        self.disk.crash_in(self.random.below(60) as u64);
        let mut found = Vec::new();
        let opened = Log::open(&mut self.disk, READ_AHEAD_BYTES, &mut collect(&mut found), &mut |_| {});
        let opened = opened.map_err(|error: OpenError<String>| format!("open: {error}"))?;
        self.verify(&opened.contents, &found, acknowledged)?;
        self.beginning = opened.contents.first_sequence;
        self.next_beginning = None;
        self.issued.truncate(opened.contents.last_sequence as usize);
        if let Some(mut crashed) = self.disk.take_crashed() {
            self.verify_crashed(&mut crashed, opened.contents.last_sequence)?;
        }
        if opened.log.durable() != opened.contents.last_sequence {
            return Err("what was recovered is not durable".into());
        }
        Ok(opened.log)
    }

    fn step(&mut self, log: &mut Log) -> Result<(), String> {
        match self.random.below(20) {
            0..8 => self.append(log)?,
            8..14 => {
                self.now_ns += [0, SECOND_NS / 1000, SECOND_NS / 5, 2 * SECOND_NS][self.random.below(4)];
                log.drive(&mut self.disk, self.plan.policy, self.now_ns);
            }
            14..16 => self.disk.work(),
            16 => log.request_flush(),
            _ => self.compact(log)?,
        }
        if log.compaction_stage() == CompactionStage::None
            && let Some(beginning) = self.next_beginning.take()
        {
            self.beginning = beginning;
            self.tally.compactions += 1;
        }
        Ok(())
    }

    fn issue(&mut self, log: &mut Log, kind: Kind, len: usize) -> Result<(), RecordError> {
        self.stamp += 1;
        let record = Issued::new(kind, self.stamp, len);
        let bytes = record.bytes();
        let (head, tail) = bytes.split_at(self.random.below(len + 1));
        let mut writer = log.record(kind)?;
        writer.push(head)?;
        writer.push(tail)?;
        if self.random.one_in(20) {
            return Ok(());
        }
        let sequence = writer.commit();
        assert_eq!(sequence, self.issued.len() as u64 + 1, "numbers have no gap");
        self.issued.push(record);
        self.tally.records += 1;
        Ok(())
    }

    fn len(&mut self) -> usize {
        let limit = [100, 100, 100, 5_000, 5_000, 70_000, 200_000][self.random.below(7)];
        self.random.below(limit)
    }

    fn append(&mut self, log: &mut Log) -> Result<(), String> {
        for _ in 0..1 + self.random.below(30) {
            let len = self.len();
            match self.issue(log, Kind::EFFECTS, len) {
                Ok(()) | Err(RecordError::Failing) => {}
                Err(RecordError::Full) => {
                    self.tally.full += 1;
                    return self.release(log);
                }
                Err(RecordError::OutOfMemory) => return Err("no memory".into()),
            }
        }
        Ok(())
    }

    /// What makes data fewer goes on for a while on a disk that is full for all else, whatever compactions have used.
    fn release(&mut self, log: &mut Log) -> Result<(), String> {
        // Now and then: with them a compaction may find less than it was promised.
        if !self.random.one_in(8) {
            return Ok(());
        }
        self.is_room_promised = false;
        let had_room = log.free_bytes() >= LEFT_BYTES;
        match self.issue(log, Kind::RELEASES, 60) {
            Err(RecordError::Full) if had_room => Err(format!("no room to release any: {} bytes", log.free_bytes())),
            Err(RecordError::OutOfMemory) => Err("no memory".into()),
            _ => Ok(()),
        }
    }

    /// Goes on with a compaction, or begins one.
    fn compact(&mut self, log: &mut Log) -> Result<(), String> {
        match log.compaction_stage() {
            CompactionStage::Finishing => {}
            CompactionStage::None => {
                let is_room_promised = log.room_bytes() > 0;
                match log.begin_compaction() {
                    Ok(()) => {
                        self.is_room_promised = is_room_promised;
                        self.state_left = self.plan.live_bytes;
                    }
                    Err(RecordError::Failing) => {}
                    Err(_) if !is_room_promised => {}
                    Err(error) => return Err(format!("no compaction can begin: {error}")),
                }
                self.started = log.appended() + 1;
            }
            CompactionStage::Writing if self.random.one_in(30) => log.cancel_compaction(),
            CompactionStage::Writing => self.write_state(log)?,
        }
        Ok(())
    }

    fn write_state(&mut self, log: &mut Log) -> Result<(), String> {
        for _ in 0..1 + self.random.below(40) {
            let header = RECORD_HEADER_BYTES as u64;
            if self.state_left < header {
                self.next_beginning = Some(self.started);
                log.finish_compaction();
                return Ok(());
            }
            let len = self.len().min((self.state_left - header) as usize);
            let before = log.appended();
            match self.issue(log, Kind::STATE, len) {
                Ok(()) if log.appended() == before => {}
                Ok(()) => self.state_left -= len as u64 + header,
                Err(RecordError::Failing) => return Ok(()),
                Err(error) if self.is_room_promised => {
                    return Err(format!("a compaction cannot finish: {error}, {} bytes left", self.state_left));
                }
                Err(_) => {
                    log.cancel_compaction();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A disk that works again lets everything become stable.
    fn settle(&mut self, log: &mut Log) -> Result<(), String> {
        if self.random.one_in(2) {
            return Ok(());
        }
        self.disk.faults = Faults::NONE;
        log.request_flush();
        let last_effects =
            self.issued.iter().rposition(|record| record.kind != Kind::STATE).map_or(0, |at| at as u64 + 1);
        for _ in 0..10_000 {
            self.now_ns += SECOND_NS / 10;
            log.drive(&mut self.disk, self.plan.policy, self.now_ns);
            if self.random.one_in(10) {
                self.crash_point(log)?;
            }
            if log.failure().is_none() && log.durable() >= last_effects {
                return match log.sync(&mut self.disk, self.now_ns) {
                    Ok(()) if log.durable() == log.appended() => self.crash_point(log),
                    result => Err(format!("{} of {} is stable: {result:?}", log.durable(), log.appended())),
                };
            }
        }
        Err(format!("record {} does not become stable, {:?}", log.durable() + 1, log.failure()))
    }

    /// The power goes.
    fn crash_point(&mut self, log: &Log) -> Result<(), String> {
        let mut crashed = self.disk.crash();
        self.verify_crashed(&mut crashed, log.durable())
    }

    fn verify_crashed(&mut self, crashed: &mut SimulatedDisk, acknowledged: u64) -> Result<(), String> {
        crashed.faults = Faults::NONE;
        let mut found = Vec::new();
        let contents = check(crashed, READ_AHEAD_BYTES, &mut collect(&mut found), &mut |_| {})
            .map_err(|error: OpenError<String>| format!("after a crash: {error}"))?;
        self.verify(&contents, &found, acknowledged)
    }

    fn verify(&mut self, contents: &Contents, found: &[Option<Issued>], acknowledged: u64) -> Result<(), String> {
        self.tally.crash_points += 1;
        self.tally.recovered += found.len() as u64;
        let first = contents.first_sequence;
        if first != self.beginning && Some(first) != self.next_beginning {
            return Err(format!("the log begins with {first}, not {} or {:?}", self.beginning, self.next_beginning));
        }
        if contents.last_sequence < acknowledged {
            return Err(format!("{} was acknowledged, and {} is the last", acknowledged, contents.last_sequence));
        }
        if first + found.len() as u64 != contents.last_sequence + 1 {
            return Err(format!("{} records from {first} to {}", found.len(), contents.last_sequence));
        }
        let issued = self.issued.get(first as usize - 1..).unwrap_or_default();
        if found.len() > issued.len() {
            return Err(format!("{} records were issued and {} recovered", issued.len(), found.len()));
        }
        if let Some(at) = found.iter().zip(issued).position(|(found, issued)| *found != Some(*issued)) {
            return Err(format!("record {} is not what was issued", first + at as u64));
        }
        Ok(())
    }
}

fn collect(found: &mut Vec<Option<Issued>>) -> impl FnMut(Kind, &[u8]) -> Result<(), String> {
    |kind, bytes| {
        found.push(Issued::read(kind, bytes));
        Ok(())
    }
}
