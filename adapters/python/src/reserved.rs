//! A `bytes` object that is written before its length is known.

use std::mem::MaybeUninit;

use gcodec::Output;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Up to so many bytes are written to a vector and copied. Memory of this size goes from hand to hand in the process; more comes from the
/// system each time (glibc's DEFAULT_MMAP_THRESHOLD_MAX), and taking it twice costs far more than copying.
const SMALL: usize = 32 << 20;

/// Bytes that are written where they stay: into a `bytes` object with room for as many as are expected, to which the system
/// gives memory as they come. Few bytes, and more than there is room for, are written to a vector, and copied in the end.
pub(crate) struct Reserved {
    room: Option<Room>,
    /// Whether the bytes are in `room`, and not in `vector`.
    moved_in: bool,
    vector: Vec<u8>,
}

/// An object that nobody else has, its memory, and how much of that is written.
struct Room {
    object: Py<PyBytes>,
    memory: &'static mut [MaybeUninit<u8>],
    len: usize,
}

impl Room {
    /// `None` if the system does not promise so much memory.
    fn new(py: Python<'_>, capacity: usize) -> Option<Self> {
        let len = ffi::Py_ssize_t::try_from(capacity).ok()?;
        // SAFETY: without bytes to copy the interpreter makes an object of so many that are not initialised, or gives null and
        // sets an exception.
        let made = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), len))
        };
        let object = made.ok()?.cast_into::<PyBytes>().ok()?.unbind();
        // SAFETY: an object that was just made may be written by who made it. Its memory stays where it is while `object` is there,
        // and nobody else sees it before `Room::finish`.
        let memory = unsafe {
            let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<MaybeUninit<u8>>();
            std::slice::from_raw_parts_mut(start, capacity)
        };
        Some(Self { object, memory, len: 0 })
    }

    fn bytes(&self) -> &[u8] {
        let written = &self.memory[..self.len];
        // SAFETY: `append` has written them.
        unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let written = &mut self.memory[..self.len];
        // SAFETY: `append` has written them.
        unsafe { std::slice::from_raw_parts_mut(written.as_mut_ptr().cast(), written.len()) }
    }

    /// Whether there was room for all; nothing is written otherwise.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(free) = self.memory[self.len..].get_mut(..bytes.len()) else { return false };
        // SAFETY: `free` is as long as `bytes`, and neither is the other.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(free.as_mut_ptr().cast(), bytes.len()) };
        self.len += bytes.len();
        true
    }

    /// The object, cut to what is written.
    fn finish(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let Self { object, len, .. } = self;
        // The interpreter's own way to shorten an object that has one owner: its memory stays where it is.
        let io = py.import(intern!(py, "io"))?.getattr(intern!(py, "BytesIO"))?.call1((object,))?;
        io.call_method1(intern!(py, "truncate"), (len,))?;
        Ok(io.call_method0(intern!(py, "getvalue"))?.cast_into()?)
    }
}

impl Reserved {
    /// Room for `most` bytes; so many that `likely` of them come.
    pub(crate) fn new(py: Python<'_>, most: usize, likely: usize) -> Self {
        let room = if most > SMALL { Room::new(py, most) } else { None };
        Self { moved_in: room.is_some() && likely > SMALL, room, vector: Vec::new() }
    }

    /// The object, as long as what was written.
    pub(crate) fn finish(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        match self.room.filter(|_| self.moved_in) {
            Some(room) => room.finish(py),
            None => Ok(PyBytes::new(py, &self.vector)),
        }
    }
}

impl Output for Reserved {
    fn bytes(&self) -> &[u8] {
        match &self.room {
            Some(room) if self.moved_in => room.bytes(),
            _ => &self.vector,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(room) if self.moved_in => room.bytes_mut(),
            _ => &mut self.vector,
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(room) = &mut self.room {
            if !self.moved_in && self.vector.len() + bytes.len() > SMALL && room.append(&self.vector) {
                (self.moved_in, self.vector) = (true, Vec::new());
            }
            if self.moved_in {
                if room.append(bytes) {
                    return;
                }
                (self.moved_in, self.vector) = (false, room.bytes().to_vec());
                self.room = None;
            }
        }
        self.vector.extend_from_slice(bytes);
    }

    fn truncate(&mut self, len: usize) {
        match &mut self.room {
            Some(room) if self.moved_in => room.len = room.len.min(len),
            _ => self.vector.truncate(len),
        }
    }
}
