//! What both disks promise alike: one script with its expected answers, and random histories whose
//! answers are compared.
#![allow(clippy::unwrap_used)]

use super::{sim::TestRandom, *};
use std::io::{ErrorKind, Result};

/// Both disks, the real one on each kind of file system there is.
fn with_disks(test: impl Fn(&dyn Disk)) {
    test(&SimDisk::new(1));
    with_file_disks(|disk| test(disk));
}

fn with_file_disks(test: impl Fn(&FileDisk)) {
    let directory = tempfile::tempdir().unwrap();
    test(&FileDisk::new(directory.path()).unwrap());
    if Path::new("/dev/shm").is_dir() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        test(&FileDisk::new(directory.path()).unwrap());
    }
}

fn path(path: &str) -> &Path {
    Path::new(path)
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("it must fail").kind()
}

fn aligned(byte: u8, bytes: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(bytes);
    buffer.fill(byte);
    buffer
}

#[test]
fn files_keep_what_is_written() {
    with_disks(|disk| {
        for direct in [false, true] {
            let name = format!("file-{direct}");
            let file = disk.open(path(&name), OpenMode::CREATE.with_direct(direct)).unwrap();
            assert_eq!(file.len().unwrap(), 0);
            file.write_all_at(&aligned(1, 8192), 4096).unwrap();
            file.write_all_at(&aligned(2, 4096), 8192).unwrap();
            file.sync_data().unwrap();
            assert_eq!(file.len().unwrap(), 12288);
            // A hole, the first write, the second one over it; and any alignment of reads.
            let mut content = vec![9; 12286];
            file.read_exact_at(&mut content, 1).unwrap();
            assert_eq!(content[..4095], [0; 4095]);
            assert_eq!(content[4095..8191], [1; 4096]);
            assert_eq!(content[8191..], [2; 4095]);

            assert_eq!(kind(file.read_exact_at(&mut [0; 2], 12287)), ErrorKind::UnexpectedEof);
            assert_eq!(file.read_up_to_at(&mut [0; 2], 12287).unwrap(), 1);
            assert_eq!(file.read_up_to_at(&mut [0; 2], 12288).unwrap(), 0);
            file.read_exact_at(&mut [], 12288).unwrap();

            file.set_len(5000).unwrap();
            file.set_len(6000).unwrap();
            let mut tail = vec![9; 1000];
            file.read_exact_at(&mut tail, 5000).unwrap();
            assert_eq!(tail, [0; 1000], "what was cut off does not come back");
            file.allocate(10_000).unwrap();
            assert_eq!(file.len().unwrap(), 10_000);
            file.allocate(100).unwrap();
            assert_eq!(file.len().unwrap(), 10_000, "allocating never cuts");
            file.read_exact_at(&mut tail, 9000).unwrap();
            assert_eq!(tail, [0; 1000]);

            assert_eq!(kind(file.read_up_to_at(&mut [0; 2], u64::MAX)), ErrorKind::InvalidInput);
            assert_eq!(
                kind(file.write_all_at(&aligned(0, 4096), i64::MAX as u64)),
                ErrorKind::InvalidInput
            );
            assert_eq!(kind(file.set_len(u64::MAX)), ErrorKind::InvalidInput);
            assert_eq!(kind(file.allocate(u64::MAX)), ErrorKind::InvalidInput);

            let reader = disk.open(path(&name), OpenMode::READ.with_direct(direct)).unwrap();
            assert_eq!(reader.len().unwrap(), 10_000);
            assert_eq!(
                kind(reader.write_all_at(&aligned(0, 4096), 0)),
                ErrorKind::PermissionDenied
            );
            assert_eq!(kind(reader.set_len(0)), ErrorKind::PermissionDenied);
            assert_eq!(kind(reader.allocate(1)), ErrorKind::PermissionDenied);
        }
    });
}

#[test]
fn many_buffers_are_written_one_behind_the_other() {
    with_disks(|disk| {
        for direct in [false, true] {
            let name = format!("many-{direct}");
            let file = disk.open(path(&name), OpenMode::CREATE.with_direct(direct)).unwrap();
            // More than one system call takes, of different lengths.
            let buffers: Vec<_> = (0..1_500_usize)
                .map(|n| aligned(n as u8, (1 + n % 3) * PAGE_BYTES))
                .collect();
            let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
            file.write_all_vectored_at(&slices, PAGE_BYTES as u64).unwrap();
            let mut found = vec![0; slices.iter().map(|slice| slice.len()).sum()];
            file.read_exact_at(&mut found, PAGE_BYTES as u64).unwrap();
            assert!(found == slices.concat(), "{file:?}");
            assert_eq!(file.len().unwrap(), (PAGE_BYTES + found.len()) as u64);
            file.write_all_vectored_at(&[], 0).unwrap();
            let misplaced = file.write_all_vectored_at(&slices, 1);
            assert_eq!(misplaced.is_err(), direct);
        }
        let file = disk.open(path("many-true"), OpenMode::READ).unwrap();
        assert!(
            file.write_all_vectored_at(&[b"x"], 0).is_err(),
            "it is open for reading"
        );
    });
}

#[test]
fn direct_writes_must_be_aligned() {
    with_disks(|disk| {
        let file = disk.open(path("file"), OpenMode::CREATE.with_direct(true)).unwrap();
        let buffer = aligned(1, 8192);
        assert_eq!(kind(file.write_all_at(&buffer[..4000], 0)), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_all_at(&buffer[..4096], 512)), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_all_at(&buffer[512..4608], 0)), ErrorKind::InvalidInput);
        assert_eq!(file.len().unwrap(), 0);
        file.write_all_at(&buffer[4096..], 4096).unwrap();
    });
}

#[test]
fn names_lead_to_files() {
    with_disks(|disk| {
        assert_eq!(kind(disk.open(path("a"), OpenMode::WRITE)), ErrorKind::NotFound);
        let a = disk.open(path("a"), OpenMode::CREATE).unwrap();
        assert_eq!(kind(disk.open(path("a"), OpenMode::CREATE)), ErrorKind::AlreadyExists);
        assert_eq!(kind(disk.open(path("d/x"), OpenMode::CREATE)), ErrorKind::NotFound);
        assert_eq!(kind(disk.open(path("a/x"), OpenMode::CREATE)), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.create_dir_all(path("a"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(disk.create_dir_all(path("a/b"))), ErrorKind::AlreadyExists);
        assert_eq!(disk.list(path("d")).unwrap(), Vec::<String>::new());
        disk.create_dir_all(path("d/e")).unwrap();
        disk.create_dir_all(path("./d/e/")).unwrap();
        disk.create_dir_all(path("")).unwrap();
        assert_eq!(kind(disk.open(path("d"), OpenMode::READ)), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.open(path(""), OpenMode::WRITE)), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.open(path("d"), OpenMode::CREATE)), ErrorKind::AlreadyExists);

        a.write_all_at(b"a", 0).unwrap();
        let x = disk.open(path("d/x"), OpenMode::CREATE).unwrap();
        x.write_all_at(b"x", 0).unwrap();
        assert_eq!(disk.list(path("")).unwrap(), ["a"]);
        assert_eq!(disk.list(path("d")).unwrap(), ["x"]);
        assert_eq!(kind(disk.list(path("a"))), ErrorKind::NotADirectory);

        // Over another file, which stays readable through its handle.
        disk.rename(path("d/x"), path("a")).unwrap();
        disk.rename(path("a"), path("./a")).unwrap();
        assert_eq!(disk.list(path("d")).unwrap(), Vec::<String>::new());
        let mut byte = [0];
        disk.open(path("a"), OpenMode::READ)
            .unwrap()
            .read_exact_at(&mut byte, 0)
            .unwrap();
        assert_eq!(byte, *b"x");
        a.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, *b"a");
        assert_eq!(kind(disk.rename(path("d/x"), path("a"))), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename(path("a"), path("f/a"))), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename(path("a"), path("d"))), ErrorKind::IsADirectory);

        disk.remove(path("a")).unwrap();
        assert_eq!(kind(disk.remove(path("a"))), ErrorKind::NotFound);
        x.write_all_at(b"still there", 0).unwrap();
        assert_eq!(x.len().unwrap(), 11);
        disk.sync_dir(path("")).unwrap();
        disk.sync_dir(path("d/e")).unwrap();
        assert_eq!(kind(disk.sync_dir(path("f"))), ErrorKind::NotFound);
    });
}

#[test]
fn paths_stay_inside() {
    with_disks(|disk| {
        for outside in ["/etc/passwd", "..", "d/../../x"] {
            let error = disk.open(path(outside), OpenMode::READ).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(outside), "{error}");
            assert_eq!(kind(disk.remove(path(outside))), ErrorKind::InvalidInput);
            assert_eq!(kind(disk.rename(path("a"), path(outside))), ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn errors_name_the_path() {
    with_disks(|disk| {
        let error = disk.open(path("absent"), OpenMode::READ).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
        let file = disk.open(path("present"), OpenMode::CREATE).unwrap();
        let error = file.read_exact_at(&mut [0; 10], 0).unwrap_err();
        assert!(error.to_string().contains("present"), "{error}");
    });
}

#[test]
fn counters_count_what_was_asked() {
    with_disks(|disk| {
        let file = disk.open(path("file"), OpenMode::CREATE).unwrap();
        file.write_all_at(&[1; 100], 0).unwrap();
        file.write_all_at(&[1; 50], 100).unwrap();
        file.read_exact_at(&mut [0; 30], 0).unwrap();
        file.read_up_to_at(&mut [0; 30], 140).unwrap();
        file.read_up_to_at(&mut [0; 30], 150).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(path("")).unwrap();
        let expected = DiskCounters {
            reads: 3,
            bytes_read: 40,
            writes: 2,
            bytes_written: 150,
            syncs: 2,
        };
        assert_eq!(disk.counters(), expected);
    });
}

/// A disk and a few open files, told the same random things as another one.
struct Player<'a> {
    disk: &'a dyn Disk,
    files: Vec<Option<Arc<dyn DiskFile>>>,
}

/// Result of a step, as far as both disks must agree.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<String>),
}

/// Mostly names that can be.
const FILES: [&str; 10] = ["a", "a", "a", "b", "b", "d/x", "d/x", "d/y", "absent/z", "a/below"];
const DIRECTORIES: [&str; 4] = ["", "d", "absent", "a"];
const HANDLES: usize = 4;

impl<'a> Player<'a> {
    fn new(disk: &'a dyn Disk) -> Self {
        disk.create_dir_all(path("d")).unwrap();
        let files = vec![None; HANDLES];
        Self { disk, files }
    }

    fn step(&mut self, random: &mut TestRandom) -> Result<Answer> {
        let mut file = || path(FILES[random.below(FILES.len() as u64) as usize]);
        let (one, other) = (file(), file());
        let directory = path(DIRECTORIES[random.below(4) as usize]);
        let handle = random.below(HANDLES as u64) as usize;
        let action = random.below(24);
        match action {
            0..=4 => {
                let mode =
                    [OpenMode::CREATE, OpenMode::WRITE, OpenMode::WRITE, OpenMode::READ][random.below(4) as usize];
                let opened = self.disk.open(one, mode.with_direct(random.coin()))?;
                self.files[handle] = Some(opened);
            }
            5 if random.below(4) == 0 => self.disk.remove(one)?,
            6 => self.files[handle] = None,
            7 => self.disk.rename(one, other)?,
            8 => {
                let mut names = self.disk.list(directory)?;
                names.sort();
                return Ok(Answer::Names(names));
            }
            9 if directory != path("a") => self.disk.sync_dir(directory)?,
            _ => {
                let Some(file) = &self.files[handle] else {
                    return Ok(Answer::Done);
                };
                return Self::file_step(file.as_ref(), action, random);
            }
        }
        Ok(Answer::Done)
    }

    fn file_step(file: &dyn DiskFile, action: u64, random: &mut TestRandom) -> Result<Answer> {
        // Half of it page-aligned.
        let unit = if random.coin() { 4096 } else { 1 };
        let offset = random.below(40_000) / unit * unit;
        let bytes = (random.below(20_000) / unit * unit) as usize;
        match action {
            10..=14 => file.write_all_at(&aligned(random.next() as u8, bytes), offset)?,
            15..=18 => {
                let mut buffer = vec![0; bytes];
                let read = file.read_up_to_at(&mut buffer, offset)?;
                buffer.truncate(read);
                return Ok(Answer::Bytes(buffer));
            }
            19 => {
                let mut buffer = vec![0; bytes];
                file.read_exact_at(&mut buffer, offset)?;
                return Ok(Answer::Bytes(buffer));
            }
            20 => file.set_len(offset)?,
            21 => file.allocate(offset)?,
            22 => file.sync_data()?,
            _ => return Ok(Answer::Number(file.len()?)),
        }
        Ok(Answer::Done)
    }

    fn content(&self) -> Vec<(String, Vec<u8>)> {
        let mut content = Vec::new();
        for directory in ["", "d"] {
            for name in self.disk.list(path(directory)).unwrap() {
                let name = path(directory).join(name);
                let file = self.disk.open(&name, OpenMode::READ).unwrap();
                let mut bytes = vec![0; file.len().unwrap() as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                content.push((name.to_string_lossy().into_owned(), bytes));
            }
        }
        content.sort();
        content
    }
}

#[test]
fn random_histories_agree() {
    for seed in 0..40 {
        with_file_disks(|real| {
            let simulated = SimDisk::new(seed);
            let (mut one, mut other) = (Player::new(real), Player::new(&simulated));
            let mut random = TestRandom::new(seed);
            let mut bytes_read = 0;
            for step in 0..300 {
                let mut same = random.clone();
                let answers = (one.step(&mut random), other.step(&mut same));
                let (real, simulated) = (
                    answers.0.map_err(|error| error.kind()),
                    answers.1.map_err(|error| error.kind()),
                );
                assert_eq!(real, simulated, "seed {seed}, step {step}");
                if let Ok(Answer::Bytes(bytes)) = real {
                    bytes_read += bytes.len();
                }
            }
            assert!(
                bytes_read > 0,
                "seed {seed}: a history in which nothing is read tells nothing"
            );
            assert_eq!(one.content(), other.content(), "seed {seed}");
        });
    }
}
