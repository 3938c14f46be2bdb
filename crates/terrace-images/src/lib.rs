//! Importing images: every image file under a directory becomes one group in the store.
//!
//! The way of one file: `walk` finds it, `source` reads and recognises it by content, `decode`
//! turns it into pixels, `resize` makes the resolutions, `encode` writes them, `group` puts
//! everything into one batch and `pipeline` commits it, many files at a time. `catalogue` names the
//! keys and attributes.
//!
//! # What is stored
//!
//! An image's ID is the first 16 bytes of the BLAKE3 hash of its file, in lowercase hex. One group
//! holds:
//!
//! | key | value | attributes |
//! |---|---|---|
//! | `images/ID/original` | the file as it is | all of the image's, `content-type`, `etag` |
//! | `images/ID/RESOLUTION` | the image fitted into the resolution's box, encoded | `content-type`, `etag`, `width`, `height`, `content-hash` |
//! | `catalogue/ID` | nothing | all of the image's, and width, height, bytes and type of each resolution |
//!
//! A page of N images is one scan of N entries under `catalogue/`: attributes live in the ordered
//! index, so no value is read for a listing. Order is that of the IDs, which is arbitrary but
//! stable; paging continues after the last ID.
//!
//! # Invariants
//!
//! - `catalogue/ID` is there if and only if the whole group is: they are committed together. Its
//!   presence is the test by which a second import of the same content does nothing.
//! - Nothing is allocated for pixels before the header's dimensions were checked against the pixel
//!   limit.
//! - Images in flight are bounded by a budget of memory, whatever the number of threads (see
//!   `gate`).
//!
//! # On failure
//!
//! A file that cannot be read or decoded is reported by name with the reason, and the import goes
//! on. Decoding is strict: a file whose pixels are incomplete is a failure, not a half-grey image.
//! An error of the store itself stops the import; what was committed stays, and importing again
//! continues from there.

mod catalogue;
mod decode;
mod encode;
mod exif;
mod gate;
mod group;
mod options;
mod pipeline;
mod progress;
mod report;
mod resize;
mod source;
#[cfg(test)]
mod tests;
mod walk;

pub use catalogue::{
    CATALOGUE_PREFIX, CatalogueEntry, IMAGES_PREFIX, ImageId, ORIGINAL, StoredResolution, attribute, catalogue_key,
    image_key,
};
pub use options::{ImportOptions, OutputFormat, Resolution};
pub use pipeline::{GroupSink, import};
pub use progress::{Progress, TerminalBar};
pub use report::{FailedFile, ImportReport, Outcome};
pub use source::Format;
