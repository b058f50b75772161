//! Reading and writing the little of ELF that an image needs (System V ABI, chapters 4 and 5).

use crate::Error;
use object::{
    Endianness, elf,
    read::elf::{FileHeader, ProgramHeader, Sym},
};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Loaders copy segments to their addresses, so these may lie anywhere in the file.
const ALIGNMENT: u64 = 1;
/// Zeros are left out of the file by so many bytes: more than what describes another segment.
const BLOCK_BYTES: usize = 256;

/// A piece of memory that a loader fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    /// `PF_R`, `PF_W`, `PF_X`.
    pub flags: u32,
    pub bytes: Vec<u8>,
    /// Its length in memory; what the file does not hold is zero.
    pub memory_bytes: u64,
}

impl Segment {
    pub fn read_only(address: u64, bytes: Vec<u8>) -> Segment {
        Segment { address, flags: elf::PF_R, memory_bytes: bytes.len() as u64, bytes }
    }

    /// The same memory as segments without long runs of zeros, which are between them or at their ends.
    fn without_zeros(&self) -> Vec<Segment> {
        let is_zero = |block: &[u8]| block.iter().all(|&byte| byte == 0);
        let blocks: Vec<&[u8]> = self.bytes.chunks(BLOCK_BYTES).collect();
        let mut segments: Vec<Segment> = Vec::new();
        let mut address = self.address;
        for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let bytes = run.concat();
            let memory_bytes = bytes.len() as u64;
            match segments.last_mut() {
                Some(before) if is_zero(&bytes) => before.memory_bytes += memory_bytes,
                _ => segments.push(Segment { address, flags: self.flags, bytes, memory_bytes }),
            }
            address += memory_bytes;
        }
        if let Some(last) = segments.last_mut() {
            last.memory_bytes = self.address + self.memory_bytes - last.address;
        }
        segments
    }

    /// Where `len` bytes at `address` lie in what the file holds.
    fn position(&self, address: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (offset.checked_add(len)? <= self.bytes.len()).then_some(offset)
    }
}

/// A linked program.
#[derive(Clone, Debug)]
pub struct Linked {
    pub entry: u64,
    pub segments: Vec<Segment>,
    /// Address and length of the notes, which lie in one of the segments.
    pub note: (u64, u64),
    pub symbols: Vec<(String, u64)>,
}

type Header = elf::FileHeader64<Endianness>;

fn not_a_program(error: object::read::Error) -> Error {
    Error::NotAProgram(error.to_string())
}

impl Linked {
    /// Reads a program with its symbols.
    pub fn parse(data: &[u8]) -> Result<Linked, Error> {
        let mut linked = Linked::parse_segments(data)?;
        let header = Header::parse(data).map_err(not_a_program)?;
        let endian = header.endian().map_err(not_a_program)?;
        let sections = header.sections(endian, data).map_err(not_a_program)?;
        let table = sections.symbols(endian, data, elf::SHT_SYMTAB).map_err(not_a_program)?;
        for symbol in table.iter() {
            let name = symbol.name(endian, table.strings()).map_err(not_a_program)?;
            let is_place = !matches!(symbol.st_type(), elf::STT_FILE | elf::STT_SECTION);
            if let Ok(name) = core::str::from_utf8(name)
                && !name.is_empty()
                && is_place
            {
                linked.symbols.push((name.into(), symbol.st_value(endian)));
            }
        }
        Ok(linked)
    }

    /// Reads a program without its symbols.
    pub fn parse_segments(data: &[u8]) -> Result<Linked, Error> {
        let header = Header::parse(data).map_err(not_a_program)?;
        let endian = header.endian().map_err(not_a_program)?;
        if header.e_machine(endian) != elf::EM_X86_64 || header.e_type(endian) != elf::ET_EXEC {
            return Err(Error::NotAProgram("wrong machine or kind of file".into()));
        }
        let mut linked =
            Linked { entry: header.e_entry(endian), segments: Vec::new(), note: (0, 0), symbols: Vec::new() };
        for segment in header.program_headers(endian, data).map_err(not_a_program)? {
            let bytes = segment.data(endian, data).map_err(|()| Error::NotAProgram("a segment lies outside".into()))?;
            let address = segment.p_paddr(endian);
            let memory_bytes = segment.p_memsz(endian);
            match segment.p_type(endian) {
                elf::PT_LOAD if memory_bytes < bytes.len() as u64 || address.checked_add(memory_bytes).is_none() => {
                    return Err(Error::NotAProgram("a segment does not fit memory".into()));
                }
                elf::PT_LOAD => linked.segments.push(Segment {
                    address,
                    flags: segment.p_flags(endian),
                    bytes: bytes.into(),
                    memory_bytes,
                }),
                elf::PT_NOTE => linked.note = (address, bytes.len() as u64),
                _ => {}
            }
        }
        let note_is_inside =
            linked.segments.iter().any(|s| s.position(linked.note.0, linked.note.1 as usize).is_some());
        if linked.note.1 == 0 || !note_is_inside {
            return Err(Error::NotAnImage("the PVH entry note".into()));
        }
        Ok(linked)
    }

    /// A symbol's address.
    pub fn symbol(&self, name: &str) -> Result<u64, Error> {
        let found = self.symbols.iter().find(|(symbol, _)| symbol == name);
        found.map(|(_, at)| *at).ok_or_else(|| Error::NotAnImage(format!("the symbol {name}")))
    }

    /// Reads a number at an address.
    pub fn read_u64(&self, address: u64) -> Result<u64, Error> {
        let read = |s: &Segment| s.position(address, 8).map(|at| s.bytes[at..at + 8].try_into().expect("8 bytes"));
        self.segments.iter().find_map(read).map(u64::from_le_bytes).ok_or_else(|| outside(address))
    }

    /// Writes a number at an address.
    pub fn write_u64(&mut self, address: u64, value: u64) -> Result<(), Error> {
        let place = self.segments.iter_mut().find_map(|s| s.position(address, 8).map(|at| &mut s.bytes[at..at + 8]));
        place.ok_or_else(|| outside(address))?.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }

    /// Writes the program: headers, then the segments in order, without long runs of zeros.
    pub fn write(&self) -> Vec<u8> {
        let segments: Vec<Segment> = self.segments.iter().flat_map(Segment::without_zeros).collect();
        let headers = segments.len() + 1;
        let mut file = vec![0; HEADER_BYTES + headers * PROGRAM_HEADER_BYTES];
        let mut table = Vec::new();
        let mut note_at = 0;
        for segment in &segments {
            let offset = file.len() as u64;
            file.extend_from_slice(&segment.bytes);
            let len = segment.bytes.len() as u64;
            program_header(
                &mut table,
                (elf::PT_LOAD, segment.flags),
                offset,
                segment.address,
                (len, segment.memory_bytes),
                ALIGNMENT,
            );
            if let Some(position) = segment.position(self.note.0, self.note.1 as usize) {
                note_at = offset + position as u64;
            }
        }
        let note_bytes = (self.note.1, self.note.1);
        program_header(&mut table, (elf::PT_NOTE, elf::PF_R), note_at, self.note.0, note_bytes, 4);
        file[HEADER_BYTES..HEADER_BYTES + table.len()].copy_from_slice(&table);
        file[..HEADER_BYTES].copy_from_slice(&file_header(self.entry, headers as u16));
        file
    }
}

fn outside(address: u64) -> Error {
    Error::NotAnImage(format!("the memory at {address:#x}"))
}

fn program_header(
    table: &mut Vec<u8>,
    (kind, flags): (u32, u32),
    offset: u64,
    address: u64,
    (file_bytes, memory_bytes): (u64, u64),
    alignment: u64,
) {
    table.extend_from_slice(&kind.to_le_bytes());
    table.extend_from_slice(&flags.to_le_bytes());
    for word in [offset, address, address, file_bytes, memory_bytes, alignment] {
        table.extend_from_slice(&word.to_le_bytes());
    }
}

fn file_header(entry: u64, program_headers: u16) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&elf::ELFMAG);
    header.extend_from_slice(&[elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT]);
    header.resize(16, 0);
    header.extend_from_slice(&elf::ET_EXEC.to_le_bytes());
    header.extend_from_slice(&elf::EM_X86_64.to_le_bytes());
    header.extend_from_slice(&u32::from(elf::EV_CURRENT).to_le_bytes());
    for word in [entry, HEADER_BYTES as u64, 0] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&0u32.to_le_bytes());
    let section_header_bytes = 64u16;
    for half in [HEADER_BYTES as u16, PROGRAM_HEADER_BYTES as u16, program_headers, section_header_bytes, 0, 0] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header
}

#[cfg(test)]
impl Linked {
    /// Writes the program as a linker does, with a symbol table.
    pub fn write_with_symbols(&self) -> Vec<u8> {
        let mut file = self.write();
        let (mut strings, mut symbols) = (vec![0], vec![0; 24]);
        for (name, at) in &self.symbols {
            symbols.extend_from_slice(&(strings.len() as u32).to_le_bytes());
            symbols.extend_from_slice(&[0, 0, 1, 0]);
            symbols.extend_from_slice(&at.to_le_bytes());
            symbols.extend_from_slice(&0u64.to_le_bytes());
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let mut sections = vec![0; 64];
        for (kind, bytes, link, entry_bytes) in
            [(elf::SHT_SYMTAB, symbols, 2u32, 24u64), (elf::SHT_STRTAB, strings, 0, 0)]
        {
            sections.extend_from_slice(&0u32.to_le_bytes());
            sections.extend_from_slice(&kind.to_le_bytes());
            for word in [0, 0, file.len() as u64, bytes.len() as u64] {
                sections.extend_from_slice(&word.to_le_bytes());
            }
            sections.extend_from_slice(&link.to_le_bytes());
            sections.extend_from_slice(&0u32.to_le_bytes());
            sections.extend_from_slice(&[0; 8]);
            sections.extend_from_slice(&entry_bytes.to_le_bytes());
            file.extend_from_slice(&bytes);
        }
        let sections_at = file.len() as u64;
        file.extend_from_slice(&sections);
        file[0x28..0x30].copy_from_slice(&sections_at.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
        // Section names are looked up in the string table, too.
        file[0x3e..0x40].copy_from_slice(&2u16.to_le_bytes());
        file
    }
}
