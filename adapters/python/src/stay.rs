//! Values that borrow from something kept beside them.

use std::sync::Arc;

/// `value` borrows from what `owner` holds, which lives as long. Fields are dropped in their order: `value` first.
pub(crate) struct Stay<T, O: ?Sized> {
    value: T,
    owner: Arc<O>,
}

/// Makes a borrow of what an `Arc` holds one that [`Stay`] may keep.
///
/// # Safety
/// The result, and all that is made of it, must be dropped before the last `Arc` of this owner.
pub(crate) unsafe fn extend<'a, T: ?Sized>(borrowed: &'a T) -> &'static T {
    // SAFETY: only the lifetime changes; the caller keeps the owner.
    unsafe { std::mem::transmute::<&'a T, &'static T>(borrowed) }
}

impl<T, O: ?Sized> Stay<T, O> {
    /// `value` may borrow from what `owner` holds, and from nothing else that ends.
    pub(crate) fn new(value: T, owner: Arc<O>) -> Self {
        Self { value, owner }
    }

    pub(crate) fn get(&self) -> &T {
        &self.value
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Gives up the value to `use_it` while the owner still lives.
    pub(crate) fn consume<R: 'static>(self, use_it: impl FnOnce(T) -> R) -> R {
        let Self { value, owner } = self;
        let result = use_it(value);
        drop(owner);
        result
    }
}
