//! Values that many objects have in common, each kept once: a thousand nodes of one pool differ in a handful of labels.
//! What nobody uses any more goes when the pool has doubled since it was last looked through.

use std::{borrow::Borrow, collections::BTreeSet, sync::Arc};

/// A pool is looked through for the first time at this size.
const SWEEP_FROM: usize = 1024;

/// Shared values of one kind.
#[derive(Debug)]
pub(super) struct Pool<T: ?Sized> {
    all: BTreeSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { all: BTreeSet::new(), sweep_at: SWEEP_FROM }
    }
}

impl<T: ?Sized + Ord> Pool<T> {
    /// The one copy of it.
    pub(super) fn share(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.all.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.all.len() >= self.sweep_at {
            self.all.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = SWEEP_FROM.max(self.all.len() * 2);
        }
        let new: Arc<T> = value.into();
        self.all.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_is_kept_once_and_what_nobody_uses_goes() {
        let mut pool = Pool::<str>::default();
        let (first, second) = (pool.share("H100"), pool.share("H100"));
        assert!(Arc::ptr_eq(&first, &second));
        for n in 0..10 * SWEEP_FROM {
            pool.share(n.to_string().as_str());
        }
        assert!(pool.all.len() <= 2 * SWEEP_FROM, "{}", pool.all.len());
        assert!(Arc::ptr_eq(&first, &pool.share("H100")));
    }
}
