//! The drive as a file: a FUSE file system with one file, `drive`, to which a loop device is
//! attached.
//!
//! Requests are given to the engine and answered by any thread that finds them due, so the threads
//! that read requests never wait for the drive. All I/O is direct: the kernel caches no pages of
//! the drive here. Failure: operations that a file system of one file does not need fail with
//! ENOSYS.

use super::engine::{Answer, Engine};
use super::fault::Failure;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The file's name.
pub const FILE: &str = "drive";

const INODE: INodeNo = INodeNo(2);
/// Attributes never change.
const FOREVER: Duration = Duration::from_secs(86_400);
/// Concurrent requests of the kernel; a loop device's direct I/O counts as background.
const UNDER_WAY: u16 = 256;
/// Threads that read requests: one copies data while another takes the next request.
const THREADS: usize = 2;

/// See the module.
pub struct DriveFile {
    engine: Arc<Engine>,
}

/// Mounts the file system of a drive at a directory.
pub fn mount(engine: Arc<Engine>, directory: &Path, name: &str) -> io::Result<Session<DriveFile>> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("emulated-drive-{name}")),
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(THREADS);
    Session::new(DriveFile { engine }, directory, &config)
}

impl DriveFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_directory = inode == INodeNo::ROOT;
        let bytes = if is_directory { 0 } else { self.engine.bytes() };
        FileAttr {
            ino: inode,
            size: bytes,
            blocks: bytes / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if is_directory {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if is_directory { 0o700 } else { 0o600 },
            nlink: if is_directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn errno(failure: Failure) -> Errno {
    match failure {
        Failure::Input => Errno::EIO,
        Failure::Full => Errno::ENOSPC,
    }
}

impl Filesystem for DriveFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err() {
            return Err(io::Error::other(
                "this kernel's FUSE has no asynchronous direct I/O (FUSE_ASYNC_DIO)",
            ));
        }
        // The nearest possible value is sufficient.
        let _ = config.set_max_background(UNDER_WAY);
        let _ = config.set_congestion_threshold(UNDER_WAY);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&FOREVER, &self.attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(self.engine.epoch()), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let answer: Answer = Box::new(move |data| match data {
            Ok(data) => reply.data(&data),
            Err(failure) => reply.error(errno(failure)),
        });
        self.engine.read(handle.0, offset, u64::from(size), answer);
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = data.len() as u32;
        let answer: Answer = Box::new(move |data| match data {
            Ok(_) => reply.written(bytes),
            Err(failure) => reply.error(errno(failure)),
        });
        self.engine.write(handle.0, offset, data, answer);
    }

    fn fsync(&self, _request: &Request, _inode: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let answer: Answer = Box::new(move |data| match data {
            Ok(_) => reply.ok(),
            Err(failure) => reply.error(errno(failure)),
        });
        self.engine.flush(handle.0, answer);
    }
}
