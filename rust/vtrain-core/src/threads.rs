//! How many threads a piece of work gets: rayon pools, kept for the life of the process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

static POOLS: LazyLock<Mutex<HashMap<usize, Arc<ThreadPool>>>> = LazyLock::new(Mutex::default);

/// Runs `work` on that many threads; 0 is rayon's own choice, all cores, or the pool that calls.
///
/// Rayon's global pool is not used: where its threads cannot be started, it panics.
pub fn run_on<R: Send>(
    threads: usize,
    work: impl FnOnce() -> R + Send,
) -> Result<R, ThreadPoolBuildError> {
    if threads == 0 && rayon::current_thread_index().is_some() {
        return Ok(work());
    }
    Ok(pool(threads)?.install(work))
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>, ThreadPoolBuildError> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(threads).build()?);
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
