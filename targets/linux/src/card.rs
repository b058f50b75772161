//! The card of a store that has a network of its own, and the record of its frames (pcap, as libpcap's `pcap-savefile`
//! describes it), for tcpdump and Wireshark.

use anyhow::{Context, Result};
use kayvee_platform::{Checksums, FrameDevice, FrameRx, FrameTx, Received};
use kayvee_xdp::{Violation, XdpDevice, XdpRx, XdpTx};
use kayvee_xdp_socket::Sender;
use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    rc::Rc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Times in microseconds, numbers in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const MAX_BYTES: u32 = 65_535;
const LINKTYPE_ETHERNET: u32 = 1;

/// The file, as long as it can be written to.
#[derive(Clone)]
struct Recorder(Rc<RefCell<Option<BufWriter<File>>>>);

impl Recorder {
    fn create(path: Option<&Path>) -> Result<Recorder> {
        let Some(path) = path else { return Ok(Recorder(Rc::default())) };
        let begin = || -> io::Result<BufWriter<File>> {
            let mut file = BufWriter::new(File::create(path)?);
            file.write_all(&MAGIC.to_ne_bytes())?;
            VERSION.iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
            [0, 0, MAX_BYTES, LINKTYPE_ETHERNET].iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
            file.flush()?;
            Ok(file)
        };
        let file = begin().with_context(|| format!("recording frames in {}", path.display()))?;
        Ok(Recorder(Rc::new(RefCell::new(Some(file)))))
    }

    #[inline]
    fn record(&self, frame: &[u8]) {
        let mut file = self.0.borrow_mut();
        if let Some(open) = &mut *file
            && let Err(error) = write(open, frame)
        {
            log::warn!("no more frames are recorded: {error}");
            *file = None;
        }
    }

    /// Puts what was recorded where readers see it.
    #[inline]
    fn flush(&self) {
        if let Some(file) = &mut *self.0.borrow_mut() {
            // What fails here fails with the next frame again, which says so.
            let _ = file.flush();
        }
    }
}

fn write(file: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let len = frame.len() as u32;
    for number in [since.as_secs() as u32, since.subsec_micros(), len, len] {
        file.write_all(&number.to_ne_bytes())?;
    }
    file.write_all(frame)
}

/// One direction and its record.
pub struct Half<H> {
    half: H,
    recorder: Recorder,
}

/// The card.
pub struct Card {
    mac: [u8; 6],
    checksums: Checksums,
    rx: Half<XdpRx>,
    tx: Half<XdpTx<Sender>>,
}

impl Card {
    /// A card whose frames are recorded in a file, if one is named.
    pub fn new(device: XdpDevice<Sender>, record: Option<&Path>) -> Result<Card> {
        let recorder = Recorder::create(record)?;
        let (mac, checksums) = (device.mac(), device.checksums());
        let (rx, tx) = device.into_halves();
        Ok(Card { mac, checksums, rx: Half { half: rx, recorder: recorder.clone() }, tx: Half { half: tx, recorder } })
    }

    /// What the kernel has done wrong, after which nothing is received nor sent.
    pub fn error(&self) -> Option<Violation> {
        self.rx.half.error().or(self.tx.half.error())
    }

    /// The sending half.
    pub fn sender(&mut self) -> &mut XdpTx<Sender> {
        &mut self.tx.half
    }
}

impl FrameRx for Half<XdpRx> {
    #[inline]
    fn ready(&mut self) -> bool {
        self.half.ready()
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        self.half.receive(|frame| {
            // A socket's frames are whole.
            self.recorder.record(frame.head);
            consume(frame)
        })
    }
}

impl FrameTx for Half<XdpTx<Sender>> {
    #[inline]
    fn ready(&mut self) -> bool {
        self.half.ready()
    }

    #[inline]
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        self.half.transmit(len, |frame| {
            let result = fill(frame);
            self.recorder.record(frame);
            result
        })
    }

    #[inline]
    fn flush(&mut self) {
        self.half.flush();
        self.recorder.flush();
    }
}

impl FrameDevice for Card {
    type Rx<'a>
        = &'a mut Half<XdpRx>
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut Half<XdpTx<Sender>>
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn checksums(&self) -> Checksums {
        self.checksums
    }

    fn split(&mut self) -> (&mut Half<XdpRx>, &mut Half<XdpTx<Sender>>) {
        (&mut self.rx, &mut self.tx)
    }
}
