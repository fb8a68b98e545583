//! Two halves of a job on two threads, with a few buffers circulating between them.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use alight_pages::Threads;

/// Buffers in use.
const BUFFERS: usize = 4;

/// Calls `produce` on this thread until it has no more, and `consume` on another thread with each tag and
/// buffer, in the same order. Returns the number of threads that were available.
///
/// A buffer keeps its capacity from one use to the next; its contents are stale.
///
/// # Errors
/// The first that either of them returns; the other one stops soon after.
pub(crate) fn pipe<T: Send, E: Send>(
    mut produce: impl FnMut(&mut Vec<u8>) -> Result<Option<T>, E>,
    mut consume: impl FnMut(T, &[u8]) -> Result<(), E> + Send,
) -> Result<Threads, E> {
    let (full, to_consume) = channel::<(T, Vec<u8>)>();
    let (empty, to_fill): (_, Receiver<Vec<u8>>) = channel();
    // Held by the consuming thread from its beginning to its end.
    let consume = Mutex::new(&mut consume);
    let consume = || consume.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..BUFFERS {
            // The receiver is alive.
            let _ = empty.send(Vec::new());
        }
        let consumer = thread::Builder::new().name("alight-write".into());
        let consumer = consumer.spawn_scoped(scope, move || {
            let mut consume = consume();
            for (tag, buffer) in to_consume {
                consume(tag, &buffer)?;
                // The producer may be done.
                let _ = empty.send(buffer);
            }
            Ok(())
        });
        let Ok(consumer) = consumer else {
            // The system has no more threads: both run in turn on this one.
            let (mut consume, mut buffer) = (consume(), Vec::new());
            while let Some(tag) = produce(&mut buffer)? {
                consume(tag, &buffer)?;
            }
            return Ok(Threads { wanted: 2, had: 1 });
        };
        let mut produced = Ok(());
        // Ends when the consumer has finished, which happens early only with an error.
        while let Ok(mut buffer) = to_fill.recv() {
            match produce(&mut buffer) {
                Ok(Some(tag)) => {
                    if full.send((tag, buffer)).is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    produced = Err(error);
                    break;
                }
            }
        }
        drop(full);
        let consumed = match consumer.join() {
            Ok(consumed) => consumed,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        consumed.and(produced).map(|()| Threads { wanted: 2, had: 2 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_in_order() {
        let mut next = 0_u32;
        let mut seen = Vec::new();
        let made = pipe(
            |buffer| {
                next += 1;
                buffer.clear();
                buffer.extend(next.to_le_bytes());
                Ok::<_, ()>((next <= 100).then_some(next))
            },
            |tag, bytes| {
                assert_eq!(bytes, tag.to_le_bytes());
                seen.push(tag);
                Ok(())
            },
        );
        assert!(made.is_ok());
        assert_eq!(seen, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_on_either_side_ends_it() {
        let endless = |_: &mut Vec<u8>| Ok(Some(()));
        let mut left = 10;
        let consume = |(), _: &[u8]| {
            left -= 1;
            if left == 0 { Err("full") } else { Ok(()) }
        };
        assert_eq!(pipe(endless, consume), Err("full"));
        assert_eq!(pipe(|_| Err::<Option<()>, _>("unreadable"), |(), _| Ok(())), Err("unreadable"));
    }
}
