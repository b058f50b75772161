//! Geohashes of 52 bits, as Redis keeps places in scores, and distances on a sphere.
//!
//! ```text
//! bits = … longitude₁ latitude₁ longitude₀ latitude₀
//! ```
//!
//! Each coordinate is a fraction of its range with `step` bits; bits of both alternate. Latitudes end where those of
//! EPSG:900913 do, short of the poles.

use libm::{asin, cos, fabs, sin, sqrt};

/// Bits of each coordinate in a score.
pub const STEP_LIMIT: u32 = 26;

const LONGITUDE: (f64, f64) = (-180.0, 180.0);
const LATITUDE: (f64, f64) = (-85.05112878, 85.05112878);
/// The latitudes of geohash strings as others write them.
const WHOLE_LATITUDE: (f64, f64) = (-90.0, 90.0);

/// Quadratic mean radius of the earth by WGS 84, in metres.
const EARTH_RADIUS_M: f64 = 6372797.560856;
const MERCATOR_LIMIT_M: f64 = 20037726.37;

/// A place on earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Place {
    pub longitude: f64,
    pub latitude: f64,
}

/// A box that a geohash stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    bits: u64,
    step: u32,
}

/// The place and size of a cell.
struct Area {
    longitude: (f64, f64),
    latitude: (f64, f64),
}

/// Which places are looked for, from a centre.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Shape {
    Circle { radius_m: f64 },
    Box { width_m: f64, height_m: f64 },
}

fn radians(degrees: f64) -> f64 {
    degrees * (core::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (core::f64::consts::PI / 180.0)
}

/// Spreads 32 bits to the even ones of 64.
fn spread(bits: u32) -> u64 {
    let mut bits = u64::from(bits);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Gathers the even bits.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

fn encode_in(place: Place, latitudes: (f64, f64), step: u32) -> Cell {
    let parts = (1u64 << step) as f64;
    let part = |value: f64, range: (f64, f64)| ((value - range.0) / (range.1 - range.0) * parts) as u32;
    let (longitude, latitude) = (part(place.longitude, LONGITUDE), part(place.latitude, latitudes));
    Cell { bits: spread(latitude) | spread(longitude) << 1, step }
}

/// The cell of a place, which must be [valid](Place::is_valid).
pub fn encode(place: Place, step: u32) -> Cell {
    encode_in(place, LATITUDE, step)
}

/// A place's geohash string, of 11 characters.
pub fn text(place: Place) -> [u8; 11] {
    const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    let bits = encode_in(place, WHOLE_LATITUDE, STEP_LIMIT).bits;
    // The last character would need three bits more than there are: Redis writes the first letter.
    let mut text = [ALPHABET[0]; 11];
    for (at, character) in text[..10].iter_mut().enumerate() {
        *character = ALPHABET[(bits >> (2 * STEP_LIMIT as usize - (at + 1) * 5)) as usize & 0x1f];
    }
    text
}

impl Place {
    /// Whether a place can be encoded.
    pub fn is_valid(self) -> bool {
        let is_in = |value: f64, range: (f64, f64)| (range.0..=range.1).contains(&value);
        is_in(self.longitude, LONGITUDE) && is_in(self.latitude, LATITUDE)
    }

    /// The middle of the cell that a score stands for.
    pub fn of_score(score: f64) -> Place {
        let area = Cell { bits: score as u64, step: STEP_LIMIT }.area();
        let middle = |(min, max): (f64, f64), range: (f64, f64)| ((min + max) / 2.0).clamp(range.0, range.1);
        Place { longitude: middle(area.longitude, LONGITUDE), latitude: middle(area.latitude, LATITUDE) }
    }
}

impl Cell {
    const NONE: Cell = Cell { bits: 0, step: 0 };

    /// Its first score.
    pub fn score(self) -> u64 {
        self.bits << (2 * (STEP_LIMIT - self.step))
    }

    /// Its first score, and the first one behind it.
    pub fn scores(self) -> (f64, f64) {
        let next = Cell { bits: self.bits + 1, ..self };
        (self.score() as f64, next.score() as f64)
    }

    fn area(self) -> Area {
        let parts = (1u64 << self.step) as f64;
        // The number of a cell's end wraps like Redis' 32-bit one.
        let part = |number: u32, range: (f64, f64)| range.0 + f64::from(number) / parts * (range.1 - range.0);
        let side = |bits: u64, range| {
            let number = gather(bits);
            (part(number, range), part(number.wrapping_add(1), range))
        };
        Area { longitude: side(self.bits >> 1, LONGITUDE), latitude: side(self.bits, LATITUDE) }
    }

    /// The cell so many columns to the east and rows to the north, around the world.
    fn moved(self, east: i64, north: i64) -> Cell {
        let mask = (1u64 << self.step) - 1;
        let part = |bits: u64, by: i64| (u64::from(gather(bits)).wrapping_add_signed(by) & mask) as u32;
        let (longitude, latitude) = (part(self.bits >> 1, east), part(self.bits, north));
        Cell { bits: spread(latitude) | spread(longitude) << 1, ..self }
    }
}

/// The distance of two latitudes in metres.
fn latitude_distance_m(a: f64, b: f64) -> f64 {
    EARTH_RADIUS_M * fabs(radians(b) - radians(a))
}

/// The great-circle distance by the haversine formula, in metres.
pub fn distance_m(a: Place, b: Place) -> f64 {
    let v = sin((radians(b.longitude) - radians(a.longitude)) / 2.0);
    if v == 0.0 {
        return latitude_distance_m(a.latitude, b.latitude);
    }
    let (from, to) = (radians(a.latitude), radians(b.latitude));
    let u = sin((to - from) / 2.0);
    2.0 * EARTH_RADIUS_M * asin(sqrt(u * u + cos(from) * cos(to) * v * v))
}

impl Shape {
    /// The distance of a place from the centre in metres, if the place is in the shape.
    pub fn distance_m(self, centre: Place, place: Place) -> Option<f64> {
        match self {
            Shape::Circle { radius_m } => Some(distance_m(centre, place)).filter(|&distance| distance <= radius_m),
            Shape::Box { width_m, height_m } => {
                let is_in = latitude_distance_m(place.latitude, centre.latitude) <= height_m / 2.0
                    && distance_m(place, Place { longitude: centre.longitude, ..place }) <= width_m / 2.0;
                is_in.then(|| distance_m(centre, place))
            }
        }
    }

    /// The box of longitudes and latitudes around it.
    fn bounds(self, centre: Place) -> Area {
        let (width_m, height_m) = match self {
            Shape::Circle { radius_m } => (radius_m, radius_m),
            Shape::Box { width_m, height_m } => (width_m / 2.0, height_m / 2.0),
        };
        let latitude_delta = degrees(height_m / EARTH_RADIUS_M);
        // Meridians are closer to each other towards the pole.
        let edge =
            if centre.latitude < 0.0 { centre.latitude - latitude_delta } else { centre.latitude + latitude_delta };
        let longitude_delta = degrees(width_m / EARTH_RADIUS_M / cos(radians(edge)));
        Area {
            longitude: (centre.longitude - longitude_delta, centre.longitude + longitude_delta),
            latitude: (centre.latitude - latitude_delta, centre.latitude + latitude_delta),
        }
    }

    /// How many bits cells have so that nine of them cover it.
    fn step(self, centre: Place) -> u32 {
        let mut radius_m = match self {
            Shape::Circle { radius_m } => radius_m,
            Shape::Box { width_m, height_m } => {
                sqrt((width_m / 2.0) * (width_m / 2.0) + (height_m / 2.0) * (height_m / 2.0))
            }
        };
        if radius_m == 0.0 {
            return STEP_LIMIT;
        }
        let mut step = 1i32;
        while radius_m < MERCATOR_LIMIT_M {
            radius_m *= 2.0;
            step += 1;
        }
        // The range should be in most of the cells; and cells are narrower towards the poles.
        step -= 2;
        if fabs(centre.latitude) > 66.0 {
            step -= 1;
        }
        if fabs(centre.latitude) > 80.0 {
            step -= 1;
        }
        step.clamp(1, STEP_LIMIT as i32) as u32
    }

    /// The cells that cover it: that of the centre, and those around it, in Redis' order.
    pub fn cells(self, centre: Place) -> impl Iterator<Item = Cell> {
        /// Columns to the east and rows to the north.
        const AROUND: [(i64, i64); 9] = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let bounds = self.bounds(centre);
        let mut cell = encode(centre, self.step(centre));
        let is_short = cell.moved(0, 1).area().latitude.1 < bounds.latitude.1
            || cell.moved(0, -1).area().latitude.0 > bounds.latitude.0
            || cell.moved(1, 0).area().longitude.1 < bounds.longitude.1
            || cell.moved(-1, 0).area().longitude.0 > bounds.longitude.0;
        if cell.step > 1 && is_short {
            cell = encode(centre, cell.step - 1);
        }
        let area = cell.area();
        let is_needed = move |east: i64, north: i64| {
            cell.step < 2
                || !(north < 0 && area.latitude.0 < bounds.latitude.0
                    || north > 0 && area.latitude.1 > bounds.latitude.1
                    || east < 0 && area.longitude.0 < bounds.longitude.0
                    || east > 0 && area.longitude.1 > bounds.longitude.1)
        };
        let mut last = Cell::NONE;
        AROUND.into_iter().filter_map(move |(east, north)| {
            let neighbour = if is_needed(east, north) { cell.moved(east, north) } else { Cell::NONE };
            // Around a wide shape, neighbours may be the same cell.
            (neighbour != Cell::NONE && core::mem::replace(&mut last, neighbour) != neighbour).then_some(neighbour)
        })
    }
}
