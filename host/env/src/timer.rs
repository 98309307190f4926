//! An alarm clock as a file descriptor, for waits that a runtime's timer of one millisecond is too coarse for.
#![allow(unsafe_code, reason = "system calls that the standard library does not offer")]

use hedgerow_types::Instant;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;

/// A timer of the kernel, on the clock of [`crate::os::OsClock`]. Its descriptor becomes readable when the time has come, so
/// that any poller can wait for it. It is as exact as the kernel's own clock; waking the thread takes some ten microseconds.
#[derive(Debug)]
pub struct Timer {
    descriptor: OwnedFd,
}

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes plain numbers.
        let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just given the descriptor, which nobody else knows.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Sets it to `at`, instead of what it was set to. A time in the past comes at once.
    pub fn set(&self, at: Instant) -> io::Result<()> {
        // Zero would mean never.
        self.set_value(at.0.max(1))
    }

    /// Takes back what it was set to.
    pub fn clear(&self) -> io::Result<()> {
        self.set_value(0)
    }

    /// Makes the descriptor unreadable again until the next time that is set comes. Whether the time had come.
    pub fn take(&self) -> io::Result<bool> {
        let mut count = [0_u8; 8];
        // SAFETY: the pointer and length are those of a live array of ours.
        let read = unsafe { libc::read(self.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if read == count.len() as isize {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
    }

    fn set_value(&self, nanos: u64) -> io::Result<()> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
        };
        let spec = libc::itimerspec { it_interval: never, it_value: value };
        // SAFETY: the pointer is to a live itimerspec of ours, and a null pointer asks for no old value.
        let status =
            unsafe { libc::timerfd_settime(self.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &raw const spec, null_mut()) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A [`Timer`] that tasks wait for.
#[derive(Debug)]
pub struct AsyncTimer {
    timer: AsyncFd<Timer>,
}

impl AsyncTimer {
    /// A timer that is not set. To be made within a runtime, and waited for there.
    pub fn new() -> io::Result<Self> {
        let timer = Timer::new()?;
        // SAFETY: the timer owns its descriptor and closes it only when it is dropped, when the registration is gone.
        let timer = unsafe { AsyncFd::register(timer) };
        Ok(Self { timer: timer.map_err(io::Error::from)? })
    }

    /// Sets it to `at`, instead of what it was set to. A time in the past comes at once.
    pub fn set(&self, at: Instant) -> io::Result<()> {
        self.timer.get_ref().set(at)
    }

    /// Ready when it may have rung since the last call, for a caller who then looks at the time. For one task at a time.
    pub fn poll_rung(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Setting it anew makes the descriptor unreadable again, so that it need not be read.
        let ready = ready!(self.timer.poll_read_ready(context));
        Poll::Ready(ready.map(|mut guard| guard.clear_ready()))
    }

    /// Waits until a time that it was set to has come. For one task at a time.
    pub async fn wait(&self) -> io::Result<()> {
        loop {
            let mut ready = self.timer.readable().await?;
            ready.clear_ready();
            // Setting it anew makes the descriptor unreadable again, so that being woken alone says nothing.
            if self.timer.get_ref().take()? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock as _;
    use crate::os::OsClock;
    use std::time::Duration;

    fn wait(timer: &Timer) {
        let mut poll = libc::pollfd { fd: timer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one live pollfd of ours.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, -1) }, 1);
    }

    #[test]
    fn it_comes_when_it_is_set_for_and_once() {
        let timer = Timer::new().unwrap();
        assert!(!timer.take().unwrap());
        let due = OsClock.now() + Duration::from_micros(300);
        timer.set(due).unwrap();
        wait(&timer);
        assert!(OsClock.now() >= due);
        assert!(timer.take().unwrap());
        assert!(!timer.take().unwrap());
    }

    #[test]
    fn the_past_comes_at_once_and_what_is_cleared_never() {
        let timer = Timer::new().unwrap();
        timer.set(Instant::ZERO).unwrap();
        wait(&timer);
        timer.set(OsClock.now() + Duration::from_secs(1_000)).unwrap();
        assert!(!timer.take().unwrap());
        timer.set(OsClock.now()).unwrap();
        timer.clear().unwrap();
        assert!(!timer.take().unwrap());
    }

    #[test]
    fn a_task_waits_for_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = AsyncTimer::new().unwrap();
            for micros in [0, 300, 50] {
                let due = OsClock.now() + Duration::from_micros(micros);
                timer.set(due).unwrap();
                timer.wait().await.unwrap();
                assert!(OsClock.now() >= due);
            }
        });
    }
}
