//! Commands on one object: put, get, head, rm, stat KEY. Values are streamed; none is in RAM whole.

use super::{Access, close, finish_output, info_json, info_text, not_found, open, print, print_json};
use crate::{
    cli::{GetArgs, KeyArgs, PutArgs, RmArgs},
    failure::{Code, Failure, Outcome},
    key_text,
    s3::{self, secrets::Secrets},
    settings::Settings,
    signals,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions, Permissions},
    io::{self, BufRead as _, Read, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};
use terrace::{Attributes, Condition, Durability, Expiry, PutOptions, ScanRange, Store, WriterOptions};
use terrace_objects::local::{self, Failed, Objects, Reading};

/// Bytes moved at a time.
const PIECE_BYTES: usize = 256 << 10;

/// `terrace put KEY FILE|-`
pub fn put(args: &PutArgs, settings: Settings) -> Outcome {
    let key = key_to_change(&args.key)?;
    let attributes = attributes(args)?;
    // The input is opened first: a mistyped file name must not create a store.
    let (mut input, length) = open_input(&args.file)?;
    let store = open(&settings, Access::Create)?;
    let condition = if args.if_absent {
        Condition::Absent
    } else {
        Condition::None
    };
    if args.if_absent && store.head(&key)?.is_some() {
        // Saves reading the input; the commit checks again.
        return Err(taken(&key));
    }
    let secrets = settings.secrets()?;
    // Objects that are not encrypted need no key.
    if secrets.has_key() {
        secrets.check(&store)?;
    }
    secrets.load_own(&store)?;
    secrets.kms().load(&store, &secrets)?;
    let objects = Objects::of(&store, settings.durability, secrets)?;
    let version = match objects.find(&key) {
        Some(_) if args.ttl.is_some() => {
            return Err(Failure::usage(format!(
                "{} is in a bucket of the S3 service, whose objects have no --ttl; give the bucket a lifecycle rule",
                key_text::escape(&key)
            )));
        }
        Some(object) => object
            .put(&mut input, length, attributes, args.if_absent)
            .map_err(|failed| of_bucket(failed, &args.file))?
            .ok_or_else(|| taken(&key))?,
        None => {
            let put = PutOptions {
                attributes,
                durability: settings.durability,
                condition,
                expiry: args.ttl.map_or(Expiry::Never, |ttl| Expiry::After(ttl.0)),
            };
            put_plain(&store, &key, &mut input, WriterOptions { length, put }, &args.file)?
        }
    };
    close(&store)?;
    if args.json {
        print_json(&serde_json::json!({ "key": key_text::to_json(&key), "version": version.0 }))?;
    }
    Ok(())
}

/// Puts an object outside of buckets.
fn put_plain(
    store: &Store,
    key: &[u8],
    input: &mut dyn Read,
    options: WriterOptions,
    file: &Path,
) -> Outcome<terrace::Version> {
    let mut writer = store.writer(key, options)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match input.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => writer
                .write_all(&piece[..count])
                .map_err(|error| Failure::io("writing the value", &error))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::io(format_args!("reading {}", file.display()), &error)),
        }
    }
    match writer.finish() {
        Err(terrace::Error::ConditionFailed { .. }) => Err(taken(key)),
        other => Ok(other?),
    }
}

/// The failure of a command on an object of a bucket.
fn of_bucket(failed: Failed, file: &Path) -> Failure {
    match failed {
        Failed::Store(error) => error.into(),
        Failed::Input(error) => Failure::io(format_args!("reading {}", file.display()), &error),
        Failed::Refused(error) => Failure::error(s3::said(error)),
    }
}

/// The key of an object; keys of the S3 service are refused.
fn key_to_change(argument: &OsStr) -> Outcome<Vec<u8>> {
    let key = key_text::parse(argument)?;
    if local::is_system(&key) {
        return Err(Failure::usage(format!(
            "{} belongs to the S3 service; use `terrace key` for access keys, and an S3 client for the rest",
            key_text::escape(&key)
        )));
    }
    Ok(key)
}

fn taken(key: &[u8]) -> Failure {
    let key = key_text::escape(key);
    Failure::new(
        Code::Condition,
        format!("an object has the key {key} already, nothing was written; leave out --if-absent to replace it"),
    )
}

/// The input, and its length if it is a regular file.
fn open_input(path: &Path) -> Outcome<(Box<dyn Read>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let failed = |error| Failure::io(path.display(), &error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a directory; give a file, or use `terrace import`",
            path.display()
        )));
    }
    let length = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(file), length))
}

fn attributes(args: &PutArgs) -> Outcome<Attributes> {
    let mut attributes = Attributes::new();
    let guessed = [args.file.as_path(), Path::new(&args.key)]
        .into_iter()
        .find_map(|path| mime_guess::from_path(path).first_raw())
        .map(str::to_owned);
    if let Some(content_type) = args.content_type.clone().or(guessed) {
        attributes.set("content-type", content_type);
    }
    for pair in &args.attribute {
        match pair.split_once('=') {
            Some((name, _)) if local::is_own_attribute(name) => {
                return Err(Failure::usage(format!(
                    "attribute `{name}`: only the server gives `etag` and what begins with `s3-`, which say whose the bytes are"
                )));
            }
            Some((name, value)) if !name.is_empty() => attributes.set(name, value),
            _ => return Err(Failure::usage(format!("attribute `{pair}`: write it as NAME=VALUE"))),
        }
    }
    Ok(attributes)
}

/// `terrace get KEY [-o FILE]`
pub fn get(args: &GetArgs, settings: Settings) -> Outcome {
    let key = key_text::parse(&args.key)?;
    let store = open(&settings, Access::Look)?;
    let secrets = settings.secrets()?;
    secrets.load_own(&store)?;
    secrets.kms().load(&store, &secrets)?;
    let reading = Reading {
        secrets,
        ..Reading::default()
    };
    let mut reader: Box<dyn Read> = match local::open(&store, &key, &reading)? {
        Some(values) => Box::new(values),
        None => Box::new(store.reader(&key)?.ok_or_else(|| not_found(&key))?),
    };
    match args.output.as_deref().filter(|path| path.as_os_str() != "-") {
        Some(path) => write_file(&mut reader, path),
        None => write_stream(&mut reader, &mut io::stdout().lock()),
    }
}

/// Writes to what takes bytes as they come: standard output, a device, a pipe.
fn write_stream(reader: &mut dyn Read, out: &mut dyn Write) -> Outcome {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = read_piece(reader, &mut piece)?;
        if count == 0 {
            return finish_output(out.flush());
        }
        if let Err(error) = out.write_all(&piece[..count]) {
            return finish_output(Err(error));
        }
    }
}

/// Writes beside `path` and renames, so that `path` exists completely or not at all.
///
/// A rename replaces whatever has the name. So devices and pipes are written to instead, a symbolic
/// link stays and its target is replaced, and the new file has the permissions of the former one.
fn write_file(reader: &mut dyn Read, path: &Path) -> Outcome {
    let failed = |error| Failure::io(path.display(), &error);
    let former = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let target = match &former {
        Some(former) if former.is_dir() => {
            return Err(Failure::usage(format!(
                "{} is a directory; name a file in it",
                path.display()
            )));
        }
        Some(former) if !former.is_file() => {
            // Signals are not caught: there is no partial file to remove, and a write to a pipe can
            // take forever.
            let mut out = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return write_stream(reader, &mut out);
        }
        Some(_) => fs::canonicalize(path).map_err(failed)?,
        None => path.to_owned(),
    };
    let stop = signals::install()?;
    let part = part_path(&target)?;
    let permissions = former.map(|former| former.permissions());
    let result = copy_to(reader, &part, permissions, &stop).and_then(|()| fs::rename(&part, &target).map_err(failed));
    if result.is_err() {
        // The first failure is reported; a partial file may be left behind.
        let _ = fs::remove_file(&part);
    }
    result
}

fn copy_to(reader: &mut dyn Read, part: &Path, permissions: Option<Permissions>, stop: &AtomicBool) -> Outcome {
    let failed = |error| Failure::io(part.display(), &error);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // Until it has the permissions of the former file, no one else may open it.
        .mode(if permissions.is_some() { 0o600 } else { 0o666 })
        .open(part)
        .map_err(failed)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions).map_err(failed)?;
    }
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(Code::Interrupted, "interrupted; nothing was written"));
        }
        let count = read_piece(reader, &mut piece)?;
        if count == 0 {
            return file.sync_all().map_err(failed);
        }
        file.write_all(&piece[..count]).map_err(failed)?;
    }
}

fn part_path(path: &Path) -> Outcome<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{} does not name a file", path.display())))?;
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(part))
}

fn read_piece(reader: &mut dyn Read, piece: &mut [u8]) -> Outcome<usize> {
    loop {
        match reader.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map_err(|error| Failure::io("reading the value", &error)),
        }
    }
}

/// `terrace head KEY`
pub fn head(args: &KeyArgs, settings: Settings) -> Outcome {
    describe(&args.key, args.json, settings)
}

/// `terrace stat KEY`
pub fn describe(key: &OsStr, json: bool, settings: Settings) -> Outcome {
    let key = key_text::parse(key)?;
    let store = open(&settings, Access::Look)?;
    let info = store.head(&key)?.ok_or_else(|| not_found(&key))?;
    if json {
        print_json(&info_json(&key, &info))
    } else {
        print(&info_text(&key, &info))
    }
}

/// `terrace rm KEY|--prefix PREFIX`
pub fn remove(args: &RmArgs, settings: Settings) -> Outcome {
    match (&args.key, &args.prefix) {
        (_, Some(prefix)) => remove_prefix(prefix, args, settings),
        (Some(key), None) => remove_one(key, args, settings),
        (None, None) => Err(Failure::usage("name a key, or a prefix with --prefix")),
    }
}

fn remove_one(key: &OsStr, args: &RmArgs, settings: Settings) -> Outcome {
    let key = key_to_change(key)?;
    let store = open(&settings, Access::Change)?;
    let objects = Objects::of(&store, settings.durability, Secrets::default())?;
    let removed = match objects.find(&key) {
        Some(object) => object.remove().map_err(|failed| of_bucket(failed, Path::new("-")))?,
        None => match store.delete_with(&key, Condition::Present, settings.durability) {
            Err(terrace::Error::ConditionFailed { .. }) => None,
            other => Some(other?),
        },
    };
    let version = removed.ok_or_else(|| not_found(&key))?;
    close(&store)?;
    if args.json {
        print_json(&serde_json::json!({ "key": key_text::to_json(&key), "version": version.0 }))?;
    }
    Ok(())
}

/// Deletes objects of buckets one by one if they have more than a record: separate values,
/// versions. Keys of the S3 service stay. Commits are buffered: the deletion of the prefix makes
/// them durable.
fn remove_objects(store: &Store, prefix: &[u8]) -> Outcome {
    let objects = Objects::of(store, Durability::Buffered, Secrets::default())?;
    for item in store.scan(ScanRange::prefix(prefix))? {
        let item = item?;
        if local::is_system(&item.key) {
            return Err(Failure::usage(
                "below this prefix are the records of the S3 service (buckets, access keys): name a bucket's prefix, or use `terrace key remove` and an S3 client",
            ));
        }
        if let Some(object) = objects.find(&item.key).filter(|object| object.is_more_than(&item.info)) {
            object.remove().map_err(|failed| of_bucket(failed, Path::new("-")))?;
        }
    }
    Ok(())
}

fn remove_prefix(prefix: &OsStr, args: &RmArgs, settings: Settings) -> Outcome {
    let prefix = key_text::parse(prefix)?;
    let shown = key_text::escape(&prefix);
    let store = open(&settings, Access::Change)?;
    if store.scan(ScanRange::prefix(&prefix))?.next().transpose()?.is_none() {
        return Err(Failure::new(
            Code::NotFound,
            format!("no object has a key that begins with `{shown}`"),
        ));
    }
    let what = if prefix.is_empty() {
        "EVERY object of the store".to_owned()
    } else {
        format!("every object whose key begins with `{shown}`")
    };
    if !args.yes && !confirms(&format!("Delete {what}? [y/N] "))? {
        return Err(Failure::usage(
            "nothing was deleted: answer y, or give --yes without a terminal",
        ));
    }
    remove_objects(&store, &prefix)?;
    let version = store.delete_prefix(&prefix, settings.durability)?;
    close(&store)?;
    if args.json {
        print_json(&serde_json::json!({ "prefix": key_text::to_json(&prefix), "version": version.0 }))?;
    }
    Ok(())
}

/// Asks on standard error, so that standard output has only results, and reads one line.
fn confirms(question: &str) -> Outcome<bool> {
    let failed = |error| Failure::io("asking whether to delete", &error);
    let mut error = io::stderr().lock();
    error.write_all(question.as_bytes()).map_err(failed)?;
    error.flush().map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
