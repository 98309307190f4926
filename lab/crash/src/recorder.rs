//! Takes down what this process does to the files below one directory.
//!
//! The functions below stand in for those of the C library: they are linked into this program, so that the calls of the
//! standard library and of RocksDB come here. They make the system call and note it, one at a time, so that the order of
//! the events is the order of their effects. Until [`begin`] is called, they only make the call.
#![allow(unsafe_code, reason = "it stands in for functions of the C library")]
#![allow(clippy::disallowed_methods, reason = "it reads what is in the recorded directory before")]

use crate::trace::Event;
use libc::{c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

struct Recorder {
    /// With a slash at its end.
    root: String,
    device: u64,
    /// Inodes that were seen below the root. What else is open is not noted.
    inodes: BTreeSet<u64>,
    trace: c_int,
    buffer: Vec<u8>,
}

/// The marker behind what a trace says of the time before it.
pub(crate) const BEGIN: &str = "begin";

/// Records from now on what happens below `root` into the file `trace`, which is outside. What is there already is durable
/// and stands before the marker [`BEGIN`], as does what others had been `told`.
pub(crate) fn begin(root: &Path, trace: &Path, told: &[String]) -> io::Result<()> {
    let path = CString::new(trace.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero byte.
    let trace =
        unsafe { raw_open(libc::AT_FDCWD, path.as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, 0o644) };
    if trace < 0 {
        return Err(io::Error::last_os_error());
    }
    let dir = root;
    let root = root.to_str().ok_or(io::ErrorKind::InvalidInput)?.trim_end_matches('/').to_owned() + "/";
    let stat = stat_path(&root).ok_or_else(io::Error::last_os_error)?;
    let mut recorder = Recorder { root, device: stat.st_dev, inodes: BTreeSet::new(), trace, buffer: Vec::new() };
    let mut events = Vec::new();
    describe(dir, "", &mut BTreeMap::new(), &mut events)?;
    events.extend(told.iter().map(|text| Event::Marker { text: text.clone() }));
    events.push(Event::Marker { text: BEGIN.into() });
    for event in &events {
        if let Event::Create { inode, .. } | Event::CreateDir { inode, .. } = event {
            recorder.inodes.insert(*inode);
        }
        recorder.note(event);
    }
    *RECORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorder);
    IS_RECORDING.store(true, Ordering::Release);
    Ok(())
}

/// How the directory `dir`, which is called `name` in the trace, could have come to be what it is, durably. `files` are the
/// names by which files were met first.
fn describe(dir: &Path, name: &str, files: &mut BTreeMap<u64, String>, events: &mut Vec<Event>) -> io::Result<()> {
    let dir_inode = fs::metadata(dir)?.ino();
    events.push(Event::CreateDir { path: name.to_owned(), inode: dir_inode });
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let path = Path::new(name).join(&file_name).to_string_lossy().into_owned();
        let (metadata, full) = (entry.metadata()?, entry.path());
        let inode = metadata.ino();
        if metadata.is_dir() {
            describe(&full, &path, files, events)?;
        } else if let Some(first) = files.get(&inode) {
            events.push(Event::Link { from: first.clone(), to: path });
        } else {
            events.push(Event::Create { path: path.clone(), inode });
            events.push(Event::Write { inode, offset: 0, data: fs::read(full)? });
            events.push(Event::Sync { inode });
            files.insert(inode, path);
        }
    }
    events.push(Event::Sync { inode: dir_inode });
    Ok(())
}

/// Notes that others have been told `text`.
pub(crate) fn mark(text: String) {
    if let Some(recorder) = turn().as_deref_mut().and_then(Option::as_mut) {
        recorder.note(&Event::Marker { text });
    }
}

type Turn = MutexGuard<'static, Option<Recorder>>;

/// The turn to do something, if it is to be noted. Operations go one at a time while it lives.
fn turn() -> Option<Turn> {
    IS_RECORDING.load(Ordering::Acquire).then(|| RECORDER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Does `call`; if it succeeded, has `note` take it down.
fn recorded<T: Default + PartialOrd + Copy>(call: impl FnOnce() -> T, note: impl FnOnce(&mut Recorder, T)) -> T {
    let mut turn = turn();
    let result = call();
    if let Some(recorder) = turn.as_deref_mut().and_then(Option::as_mut)
        && result >= T::default()
    {
        note(recorder, result);
    }
    result
}

impl Recorder {
    fn note(&mut self, event: &Event) {
        self.buffer.clear();
        event.encode(&mut self.buffer);
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            // SAFETY: the pointer and length are those of a live buffer of ours.
            let count = unsafe { libc::syscall(libc::SYS_write, self.trace, rest.as_ptr(), rest.len()) };
            assert!(count > 0, "the trace cannot be written: {}", io::Error::last_os_error());
            rest = &rest[count as usize..];
        }
    }

    /// The path below the root, if it is there.
    fn path(&self, dir: c_int, path: *const c_char) -> Option<String> {
        // SAFETY: the system call that was given the path has succeeded or will be made with it.
        let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
        let full = match path.starts_with('/') {
            true => path.to_owned(),
            false if dir == libc::AT_FDCWD => read_link("/proc/self/cwd")? + "/" + path,
            false => read_link(&format!("/proc/self/fd/{dir}"))? + "/" + path,
        };
        let below = full.strip_prefix(&self.root)?;
        let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        Some(parts.join("/"))
    }

    /// The inode of an open file below the root.
    fn inode(&self, file: c_int) -> Option<u64> {
        let stat = stat_file(file).filter(|stat| stat.st_dev == self.device)?;
        self.inodes.contains(&stat.st_ino).then_some(stat.st_ino)
    }

    fn note_write(&mut self, file: c_int, offset: Option<off_t>, data: &[u8]) {
        let Some(inode) = self.inode(file) else { return };
        let offset = match offset {
            Some(offset) => offset as u64,
            None => {
                // SAFETY: the call takes plain numbers. The file stands behind what it has just written.
                let end = unsafe { libc::lseek(file, 0, libc::SEEK_CUR) };
                end as u64 - data.len() as u64
            }
        };
        self.note(&Event::Write { inode, offset, data: data.to_vec() });
    }

    fn note_size(&mut self, file: c_int) {
        if let (Some(inode), Some(stat)) = (self.inode(file), stat_file(file)) {
            self.note(&Event::SetSize { inode, size: stat.st_size as u64 });
        }
    }

    fn note_sync(&mut self, file: c_int) {
        if let Some(inode) = self.inode(file) {
            self.note(&Event::Sync { inode });
        }
    }

    fn note_open(&mut self, path: Option<String>, flags: c_int, existed: bool, file: c_int) {
        let (Some(path), Some(stat)) = (path, stat_file(file)) else { return };
        let inode = stat.st_ino;
        self.inodes.insert(inode);
        if flags & libc::O_CREAT != 0 && !existed {
            self.note(&Event::Create { path, inode });
        } else if flags & libc::O_TRUNC != 0 {
            self.note(&Event::SetSize { inode, size: 0 });
        }
    }
}

fn read_link(path: &str) -> Option<String> {
    let path = CString::new(path).ok()?;
    let mut buffer = [0_u8; 4096];
    // SAFETY: the path ends in a zero byte, the buffer is live and as long as is said.
    let count = unsafe { libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    String::from_utf8(buffer.get(..usize::try_from(count).ok()?)?.to_vec()).ok()
}

fn stat_path(path: &str) -> Option<libc::stat> {
    let path = CString::new(path).ok()?;
    let mut stat = MaybeUninit::uninit();
    // SAFETY: the path ends in a zero byte and there is space for one stat, which a successful call fills.
    unsafe { (libc::stat(path.as_ptr(), stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

fn stat_file(file: c_int) -> Option<libc::stat> {
    let mut stat = MaybeUninit::uninit();
    // SAFETY: there is space for one stat, which a successful call fills.
    unsafe { (libc::fstat(file, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

unsafe fn raw_open(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller passes what the call asks for.
    unsafe { libc::syscall(libc::SYS_openat, dir, path, flags | libc::O_LARGEFILE, mode) as c_int }
}

unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let mut turn = turn();
    let recorder = turn.as_deref_mut().and_then(Option::as_mut);
    let below =
        recorder.as_ref().and_then(|recorder| recorder.path(dir, path).map(|path| (recorder.root.clone(), path)));
    let existed = below.as_ref().is_some_and(|(root, path)| stat_path(&format!("{root}{path}")).is_some());
    // SAFETY: the caller passes what the call asks for.
    let file = unsafe { raw_open(dir, path, flags, mode) };
    if let (true, Some(recorder), Some((_, path))) = (file >= 0, recorder, below) {
        recorder.note_open(Some(path), flags, existed, file);
    }
    file
}

/// Defines functions that are to the linker what the C library's are.
macro_rules! stand_in {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty $body:block)*) => {$(
        /// Stands in for the function of the same name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller of the C library's function has passed what it asks for.
            unsafe { $body }
        }
    )*};
}

unsafe fn bytes<'a>(data: *const c_void, count: ssize_t) -> &'a [u8] {
    // SAFETY: the system has just read so many bytes there.
    unsafe { std::slice::from_raw_parts(data.cast(), count as usize) }
}

unsafe fn gathered(parts: *const iovec, count: c_int, written: ssize_t) -> Vec<u8> {
    // SAFETY: the system has just read these parts.
    let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    // SAFETY: as above.
    let all = parts.iter().flat_map(|part| unsafe { bytes(part.iov_base, part.iov_len as ssize_t) });
    all.copied().take(written as usize).collect()
}

unsafe fn write_at(file: c_int, data: *const c_void, size: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller passes what the call asks for.
    recorded(
        || unsafe { libc::syscall(libc::SYS_pwrite64, file, data, size, offset) as ssize_t },
        |recorder, count| {
            // SAFETY: the system has just read so many bytes there.
            recorder.note_write(file, Some(offset), unsafe { bytes(data, count) });
        },
    )
}

unsafe fn write_parts_at(file: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: the caller passes what the call asks for.
    let call = || unsafe { libc::syscall(libc::SYS_pwritev, file, parts, count, offset, 0 as c_long) as ssize_t };
    recorded(call, |recorder, written| {
        // SAFETY: the system has just read these parts.
        recorder.note_write(file, Some(offset), &unsafe { gathered(parts, count, written) });
    })
}

unsafe fn set_size(file: c_int, size: off_t) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, file, size) as c_int };
    recorded(call, |recorder, _| recorder.note_size(file))
}

unsafe fn allocate(file: c_int, mode: c_int, offset: off_t, size: off_t) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, size) as c_int };
    recorded(call, |recorder, _| {
        // Blocks behind the end change nothing that can be seen, and nobody here takes any out of the middle.
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            recorder.note_size(file);
        }
    })
}

unsafe fn rename_at(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_renameat2, from_dir, from, to_dir, to, flags) as c_int };
    recorded(call, |recorder, _| {
        if let (Some(from), Some(to)) = (recorder.path(from_dir, from), recorder.path(to_dir, to)) {
            recorder.note(&Event::Rename { from, to });
        }
    })
}

unsafe fn link_at(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_linkat, from_dir, from, to_dir, to, flags) as c_int };
    recorded(call, |recorder, _| {
        if let (Some(from), Some(to)) = (recorder.path(from_dir, from), recorder.path(to_dir, to)) {
            recorder.note(&Event::Link { from, to });
        }
    })
}

unsafe fn unlink_at(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, dir, path, flags) as c_int };
    recorded(call, |recorder, _| {
        let Some(path) = recorder.path(dir, path) else { return };
        let is_dir = flags & libc::AT_REMOVEDIR != 0;
        recorder.note(&if is_dir { Event::RemoveDir { path } } else { Event::Unlink { path } });
    })
}

unsafe fn make_dir_at(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
    let call = || unsafe { libc::syscall(libc::SYS_mkdirat, dir, path, mode) as c_int };
    recorded(call, |recorder, _| {
        let Some(path) = recorder.path(dir, path) else { return };
        let Some(stat) = stat_path(&format!("{}{path}", recorder.root)) else { return };
        recorder.inodes.insert(stat.st_ino);
        recorder.note(&Event::CreateDir { path, inode: stat.st_ino });
    })
}

/// Calls that copy within the system are refused, so that their callers copy by reading and writing.
unsafe fn refuse(code: c_int) -> ssize_t {
    // SAFETY: the error number is this thread's own.
    unsafe { *libc::__errno_location() = code };
    -1
}

stand_in! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(libc::AT_FDCWD, path, flags, mode) }
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(libc::AT_FDCWD, path, flags, mode) }
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(dir, path, flags, mode) }
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(dir, path, flags, mode) }
    creat(path: *const c_char, mode: mode_t) -> c_int {
        open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    write(file: c_int, data: *const c_void, size: size_t) -> ssize_t {
        recorded(|| libc::syscall(libc::SYS_write, file, data, size) as ssize_t, |recorder, count| {
            recorder.note_write(file, None, bytes(data, count));
        })
    }
    pwrite(file: c_int, data: *const c_void, size: size_t, offset: off_t) -> ssize_t { write_at(file, data, size, offset) }
    pwrite64(file: c_int, data: *const c_void, size: size_t, offset: off_t) -> ssize_t { write_at(file, data, size, offset) }
    writev(file: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        recorded(|| libc::syscall(libc::SYS_writev, file, parts, count) as ssize_t, |recorder, written| {
            recorder.note_write(file, None, &gathered(parts, count, written));
        })
    }
    pwritev(file: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        write_parts_at(file, parts, count, offset)
    }
    pwritev64(file: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        write_parts_at(file, parts, count, offset)
    }
    ftruncate(file: c_int, size: off_t) -> c_int { set_size(file, size) }
    ftruncate64(file: c_int, size: off_t) -> c_int { set_size(file, size) }
    fallocate(file: c_int, mode: c_int, offset: off_t, size: off_t) -> c_int { allocate(file, mode, offset, size) }
    fallocate64(file: c_int, mode: c_int, offset: off_t, size: off_t) -> c_int { allocate(file, mode, offset, size) }
    fsync(file: c_int) -> c_int {
        recorded(|| libc::syscall(libc::SYS_fsync, file) as c_int, |recorder, _| recorder.note_sync(file))
    }
    fdatasync(file: c_int) -> c_int {
        recorded(|| libc::syscall(libc::SYS_fdatasync, file) as c_int, |recorder, _| recorder.note_sync(file))
    }
    rename(from: *const c_char, to: *const c_char) -> c_int { rename_at(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
    renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        rename_at(from_dir, from, to_dir, to, 0)
    }
    renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
        rename_at(from_dir, from, to_dir, to, flags)
    }
    link(from: *const c_char, to: *const c_char) -> c_int { link_at(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
    linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        link_at(from_dir, from, to_dir, to, flags)
    }
    unlink(path: *const c_char) -> c_int { unlink_at(libc::AT_FDCWD, path, 0) }
    unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int { unlink_at(dir, path, flags) }
    rmdir(path: *const c_char) -> c_int { unlink_at(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }
    mkdir(path: *const c_char, mode: mode_t) -> c_int { make_dir_at(libc::AT_FDCWD, path, mode) }
    mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int { make_dir_at(dir, path, mode) }
    copy_file_range(
        _from: c_int, _from_offset: *mut off_t, _to: c_int, _to_offset: *mut off_t, _size: size_t, _flags: c_uint
    ) -> ssize_t { refuse(libc::ENOSYS) }
    sendfile(_to: c_int, _from: c_int, _offset: *mut off_t, _size: size_t) -> ssize_t { refuse(libc::EINVAL) }
    sendfile64(_to: c_int, _from: c_int, _offset: *mut off_t, _size: size_t) -> ssize_t { refuse(libc::EINVAL) }
}
