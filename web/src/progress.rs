//! In the place of the tool's progress bar: JavaScript counts the bytes that are read.

pub(crate) struct Progress;

impl Progress {
    pub(crate) fn new(_: u64, _: &'static str, _: bool) -> Self {
        Self
    }

    pub(crate) fn set(&self, _: u64) {}
}
