//! What the standard library has no safe call for: signals other than SIGKILL, children that die with their parent, who we are.
#![allow(unsafe_code, reason = "system calls that the standard library does not offer")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that tests send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    /// Please stop.
    Terminate,
    /// Freeze: the process keeps its sockets and does nothing.
    Stop,
    /// Go on after a freeze.
    Continue,
}

/// Sends `signal` to the process `pid`, a child that was not yet waited for.
pub(crate) fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the call takes plain numbers. The id is that of a child that was not yet waited for, so it is not reused.
    if unsafe { libc::kill(pid, number) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel kill the child when the thread that starts it ends, however it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: a system call with plain numbers, which is allowed between fork and exec.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the closure only makes one system call: it takes no lock and no memory.
    unsafe { command.pre_exec(ask) };
}

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
