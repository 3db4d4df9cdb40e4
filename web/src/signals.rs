//! In the place of the tool's signals: a page has no unfinished files.

use std::path::Path;

pub(crate) fn begin(_: &Path) {}

pub(crate) fn end(_: &Path) {}
