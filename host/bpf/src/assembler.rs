//! Instructions and how they are put together.

/// One instruction (Linux, `Documentation/bpf/standardization/instruction-set.rst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    /// Destination register in the lower half, source register in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Classes and modes of the instructions that are used.
#[allow(missing_docs)]
pub mod op {
    pub const LDX_W: u8 = 0x61;
    pub const LDX_H: u8 = 0x69;
    pub const LDX_B: u8 = 0x71;
    pub const LDX_DW: u8 = 0x79;
    pub const STX_W: u8 = 0x63;
    pub const STX_DW: u8 = 0x7b;
    pub const MOV64_REG: u8 = 0xbf;
    pub const MOV64_IMM: u8 = 0xb7;
    pub const MOV32_IMM: u8 = 0xb4;
    pub const ADD64_IMM: u8 = 0x07;
    pub const JA: u8 = 0x05;
    pub const JGT_REG: u8 = 0x2d;
    pub const JNE_REG: u8 = 0x5d;
    pub const JEQ_IMM: u8 = 0x15;
    pub const JNE_IMM: u8 = 0x55;
    pub const JNE32_IMM: u8 = 0x56;
    pub const CALL: u8 = 0x85;
    pub const EXIT: u8 = 0x95;
}

/// A load of 64 bits that stand in two instructions' places.
const LD_IMM64: u8 = 0x18;
/// The source register of such a load that says that the value is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// A program under construction, whose jumps lead to labels of a type of its own.
pub struct Assembler<Label> {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl<Label> Default for Assembler<Label> {
    fn default() -> Assembler<Label> {
        Assembler { instructions: Vec::new(), jumps: Vec::new(), labels: Vec::new() }
    }
}

impl<Label: PartialEq> Assembler<Label> {
    /// Appends an instruction. What it does not use is 0.
    pub fn put(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: source << 4 | destination, offset, immediate });
    }

    /// Appends a jump, or a comparison and a jump where it is true.
    pub fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(code, destination, source, 0, immediate);
    }

    /// Where jumps to this label lead.
    pub fn label(&mut self, label: Label) {
        self.labels.push((label, self.instructions.len()));
    }

    /// Loads 64 bits.
    pub fn load64(&mut self, destination: u8, value: u64) {
        self.put(LD_IMM64, destination, 0, 0, value as i32);
        self.put(0, 0, 0, 0, (value >> 32) as i32);
    }

    /// Loads a map, of which this is the descriptor.
    pub fn load_map(&mut self, destination: u8, descriptor: i32) {
        self.put(LD_IMM64, destination, PSEUDO_MAP_FD, 0, descriptor);
        self.put(0, 0, 0, 0, 0);
    }

    /// The program. Each label that is jumped to has been set.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels.iter().find(|(known, _)| *known == label).expect("each label is set").1;
            self.instructions[at].offset = (to as i64 - at as i64 - 1) as i16;
        }
        self.instructions
    }
}

/// A number of the network's as a load in this machine's byte order gives it.
pub fn loaded_u16(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()).into()
}

/// An address as loads of four bytes each give it.
pub fn loaded_words(octets: &[u8]) -> impl Iterator<Item = i32> {
    octets.as_chunks().0.iter().map(|word| i32::from_ne_bytes(*word))
}
