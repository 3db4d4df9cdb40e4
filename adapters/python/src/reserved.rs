//! `bytes` objects whose length is not known when writing begins.

use std::mem::MaybeUninit;

use gcodec::stream::Output;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Up to this many bytes are written to a vector and copied: the memory of an object of the largest expected
/// size would come from the system in small pages, which cost far more than a copy. More is worth large ones.
const SMALL: usize = 4 << 20;

/// Output that becomes a `bytes` object.
///
/// Large output is written directly into an object of the largest expected size, whose memory the system
/// supplies on first use. Small output, and output beyond that size, is written to a vector and copied at the
/// end.
pub(crate) struct Reserved {
    room: Option<Room>,
    /// Whether the bytes are in `room` instead of `vector`.
    moved_in: bool,
    vector: Vec<u8>,
}

/// An object with one reference, its memory, and the number of written bytes.
struct Room {
    object: Py<PyBytes>,
    memory: &'static mut [MaybeUninit<u8>],
    len: usize,
}

impl Room {
    /// Makes an object of `capacity` bytes; `None` if the system has not enough memory.
    #[expect(unsafe_code, reason = "a `bytes` object is written before others see it")]
    fn new(py: Python<'_>, capacity: usize) -> Option<Self> {
        let len = ffi::Py_ssize_t::try_from(capacity).ok()?;
        // SAFETY: without bytes to copy, the interpreter makes an object with uninitialised bytes, or returns
        // null and sets an exception.
        let made = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), len))
        };
        let object = made.ok()?.cast_into::<PyBytes>().ok()?.unbind();
        // SAFETY: the maker of a new object may write to it. Its memory keeps its address while `object`
        // lives, and no other code sees it before `Room::finish`.
        let memory = unsafe {
            let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<MaybeUninit<u8>>();
            std::slice::from_raw_parts_mut(start, capacity)
        };
        gcodec::internal::prefer_large_for(memory);
        Some(Self { object, memory, len: 0 })
    }

    #[expect(unsafe_code, reason = "written bytes are read as initialised")]
    fn bytes(&self) -> &[u8] {
        let written = &self.memory[..self.len];
        // SAFETY: `append` has written these bytes.
        unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }

    #[expect(unsafe_code, reason = "as above")]
    fn bytes_mut(&mut self) -> &mut [u8] {
        let written = &mut self.memory[..self.len];
        // SAFETY: `append` has written these bytes.
        unsafe { std::slice::from_raw_parts_mut(written.as_mut_ptr().cast(), written.len()) }
    }

    /// Appends all bytes, or none. Returns whether they fit.
    #[expect(unsafe_code, reason = "bytes are copied to uninitialised memory")]
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(free) = self.memory[self.len..].get_mut(..bytes.len()) else { return false };
        // SAFETY: `free` is as long as `bytes`, and they do not overlap.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(free.as_mut_ptr().cast(), bytes.len()) };
        self.len += bytes.len();
        true
    }

    /// Returns the object, cut to the written bytes.
    fn finish(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let Self { object, len, .. } = self;
        // BytesIO shortens an object with one reference in place.
        let io = py.import(intern!(py, "io"))?.getattr(intern!(py, "BytesIO"))?.call1((object,))?;
        io.call_method1(intern!(py, "truncate"), (len,))?;
        Ok(io.call_method0(intern!(py, "getvalue"))?.cast_into()?)
    }
}

impl Reserved {
    /// `most`: the largest expected size, in bytes. `likely`: the likely size.
    pub(crate) fn new(py: Python<'_>, most: usize, likely: usize) -> Self {
        let room = if most > SMALL { Room::new(py, most) } else { None };
        Self { moved_in: room.is_some() && likely > SMALL, room, vector: Vec::new() }
    }

    /// Returns the written bytes as an object.
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
