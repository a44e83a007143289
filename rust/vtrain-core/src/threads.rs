//! How many threads a piece of work gets: rayon pools, kept for the life of the process.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

static POOLS: LazyLock<Mutex<HashMap<NonZeroUsize, Arc<ThreadPool>>>> =
    LazyLock::new(Mutex::default);

/// Runs `work` on that many threads; 0 is rayon's own choice, all cores.
pub fn run_on<R: Send>(
    threads: usize,
    work: impl FnOnce() -> R + Send,
) -> Result<R, ThreadPoolBuildError> {
    match NonZeroUsize::new(threads) {
        Some(threads) => Ok(pool(threads)?.install(work)),
        None => Ok(work()),
    }
}

fn pool(threads: NonZeroUsize) -> Result<Arc<ThreadPool>, ThreadPoolBuildError> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let pool = Arc::new(
        ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .build()?,
    );
    pools.insert(threads, Arc::clone(&pool));
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_sees_the_threads_it_was_given() -> Result<(), ThreadPoolBuildError> {
        for threads in 1..4 {
            assert_eq!(run_on(threads, rayon::current_num_threads)?, threads);
        }
        assert!(run_on(0, rayon::current_num_threads)? >= 1);
        Ok(())
    }
}
