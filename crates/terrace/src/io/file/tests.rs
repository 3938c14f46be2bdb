//! Tests of the operating system's file system as a disk.
#![allow(clippy::unwrap_used)]

use super::*;
use std::io::ErrorKind;

/// A directory on the usual file system and, where there is one, a directory in memory: the two
/// differ in direct I/O and in what they can reserve.
fn directories() -> Vec<tempfile::TempDir> {
    // Beside the test binary: the temporary directory may be in memory, too.
    let binary = std::env::current_exe().unwrap();
    let build = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
    let mut directories = vec![tempfile::tempdir().unwrap(), build];
    if Path::new("/dev/shm").is_dir() {
        directories.push(tempfile::tempdir_in("/dev/shm").unwrap());
    }
    directories
}

fn aligned(bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new();
    buffer.extend_from_slice(bytes);
    buffer
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 7 + i) as u8).collect()
}

fn create(disk: &FileDisk, name: &str, direct: bool) -> OpenFile {
    // The concrete type, so that tests reach its parts; `open` returns a trait object of it.
    let mode = OpenMode::CREATE.with_direct(direct);
    drop(disk.open(Path::new(name), mode).unwrap());
    let path = disk.root.join(name);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let is_direct = direct && direct::enable(&file).unwrap();
    let read_unit_bytes = if is_direct {
        direct::unit_bytes(&file)
    } else {
        PAGE_BYTES
    };
    OpenFile {
        file,
        read_unit_bytes,
        path,
        writable: true,
        aligned: direct,
        direct: AtomicBool::new(is_direct),
        counters: disk.counters.clone(),
        neighbours: disk.neighbours.clone(),
    }
}

#[test]
fn long_transfers_beside_short_reads_move_everything() {
    for dir in directories() {
        let disk = FileDisk::new(dir.path()).unwrap();
        let file = create(&disk, "f", true);
        // Short reads for an hour to come.
        let now = Instant::now();
        disk.neighbours.short_read(Duration::from_micros(1), now);
        let later = now + Duration::from_secs(3600);
        disk.neighbours.short_read(Duration::ZERO, later);
        assert!(!file.is_direct() || file.slice_of(1 << 20) < 1 << 20);
        let content = aligned(&pattern(1 << 20));
        file.write_all_at(&content, 0).unwrap();
        let (first, second) = content.split_at(300 << 10);
        file.write_all_vectored_at(&[first, second], 1 << 20).unwrap();
        for at in [0, 1 << 20] {
            let mut found = AlignedBuffer::zeroed(1 << 20);
            file.read_exact_at(&mut found, at).unwrap();
            assert!(found[..] == content[..]);
        }
        assert_eq!(file.len().unwrap(), 2 << 20);
    }
}

#[test]
fn direct_files_read_at_any_alignment() {
    for directory in directories() {
        let disk = FileDisk::new(directory.path()).unwrap();
        let file = disk
            .open(Path::new("data"), OpenMode::CREATE.with_direct(true))
            .unwrap();
        // Longer than two bounces, and an end inside a page.
        let data = pattern(3 * CHUNK_BYTES);
        file.write_all_at(&aligned(&data), 0).unwrap();
        file.set_len(data.len() as u64 - 1000).unwrap();
        let data = &data[..data.len() - 1000];
        let end = data.len();
        let ranges = [
            (0, 1),
            (0, 4096),
            (1, 4095),
            (1, 4096),
            (4095, 2),
            (5000, CHUNK_BYTES),
            (CHUNK_BYTES - 1, 2),
            (1, 2 * CHUNK_BYTES + 3),
            (end - 1, 1),
            (17, end - 17),
            (0, end),
        ];
        for (offset, bytes) in ranges {
            let mut buffer = vec![0xEE; bytes + 1];
            // Off by one in memory, whatever the allocator gave.
            file.read_exact_at(&mut buffer[1..], offset as u64).unwrap();
            assert_eq!(buffer[1..], data[offset..offset + bytes], "{offset} {bytes} {file:?}");
            assert_eq!(buffer[0], 0xEE);
        }
        let mut buffer = vec![0; 10_000];
        assert_eq!(file.read_up_to_at(&mut buffer, end as u64 - 5000).unwrap(), 5000);
        assert_eq!(buffer[..5000], data[end - 5000..]);
        assert_eq!(file.read_up_to_at(&mut buffer, end as u64).unwrap(), 0);
        assert_eq!(file.read_up_to_at(&mut buffer, end as u64 + 100_000).unwrap(), 0);
        let mut whole = AlignedBuffer::zeroed(3 * CHUNK_BYTES);
        assert_eq!(file.read_up_to_at(&mut whole, 0).unwrap(), end);
        assert_eq!(whole[..end], *data);
    }
}

#[test]
fn reads_in_units_stay_direct() {
    for directory in directories() {
        let disk = FileDisk::new(directory.path()).unwrap();
        let file = disk
            .open(Path::new("data"), OpenMode::CREATE.with_direct(true))
            .unwrap();
        let data = pattern(64 << 10);
        file.write_all_at(&aligned(&data), 0).unwrap();
        let was_direct = file.is_direct();
        let unit = file.read_unit_bytes();
        assert!(unit.is_power_of_two() && unit <= PAGE_BYTES, "{unit}");
        for (offset, units) in (0..data.len() - 5 * unit).step_by(unit).zip((1..=5).cycle()) {
            let mut buffer = AlignedBuffer::zeroed(units * unit);
            file.read_exact_at(&mut buffer, offset as u64).unwrap();
            assert_eq!(*buffer, data[offset..offset + units * unit], "{offset} {units}");
        }
        file.set_len(10_000).unwrap();
        let mut buffer = AlignedBuffer::zeroed(2 * PAGE_BYTES);
        let start = 10_000 / unit * unit - unit;
        let bytes = file.read_up_to_at(&mut buffer, start as u64).unwrap();
        assert_eq!((bytes, &buffer[..bytes]), (10_000 - start, &data[start..10_000]));
        assert_eq!(file.is_direct(), was_direct);
    }
}

#[test]
fn a_late_refusal_of_direct_io_falls_back() {
    for directory in directories() {
        let disk = FileDisk::new(directory.path()).unwrap();
        let file = create(&disk, "late", true);
        file.write_all_at(&aligned(&pattern(8192)), 0).unwrap();
        if !file.is_direct() {
            continue;
        }
        // What a file system that accepted the flag late-refuses looks like: the first transfer of
        // an aligned range fails with EINVAL.
        let mut refused = false;
        let bytes = file
            .attempt(|handle| {
                if !std::mem::replace(&mut refused, true) {
                    return Err(io::Error::from_raw_os_error(22));
                }
                handle.read_at(&mut [0; 100], 1)
            })
            .unwrap();
        assert_eq!(bytes, 100, "the retried read is unaligned: O_DIRECT really is off");
        assert!(!file.is_direct());
        let mut buffer = [0; 100];
        file.read_exact_at(&mut buffer, 4000).unwrap();
        assert_eq!(buffer[..], pattern(8192)[4000..4100]);
        // The same refusal without O_DIRECT is an error.
        let error = file.attempt(|_| Err(io::Error::from_raw_os_error(22))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn interrupted_calls_are_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FileDisk::new(directory.path()).unwrap();
    let file = create(&disk, "file", false);
    let mut interruptions = 3;
    let bytes = file.attempt(|_| {
        if interruptions > 0 {
            interruptions -= 1;
            return Err(ErrorKind::Interrupted.into());
        }
        Ok(7)
    });
    assert_eq!((bytes.unwrap(), interruptions), (7, 0));
}

#[test]
fn allocated_space_is_really_there() {
    use std::os::unix::fs::MetadataExt;
    let allocated = |file: &OpenFile| file.file.metadata().unwrap().blocks() * 512;
    for directory in directories() {
        let disk = FileDisk::new(directory.path()).unwrap();
        for direct in [false, true] {
            let bytes = 3 * CHUNK_BYTES as u64 + 5000;
            let file = create(&disk, &format!("reserved-{direct}"), direct);
            file.write_all_at(&aligned(&pattern(4096)), 8192).unwrap();
            file.allocate(bytes).unwrap();
            assert_eq!(file.len().unwrap(), bytes);
            assert!(allocated(&file) >= bytes, "{file:?}");

            let file = create(&disk, &format!("zeros-{direct}"), direct);
            file.write_all_at(&aligned(&pattern(4096)), 8192).unwrap();
            file.reserve_with_zeros(3 * 4096, bytes).unwrap();
            assert_eq!(file.len().unwrap(), bytes);
            assert!(allocated(&file) >= bytes, "{file:?}");
            let mut content = vec![0xEE; bytes as usize];
            file.read_exact_at(&mut content, 0).unwrap();
            assert_eq!(content[8192..12288], pattern(4096));
            assert!(content[..8192].iter().chain(&content[12288..]).all(|&byte| byte == 0));
            // Less than there is: nothing is cut off.
            file.reserve_with_zeros(bytes, 5000).unwrap();
            file.allocate(5000).unwrap();
            file.allocate(0).unwrap();
            assert_eq!(file.len().unwrap(), bytes);
        }
    }
}

#[test]
fn a_full_device_is_storage_full_and_gives_back_what_it_took() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = FileDisk::new(directory.path()).unwrap();
    let available = disk.available_bytes().unwrap();
    if available == 0 {
        // No limit, or already full: nothing to learn.
        return;
    }
    let file = disk.open(Path::new("big"), OpenMode::CREATE).unwrap();
    file.set_len(100).unwrap();
    let error = file.allocate(available.saturating_mul(4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("big"), "{error}");
    assert_eq!(file.len().unwrap(), 100);
}

#[test]
fn errors_name_the_path_and_keep_kind_and_cause() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FileDisk::new(directory.path()).unwrap();
    let error = disk.open(Path::new("absent"), OpenMode::READ).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("cannot open"), "{error}");
    assert!(
        error.to_string().contains(directory.path().to_str().unwrap()),
        "{error}"
    );
    let cause = error.get_ref().and_then(|error| error.source()).unwrap();
    let cause = cause.downcast_ref::<io::Error>().unwrap();
    assert_eq!(
        cause.raw_os_error().map(io::Error::from_raw_os_error).unwrap().kind(),
        ErrorKind::NotFound
    );

    let full = at("write", Path::new("x"), io::Error::from_raw_os_error(28));
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let quota = at("write", Path::new("x"), ErrorKind::QuotaExceeded.into());
    assert_eq!(quota.kind(), ErrorKind::StorageFull);
}

#[test]
fn new_creates_the_root_and_refuses_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("a/b/c");
    let disk = FileDisk::new(&root).unwrap();
    assert!(root.is_dir());
    disk.open(Path::new("file"), OpenMode::CREATE).unwrap();
    FileDisk::new(&root).unwrap();
    assert!(FileDisk::new(root.join("file")).is_err());
    assert!(FileDisk::new(root.join("file/below")).is_err());
    assert!(disk.available_bytes().unwrap() > 0);
}

/// Stores and backups could be read by every user of the machine: 0755 and 0644 with the usual
/// umask.
#[test]
fn what_is_created_is_the_users_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let root = dir.path().join("parent/inner");
    let disk = FileDisk::new(&root).unwrap();
    disk.create_dir_all(Path::new("sub/dir")).unwrap();
    drop(disk.open(Path::new("sub/dir/file"), OpenMode::CREATE).unwrap());
    for path in ["parent", "parent/inner", "parent/inner/sub", "parent/inner/sub/dir"] {
        assert_eq!(mode(&dir.path().join(path)), 0o700, "{path}");
    }
    assert_eq!(mode(&root.join("sub/dir/file")), 0o600);
    // What an earlier version made is closed; the root may be a user's own, and stays as it is.
    for path in ["", "sub/dir"] {
        fs::set_permissions(root.join(path), Permissions::from_mode(0o755)).unwrap();
        disk.create_dir_all(Path::new(path)).unwrap();
    }
    assert_eq!((mode(&root), mode(&root.join("sub/dir"))), (0o755, 0o700));
}
