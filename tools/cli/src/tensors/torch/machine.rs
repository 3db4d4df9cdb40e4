//! The program of a pickle, which is run without executing anything of Python.
//!
//! A pickle may call any function of Python. Here a call only records what was called with what: tensors,
//! numbers, strings and containers are understood, everything else stays a name. Memory is proportional to
//! the pickle; there are no loops.

use super::pickle::{Id, Node};
use crate::fail::{Failure, Result};
use std::collections::HashMap;

/// Runs the pickle at the beginning of the bytes. Returns its values, the number of the last, and its length.
pub(super) fn run(bytes: &[u8]) -> Result<(Vec<Node>, Id, usize)> {
    let mut machine = Machine {
        bytes,
        at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        globals: MAX_GLOBALS,
    };
    let root = machine
        .run()
        .map_err(|what| Failure::invalid(format_args!("{what} at byte {:#x} of the pickle", machine.at)))?;
    Ok((machine.nodes, root, machine.at))
}

/// The state of a pickle's program.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Bytes that names of Python may still have: a few bytes join two texts that were read before.
    globals: usize,
}

type Step<T> = std::result::Result<T, String>;

/// Most values of a pickle. Each takes a byte or more of it, so this bounds files, not models.
const MAX_NODES: usize = 1 << 26;
/// Most bytes of all names of Python. Picklers write each name once.
const MAX_GLOBALS: usize = 64 << 20;

impl Machine<'_> {
    fn run(&mut self) -> Step<Id> {
        if self.take(1)? != [0x80] {
            return Err("no protocol number".into());
        }
        let protocol = self.byte()?;
        if !(2..=5).contains(&protocol) {
            return Err(format!("protocol {protocol}, 2 to 5 are read"));
        }
        loop {
            let opcode = self.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            // PROTO, FRAME
            0x80 => _ = self.byte()?,
            0x95 => _ = self.take(8)?,
            b'(' => self.marks.push(self.stack.len()),
            b'0' => _ = self.pop()?,
            b'1' => _ = self.pop_mark()?,
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Node::None)?,
            0x88 => self.push(Node::Bool(true))?,
            0x89 => self.push(Node::Bool(false))?,
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(opcode)?,
            b'G' => {
                let bytes = self.array::<8>()?;
                self.push(Node::Float(f64::from_be_bytes(bytes)))?;
            }
            b'X' | b'U' | b'T' | 0x8c | 0x8d => self.text(opcode)?,
            b'B' | b'C' | 0x8e | 0x96 => self.opaque_bytes(opcode)?,
            b')' | b't' | 0x85 | 0x86 | 0x87 => self.tuple(opcode)?,
            b']' => self.push(Node::List(Vec::new()))?,
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))?;
            }
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'd' => {
                let items = self.pop_mark()?;
                self.push(Node::Dict(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item], false)?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.extend(items, false)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend(vec![key, value], true)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.extend(items, true)?;
            }
            // Sets are lists here.
            0x8f => self.push(Node::List(Vec::new()))?,
            0x90 => {
                let items = self.pop_mark()?;
                self.extend(items, false)?;
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))?;
            }
            b'q' | b'r' | 0x94 => self.memoize(opcode)?,
            b'h' | b'j' => self.recall(opcode)?,
            b'c' | 0x93 => self.global(opcode)?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))?;
            }
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.push(Node::Call(callable, arguments))?;
            }
            0x92 => {
                let (named, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                self.push(Node::Call(callable, arguments))?;
                self.fill(named)?;
            }
            // BUILD sets attributes.
            b'b' => {
                let attributes = self.pop()?;
                self.fill(attributes)?;
            }
            other => return Err(format!("opcode {other:#04x}, which no state dict needs,")),
        }
        Ok(())
    }

    fn integer(&mut self, opcode: u8) -> Step<()> {
        let value = match opcode {
            b'K' => i64::from(self.byte()?),
            b'M' => i64::from(u16::from_le_bytes(self.array()?)),
            b'J' => i64::from(i32::from_le_bytes(self.array()?)),
            _ => {
                let len = match opcode {
                    0x8a => usize::from(self.byte()?),
                    _ => self.length4()?,
                };
                let bytes = self.take(len)?;
                if len > 8 {
                    // No size and no offset has more than 64 bits.
                    return self.push(Node::None);
                }
                let sign = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut word = [sign; 8];
                word[..len].copy_from_slice(bytes);
                i64::from_le_bytes(word)
            }
        };
        self.push(Node::Int(value))
    }

    fn text(&mut self, opcode: u8) -> Step<()> {
        let len = match opcode {
            b'U' | 0x8c => usize::from(self.byte()?),
            0x8d => self.length8()?,
            _ => self.length4()?,
        };
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.push(Node::Text(text))
    }

    fn opaque_bytes(&mut self, opcode: u8) -> Step<()> {
        let len = match opcode {
            b'C' => usize::from(self.byte()?),
            b'B' => self.length4()?,
            _ => self.length8()?,
        };
        self.take(len)?;
        self.push(Node::Bytes(len))
    }

    fn tuple(&mut self, opcode: u8) -> Step<()> {
        let items = match opcode {
            b')' => Vec::new(),
            b't' => self.pop_mark()?,
            _ => {
                let mut items = Vec::new();
                for _ in 0..opcode - 0x84 {
                    items.push(self.pop()?);
                }
                items.reverse();
                items
            }
        };
        self.push(Node::Tuple(items))
    }

    /// Adds items to the container on top, or to the object that was made by a call: an `OrderedDict`.
    fn extend(&mut self, items: Vec<Id>, is_dict: bool) -> Step<()> {
        let top = self.top()?;
        let at = match self.nodes[top as usize] {
            Node::Filled(_, contents) => contents,
            _ => top,
        };
        match &mut self.nodes[at as usize] {
            Node::Dict(entries) if is_dict => entries.extend(items),
            Node::List(entries) if !is_dict => entries.extend(items),
            _ => {
                let contents = if is_dict { Node::Dict(items) } else { Node::List(items) };
                self.push(contents)?;
                let contents = self.pop()?;
                self.fill(contents)?;
            }
        }
        Ok(())
    }

    /// Puts contents into the object on top.
    fn fill(&mut self, contents: Id) -> Step<()> {
        let top = self.top()?;
        let object = std::mem::replace(&mut self.nodes[top as usize], Node::None);
        self.push(object)?;
        let object = self.pop()?;
        self.nodes[top as usize] = Node::Filled(object, contents);
        Ok(())
    }

    fn memoize(&mut self, opcode: u8) -> Step<()> {
        let key = match opcode {
            b'q' => u32::from(self.byte()?),
            b'r' => u32::from_le_bytes(self.array()?),
            _ => u32::try_from(self.memo.len()).map_err(|_| "too many memos".to_owned())?,
        };
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, opcode: u8) -> Step<()> {
        let key = match opcode {
            b'h' => u32::from(self.byte()?),
            _ => u32::from_le_bytes(self.array()?),
        };
        let id = *self.memo.get(&key).ok_or_else(|| format!("memo {key} is not there"))?;
        self.stack.push(id);
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Step<()> {
        let name = if opcode == b'c' {
            let (module, name) = (self.line()?, self.line()?);
            format!("{module}.{name}")
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            let (Node::Text(module), Node::Text(name)) =
                (&self.nodes[module as usize], &self.nodes[name as usize])
            else {
                return Err("a global without a name".into());
            };
            let left = self.globals.checked_sub(module.len().saturating_add(name.len()));
            self.globals = left.ok_or("too long names of globals")?;
            format!("{module}.{name}")
        };
        self.push(Node::Global(name))
    }

    fn push(&mut self, node: Node) -> Step<()> {
        if self.nodes.len() >= MAX_NODES {
            return Err("too many values".into());
        }
        self.stack.push(self.nodes.len() as Id);
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Step<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("an empty stack".into());
        }
        self.stack.pop().ok_or_else(|| "an empty stack".into())
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("no mark on the stack")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&self) -> Step<Id> {
        self.stack.last().copied().ok_or_else(|| "an empty stack".into())
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "a cut".into())
    }

    fn length4(&mut self) -> Step<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| "too long a value".into())
    }

    fn length8(&mut self) -> Step<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| "too long a value".into())
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|b| *b == b'\n').ok_or("a cut name")?;
        let line = String::from_utf8_lossy(&rest[..len]).into_owned();
        self.at += len + 1;
        Ok(line)
    }

    fn take(&mut self, len: usize) -> Step<&[u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or("the pickle is cut")?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::torch::pickle::Pickle;

    fn read(program: &[u8]) -> Result<Pickle> {
        Pickle::read(&[&[0x80, 2], program].concat())
    }

    #[test]
    fn values_are_read() {
        // {'a': [1, -2], 'b': (3.5, None, True)}
        let pickle =
            read(b"}(X\x01\0\0\0a](K\x01J\xfe\xff\xff\xffeX\x01\0\0\0bG\x40\x0c\0\0\0\0\0\0N\x88\x87u.")
                .unwrap();
        let Node::Dict(items) = pickle.node(pickle.root()) else { panic!("{pickle:?}") };
        let Node::List(list) = pickle.node(items[1]) else { panic!("{pickle:?}") };
        assert_eq!((pickle.node(list[0]), pickle.node(list[1])), (&Node::Int(1), &Node::Int(-2)));
        let Node::Tuple(tuple) = pickle.node(items[3]) else { panic!("{pickle:?}") };
        assert_eq!((pickle.node(tuple[0]), tuple.len()), (&Node::Float(3.5), 3));
        let long = read(b"\x8a\x02\x00\x01.").unwrap();
        assert_eq!(long.node(long.root()), &Node::Int(256));
    }

    #[test]
    fn what_is_put_into_an_object_is_kept() {
        // A deque of 1 and 2 with an attribute, and a set of 3.
        let pickle =
            read(b"(ccollections\ndeque\n)R(K\x01K\x02e}X\x01\0\0\0aK\x07sb\x8f(K\x03\x90l.").unwrap();
        let Node::List(items) = pickle.node(pickle.root()) else { panic!("{pickle:?}") };
        let Node::Filled(inner, attributes) = pickle.node(items[0]) else { panic!("{pickle:?}") };
        let Node::Filled(call, list) = pickle.node(*inner) else { panic!("{pickle:?}") };
        assert!(matches!(pickle.node(*call), Node::Call(..)));
        assert!(matches!(pickle.node(*list), Node::List(items) if items.len() == 2));
        assert!(matches!(pickle.node(*attributes), Node::Dict(items) if items.len() == 2));
        assert!(matches!(pickle.node(items[1]), Node::List(items) if items.len() == 1));
    }

    #[test]
    fn calls_are_recorded_and_never_made() {
        let pickle = read(b"cos\nsystem\nX\x04\0\0\0trueq\0\x85R.").unwrap();
        let Node::Call(callable, _) = pickle.node(pickle.root()) else { panic!("{pickle:?}") };
        assert_eq!(pickle.node(*callable), &Node::Global("os.system".into()));
    }

    #[test]
    fn hostile_programs_end_with_an_error() {
        for program in [
            &b""[..],
            b".",
            b"0.",
            b"1.",
            b"h\x07.",
            b"(0.",
            b"R.",
            b"X\xff\xff\xff\xffa.",
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
            b"cos\nsystem",
            b"i.",
            b"\x82\x01.",
            b"P0\n.",
        ] {
            assert!(read(program).is_err(), "{program:?}");
        }
        assert!(Pickle::read(b"(dp0\n.").is_err());
        assert!(Pickle::read(&[0x80, 9, b'N', b'.']).is_err());
        // Each byte doubles what the list would print, but it stays one list.
        let mut bomb = b"]q\0".to_vec();
        bomb.extend(b"h\0a".repeat(10_000));
        bomb.push(b'.');
        assert!(run(&[&[0x80, 2], &bomb[..]].concat()).unwrap().0.len() < 10);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_ends() {
        let whole =
            b"\x80\x02}q\0(X\x01\0\0\0aq\x01cfoo\nbar\nq\x02)R(K\x01K\x02tX\x01\0\0\0bq\x03]q\x04(K\x05eu.";
        assert!(Pickle::read(whole).is_ok());
        for len in 0..whole.len() {
            assert!(Pickle::read(&whole[..len]).is_err(), "{len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut wrong = whole.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let _ = Pickle::read(&wrong);
        }
    }
}
