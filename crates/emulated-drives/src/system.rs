//! Operating system commands for a drive: loop devices, ext4, mounts. A failure is reported with
//! the command's output.

use crate::Outcome;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Required commands, and their Debian packages.
const COMMANDS: [(&str, &str); 4] = [
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("umount", "mount"),
];

/// Checks that drives can be emulated on this machine.
///
/// # Errors
/// If not; the message names everything that is missing.
pub fn check_requirements() -> Outcome {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root (run it with sudo)".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            missing.push(format!(
                "{device} (load the kernel module, or pass the device into the container)"
            ));
        }
    }
    for (command, package) in COMMANDS {
        if find_command(command).is_none() {
            missing.push(format!("the command {command} (Debian package {package})"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("emulated drives need what is missing here: {}", missing.join("; ")).into())
}

/// The path of a command, in `PATH` or the administrators' directories.
pub fn find_command(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Runs a command and returns its output.
///
/// # Errors
/// If it cannot be run or fails; the message has its output.
pub fn run<I: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = I>) -> Outcome<String> {
    let program = find_command(name).ok_or_else(|| format!("the command {name} is not there: install it"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} failed ({}): {}", output.status, said.trim()).into())
}

/// Attaches a file to a free loop device, with direct I/O.
pub fn attach(file: &Path) -> Outcome<PathBuf> {
    let device = run(
        "losetup",
        [
            OsStr::new("--find"),
            OsStr::new("--show"),
            OsStr::new("--direct-io=on"),
            file.as_ref(),
        ],
    )?;
    if loop_attribute(Path::new(&device), "dio").as_deref() != Some("1") {
        let _ = run("losetup", ["--detach", &device]);
        return Err(format!("{device} refuses direct I/O on {}", file.display()).into());
    }
    Ok(PathBuf::from(device))
}

/// Detaches a loop device. One in use is detached when its last user closes it.
pub fn detach(device: &Path) -> Outcome {
    run("losetup", [OsStr::new("--detach"), device.as_ref()]).map(drop)
}

/// Whether a loop device is attached to this file.
pub fn is_attached(device: &Path, file: &Path) -> bool {
    loop_attribute(device, "backing_file").is_some_and(|backing| Path::new(&backing) == file)
}

fn loop_attribute(device: &Path, attribute: &str) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/loop/{attribute}")).ok()?;
    Some(text.trim_end().to_owned())
}

/// Tells the kernel whether a device is a disk: schedulers and file systems depend on it.
pub fn set_rotational(device: &Path, is_rotational: bool) {
    if let Some(name) = device.file_name().and_then(OsStr::to_str) {
        // A hint only: older kernels do not allow it.
        let _ = std::fs::write(
            format!("/sys/block/{name}/queue/rotational"),
            if is_rotational { "1" } else { "0" },
        );
    }
}

/// Sets the kernel's read-ahead to 128 KiB as on a disk; a loop device has megabytes, which no real
/// drive has. A failure is ignored; the counters show the read-ahead.
pub fn read_ahead_like_a_disk(device: &Path) {
    if let Some(name) = device.file_name().and_then(OsStr::to_str) {
        let _ = std::fs::write(format!("/sys/block/{name}/queue/read_ahead_kb"), "128");
    }
}

/// Whether something is mounted at this path itself.
pub fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .map(|found| found.replace("\\040", " "))
        .any(|found| Path::new(&found) == point)
}

/// Unmounts; succeeds if nothing is mounted.
pub fn unmount(point: &Path) -> Outcome {
    if !is_mounted(point) {
        return Ok(());
    }
    run("umount", [point]).map(drop)
}

/// Unmounts lazily: the mount disappears at once and is released by its last user.
pub fn unmount_by_force(point: &Path) -> Outcome {
    match unmount(point) {
        Ok(()) => Ok(()),
        Err(_) => run("umount", [OsStr::new("--lazy"), point.as_ref()]).map(drop),
    }
}

/// Whether a process runs that was started for this directory: the process ID alone may have been
/// reused.
pub fn is_daemon(process: u32, directory: &Path) -> bool {
    let arguments = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let directory = directory.as_os_str().as_encoded_bytes();
    let has = |bytes: &[u8]| bytes.split(|byte| *byte == 0).any(|part| part.ends_with(directory));
    has(&arguments) || has(&environment)
}
