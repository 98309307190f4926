//! The operating system's clock, disk, randomness and threads.
#![allow(clippy::disallowed_methods, reason = "this file is the door that everything else is sent through")]

mod sequential;

use crate::clock::Clock;
use crate::disk::{DirLock, Disk, File, OpenMode, Space};
use hedgerow_types::Instant;
use sequential::SequentialFile;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The niceness of a [`PreferredThread`].
const PREFERRED_NICENESS: i32 = -15;
/// That of work that nobody waits for: a tenth of an ordinary thread's share of a processor that both want.
const BACKGROUND_NICENESS: i32 = 10;

/// The machine's clocks. Steady time is `CLOCK_BOOTTIME`, which counts suspended time too: a lease must not outlive a
/// machine's sleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

impl Clock for OsClock {
    fn now(&self) -> Instant {
        Instant(system::boot_time_nanos())
    }

    fn unix_micros(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The machine's file systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile(options(mode).open(path)?)))
    }

    fn open_sequential(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        let cached = OsFile(options(mode).open(path)?);
        match options(OpenMode::Write).custom_flags(libc::O_DIRECT).open(path) {
            Ok(direct) => Ok(Box::new(SequentialFile::new(direct, cached))),
            // Not every file system can.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Box::new(cached)),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<DirLock> {
        let directory = fs::File::open(dir)?;
        directory.try_lock().map_err(io::Error::from)?;
        Ok(DirLock::new(directory))
    }

    fn device(&self, dir: &Path) -> io::Result<u64> {
        Ok(fs::metadata(dir)?.dev())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn free_space(&self, dir: &Path) -> io::Result<Space> {
        system::free_space(dir)
    }
}

fn options(mode: OpenMode) -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    match mode {
        OpenMode::Read => options.read(true),
        OpenMode::Write => options.read(true).write(true),
        OpenMode::Create => options.read(true).write(true).create(true).truncate(true),
    };
    options
}

#[derive(Debug)]
struct OsFile(fs::File);

impl File for OsFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

/// Starts a thread called `name`, of which the operating system shows the first 15 bytes.
pub fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// How long the calling thread has computed since it began, in user space and in the kernel.
pub fn thread_cpu_time() -> Duration {
    system::thread_cpu_time()
}

/// 64 bits from the operating system's generator: for ids and for the seeds of everything else.
pub fn random_u64() -> u64 {
    system::random_u64()
}

/// Bytes from the operating system's generator: for what nobody must foresee.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random_u64().to_ne_bytes()[..part.len()]));
    bytes
}

/// Lets this process open as many files as the system allows it; the number. A database of every replica keeps some open.
pub fn raise_file_limit() -> io::Result<u64> {
    system::raise_file_limit()
}

/// From now on a write beyond the limit on the size of files (`ulimit -f`) is an error of that write and does not end the process.
pub fn survive_file_size_limit() {
    system::survive_file_size_limit();
}

/// While it lives, the thread that made it runs before others where it may: for a load generator that shares the machine
/// with what it measures.
#[derive(Debug)]
pub struct PreferredThread {
    thread: u32,
    before: i32,
}

impl PreferredThread {
    /// `None` where the system does not permit it.
    pub fn new() -> Option<Self> {
        let thread = system::thread_id();
        let before = system::niceness(thread).ok()?;
        system::set_niceness(thread, PREFERRED_NICENESS).ok()?;
        Some(Self { thread, before })
    }
}

impl Drop for PreferredThread {
    fn drop(&mut self) {
        // To give way is always permitted.
        drop(system::set_niceness(self.thread, self.before));
    }
}

/// Has the disk begin to write what is dirty of the file at `path`, and waits for what it had begun before: for files that
/// somebody appends to, so that they leave no burst of dirty pages for the end. Blocks. It makes nothing durable, and takes no
/// error away from whoever syncs the file later.
pub fn begin_write_out(path: &Path) -> io::Result<()> {
    system::begin_write_out(&options(OpenMode::Read).open(path)?)
}

/// Has the disk begin to read the file at `path` into the system's memory, if it is not there, and does not wait for it.
pub fn begin_read_in(path: &Path) -> io::Result<()> {
    system::begin_read_in(&options(OpenMode::Read).open(path)?)
}

/// Has the calling thread run after others from now on, for work that nobody waits for.
pub fn give_way() {
    let thread = system::thread_id();
    // To give way is always permitted, and a thread that already does so more stays as it is.
    if system::niceness(thread).is_ok_and(|before| before < BACKGROUND_NICENESS) {
        drop(system::set_niceness(thread, BACKGROUND_NICENESS));
    }
}

/// The few calls that the standard library does not offer.
mod system {
    #![allow(unsafe_code, reason = "foreign calls that only fill a buffer of ours")]

    use crate::disk::Space;
    use std::ffi::CString;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::Duration;

    pub(super) fn boot_time_nanos() -> u64 {
        clock_nanos(libc::CLOCK_BOOTTIME)
    }

    pub(super) fn thread_cpu_time() -> Duration {
        Duration::from_nanos(clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID))
    }

    fn clock_nanos(clock: libc::clockid_t) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a live timespec of ours.
        let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(status, 0, "Linux has had both clocks since 2.6.39");
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    pub(super) fn random_u64() -> u64 {
        let mut bytes = [0_u8; 8];
        loop {
            // SAFETY: the pointer and length are those of a live array of ours.
            let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            if count == bytes.len() as isize {
                return u64::from_ne_bytes(bytes);
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "reads of up to 256 bytes fail only on a signal");
        }
    }

    pub(super) fn thread_id() -> u32 {
        // SAFETY: the call takes nothing and cannot fail.
        unsafe { libc::gettid() as u32 }
    }

    /// Of one thread: on Linux the system calls take a thread's id where others take a process'.
    pub(super) fn niceness(thread: u32) -> io::Result<i32> {
        // SAFETY: the calls take plain numbers; errno is this thread's own.
        let (niceness, error) = unsafe {
            *libc::__errno_location() = 0;
            (libc::getpriority(libc::PRIO_PROCESS, thread), *libc::__errno_location())
        };
        if error == 0 { Ok(niceness) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    pub(super) fn set_niceness(thread: u32, niceness: i32) -> io::Result<()> {
        // SAFETY: the call takes plain numbers.
        let status = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, niceness) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn raise_file_limit() -> io::Result<u64> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a live rlimit of ours.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer is to a live rlimit of ours.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(limit.rlim_cur)
    }

    pub(super) fn survive_file_size_limit() {
        // SAFETY: nothing else handles this signal, and to ignore it runs no code.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }

    pub(super) fn begin_write_out(file: &std::fs::File) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
        // SAFETY: the call takes plain numbers; the file is open. A size of 0 means up to its end.
        let status = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn begin_read_in(file: &std::fs::File) -> io::Result<()> {
        let size = libc::off_t::try_from(file.metadata()?.len()).unwrap_or(libc::off_t::MAX);
        // Of what is asked for in one call no more is read than this setting of the disk allows, 128 KiB where nobody changed it.
        const STEP: libc::off_t = 128 << 10;
        for at in (0..size).step_by(STEP as usize) {
            // SAFETY: the call takes plain numbers; the file is open.
            let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), at, STEP, libc::POSIX_FADV_WILLNEED) };
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
        }
        Ok(())
    }

    pub(super) fn free_space(dir: &Path) -> io::Result<Space> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let mut stat = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path ends in a zero byte and the pointer is to space for one statvfs.
        if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a successful call has filled it.
        let stat = unsafe { stat.assume_init() };
        Ok(Space { free: stat.f_bavail * stat.f_frsize, total: stat.f_blocks * stat.f_frsize })
    }
}
