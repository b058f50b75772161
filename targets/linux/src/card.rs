//! The card of a store that has a network of its own, and the record of its frames.

use anyhow::{Context, Result};
use kayvee_files::{Recorder, create_record};
use kayvee_platform::{Checksums, Completion, FrameDevice, FrameRx, FrameTx, NetworkFigures, Offloads, Received};
use kayvee_xdp::{Violation, XdpDevice, XdpRx, XdpTx};
use kayvee_xdp_socket::Sender;
use std::{cell::RefCell, path::Path, rc::Rc};

/// The file, as long as it can be written to.
#[derive(Clone)]
struct Record(Rc<RefCell<Option<Recorder>>>);

impl Record {
    fn create(path: Option<&Path>) -> Result<Record> {
        let Some(path) = path else { return Ok(Record(Rc::default())) };
        let recorder = create_record(path).and_then(Recorder::begin);
        let recorder = recorder.with_context(|| format!("recording frames in {}", path.display()))?;
        Ok(Record(Rc::new(RefCell::new(Some(recorder)))))
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.0.borrow().is_some()
    }

    #[inline]
    fn record(&self, frame: &[u8]) {
        let mut file = self.0.borrow_mut();
        if let Some(open) = &mut *file
            && let Err(error) = open.record(frame)
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

/// One direction and its record.
pub struct Half<H> {
    half: H,
    record: Record,
}

/// The card.
pub struct Card {
    mac: [u8; 6],
    checksums: Checksums,
    max_frame_bytes: usize,
    rx: Half<XdpRx>,
    tx: Half<XdpTx<Sender>>,
}

impl Card {
    /// A card whose frames are recorded in a file, if one is named.
    pub fn new(device: XdpDevice<Sender>, record: Option<&Path>) -> Result<Card> {
        let record = Record::create(record)?;
        let (mac, checksums, max_frame_bytes) = (device.mac(), device.checksums(), device.max_frame_bytes());
        let (rx, tx) = device.into_halves();
        let (rx, tx) = (Half { half: rx, record: record.clone() }, Half { half: tx, record });
        Ok(Card { mac, checksums, max_frame_bytes, rx, tx })
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
            // A socket's received frames are whole.
            self.record.record(frame.head);
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
            self.record.record(frame);
            result
        })
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        self.half.offloads()
    }

    #[inline]
    fn room_bytes(&mut self) -> usize {
        self.half.room_bytes()
    }

    #[inline]
    fn transmit_offloaded(&mut self, len: usize, task: Completion, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        let is_recorded = self.record.is_open();
        let mut frame = Vec::new();
        let is_sent = self.half.transmit_offloaded(len, task, |at, piece| {
            fill(at, piece);
            if is_recorded {
                frame.extend_from_slice(piece);
            }
        });
        if is_sent {
            self.record.record(&frame);
        }
        is_sent
    }

    #[inline]
    fn flush(&mut self) {
        self.half.flush();
        self.record.flush();
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

    fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    fn split(&mut self) -> (&mut Half<XdpRx>, &mut Half<XdpTx<Sender>>) {
        (&mut self.rx, &mut self.tx)
    }

    fn put_figures(&self, figures: &mut NetworkFigures) {
        self.tx.half.put_figures(figures);
    }
}
