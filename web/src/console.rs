//! In the place of the tool's standard output and error: warnings are kept for the answer.

use crate::fail::Result;
use crate::output::printable;
use std::cell::RefCell;
use std::fmt;

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Most warnings that are kept.
const MOST: usize = 1000;

/// Takes the warnings since the last call.
pub(crate) fn take() -> Vec<String> {
    WARNINGS.take()
}

pub(crate) fn warn(text: impl fmt::Display) {
    WARNINGS.with_borrow_mut(|warnings| {
        if warnings.len() < MOST {
            warnings.push(printable(&text.to_string()));
        }
    });
}

pub(crate) fn note(text: impl fmt::Display) {
    warn(text);
}

/// Nothing: the commands that print are not called.
pub(crate) fn print(_: impl fmt::Display) -> Result<()> {
    Ok(())
}
