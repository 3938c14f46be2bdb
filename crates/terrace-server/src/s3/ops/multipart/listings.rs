//! ListParts, ListMultipartUploads.

use super::{PartRecord, Upload};
use crate::s3::ops::Answered;
use crate::{
    s3::{
        Gateway,
        bucket::Bucket,
        class::Class,
        digest::{self, Algorithm, Kind},
        errors::{self, Told as _},
        keyspace,
        list::{self, After, Entry, Page, Query, Stored},
        ops::{
            listings::{Encoding, limit, pay},
            said, signed,
        },
        record,
    },
    set_checksums,
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        ChecksumAlgorithm, ChecksumType, CommonPrefix, ETag, Initiator, ListMultipartUploadsInput,
        ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, MultipartUpload, Owner, Part, StorageClass,
    },
    s3_error,
};
use std::sync::Arc;
use terrace::{ObjectInfo, ScanItem, ScanRange};
use terrace_objects::upload::UploadRecord;

/// The owner of an upload: the account that began it, if it is not the bucket's.
fn owner(bucket: &Bucket, account: Option<&str>) -> Owner {
    crate::s3::ops::shown(account.unwrap_or(bucket.record().owner()))
}

fn initiator(owner: Owner) -> Initiator {
    Initiator {
        display_name: owner.display_name,
        id: owner.id,
    }
}

/// ListParts
pub async fn parts(gateway: &Arc<Gateway>, request: S3Request<ListPartsInput>) -> Answered<ListPartsOutput> {
    let input = request.input;
    let most = limit(input.max_parts, "max-parts")?;
    let marker = match input.part_number_marker {
        None => 0,
        Some(marker) => u16::try_from(marker).map_err(|_| {
            s3_error!(
                InvalidArgument,
                "part-number-marker must be an integer between 0 and 65535"
            )
        })?,
    };
    let bucket = gateway.bucket(&input.bucket)?;
    let (key, id) = (input.key.clone(), input.upload_id.clone());
    let asked = Arc::clone(&bucket);
    let (upload, found) = gateway
        .run(move |_, store| {
            let upload = Upload::find(store, &asked.name, &key, &id)?;
            let fail = |error| errors::of_engine(&error, &upload.record);
            let range = ScanRange::prefix(keyspace::parts(upload.id)).after(keyspace::part(upload.id, marker));
            let scan = store.scan(range).map_err(fail)?;
            let items: Vec<ScanItem> = scan
                .take(usize::try_from(most).unwrap_or(0) + 1)
                .collect::<terrace::Result<_>>()
                .map_err(fail)?;
            let parts: S3Result<Vec<_>> = items
                .iter()
                .map(|item| PartRecord::read(&item.key, &item.info).told())
                .collect();
            Ok((upload, parts?))
        })
        .await?;
    let most = usize::try_from(most).unwrap_or(0);
    let truncated = found.len() > most && most > 0;
    let shown: Vec<_> = found.iter().take(most).map(shown_part).collect();
    let last = found.iter().take(most).next_back().map(|part| i32::from(part.number));
    let owner = owner(&bucket, record::account(&upload.info.attributes));
    let (abort_date, abort_rule_id) = said::abortion(&bucket, &input.key, upload.id);
    Ok(S3Response::new(ListPartsOutput {
        abort_date,
        abort_rule_id,
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        initiator: Some(initiator(owner.clone())),
        owner: Some(owner),
        storage_class: Some(StorageClass::from_static(Class::of(&upload.info.attributes).name())),
        part_number_marker: Some(i32::from(marker)),
        // S3 returns it on the last page, too, and 0 if there are no parts.
        next_part_number_marker: last.or(Some(0)),
        max_parts: i32::try_from(most).ok(),
        is_truncated: Some(truncated),
        checksum_algorithm: upload
            .is_chosen
            .then(|| ChecksumAlgorithm::from_static(upload.algorithm.name())),
        checksum_type: upload.is_chosen.then(|| ChecksumType::from_static(upload.kind.name())),
        parts: Some(shown),
        ..ListPartsOutput::default()
    }))
}

fn shown_part(part: &PartRecord) -> Part {
    let mut shown = Part {
        e_tag: Some(ETag::Strong(part.tag.text())),
        last_modified: Some(said::second(part.modified_ms)),
        part_number: Some(i32::from(part.number)),
        size: Some(signed(part.length)),
        ..Part::default()
    };
    set_checksums!(shown, digest::stored(&part.attributes));
    shown
}

/// Whether a marker is a common prefix that a page has shown: nothing below it comes again. It may
/// be the key of uploads that are listed by themselves, though it ends with the delimiter.
fn is_shown_prefix(marker: &str, prefix: &str, delimiter: Option<&str>) -> bool {
    delimiter.is_some_and(|delimiter| list::common_prefix(marker, prefix, delimiter) == Some(marker))
}

/// ListMultipartUploads
pub async fn uploads(
    gateway: &Arc<Gateway>,
    request: S3Request<ListMultipartUploadsInput>,
) -> Answered<ListMultipartUploadsOutput> {
    let input = request.input;
    let encoding = Encoding::of(input.encoding_type.as_ref())?;
    let most = limit(input.max_uploads, "max-uploads")?;
    let bucket = gateway.bucket(&input.bucket)?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let delimiter = input.delimiter.clone().filter(|text| !text.is_empty());
    let key_marker = input.key_marker.clone().unwrap_or_default();
    // The marker of an upload counts only together with that of a key.
    let id_marker = input.upload_id_marker.clone().unwrap_or_default();
    let (asked_prefix, asked_delimiter, after_key, after_id) =
        (prefix.clone(), delimiter.clone(), key_marker.clone(), id_marker.clone());
    let asked = Arc::clone(&bucket);
    let page = gateway
        .run(move |_, store| {
            let base = keyspace::uploads(&asked.name);
            let is_common = is_shown_prefix(&after_key, &asked_prefix, asked_delimiter.as_deref());
            let after = match (after_key.as_str(), after_id.as_str()) {
                ("", _) => None,
                (key, "") if is_common => Some(After::Shown(key)),
                // After all uploads of this key: IDs are hex digits, which sort before `g`.
                (key, "") => Some(After::Raw(format!("{key}\0g").into_bytes())),
                (key, id) => Some(After::Raw(format!("{key}\0{id}").into_bytes())),
            };
            let query = Query {
                base: &base,
                prefix: &asked_prefix,
                delimiter: asked_delimiter.as_deref(),
                after,
                limit: usize::try_from(most).unwrap_or(0),
            };
            list::page(
                store,
                &query,
                |key| keyspace::parse_upload(key).map(|(name, _)| name),
                Kept::of,
            )
            .told()
        })
        .await?;
    let keys = page.entries.iter().map(|entry| match entry {
        Entry::Prefix(prefix) => prefix.as_str(),
        Entry::Key((key, _)) => std::str::from_utf8(key).unwrap_or_default(),
    });
    pay(&request.extensions, keys)?;
    let shown = ShownUploads::of(&page, &bucket, encoding);
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: shown.prefixes,
        delimiter: delimiter.as_deref().map(|text| encoding.apply(text)),
        encoding_type: input.encoding_type,
        is_truncated: Some(page.truncated),
        key_marker: Some(encoding.apply(&key_marker)),
        max_uploads: Some(most),
        next_key_marker: shown.next.0.map(|text| encoding.apply(&text)),
        next_upload_id_marker: shown.next.1,
        prefix: Some(encoding.apply(&prefix)),
        upload_id_marker: Some(id_marker),
        uploads: shown.uploads,
        ..ListMultipartUploadsOutput::default()
    }))
}

/// A page of uploads for the answer.
struct ShownUploads {
    uploads: Option<Vec<MultipartUpload>>,
    prefixes: Option<Vec<CommonPrefix>>,
    /// Key and upload of the last entry, if more follow.
    next: (Option<String>, Option<String>),
}

impl ShownUploads {
    fn of(page: &Page<Stored<Kept>>, bucket: &Bucket, encoding: Encoding) -> Self {
        let (mut uploads, mut prefixes, mut last) = (Vec::new(), Vec::new(), (None, None));
        for entry in &page.entries {
            match entry {
                Entry::Prefix(prefix) => {
                    last = (Some(prefix.clone()), None);
                    prefixes.push(CommonPrefix {
                        prefix: Some(encoding.apply(prefix)),
                    });
                }
                Entry::Key((key, kept)) => {
                    let Some((name, id)) = keyspace::parse_upload(key) else {
                        continue;
                    };
                    last = (Some(name.to_owned()), Some(id.to_string()));
                    uploads.push(kept.shown(bucket, &encoding.apply(name), id));
                }
            }
        }
        Self {
            uploads: (!uploads.is_empty()).then_some(uploads),
            prefixes: (!prefixes.is_empty()).then_some(prefixes),
            next: if page.truncated { last } else { (None, None) },
        }
    }
}

/// The fields of an upload that a page needs.
struct Kept {
    account: Option<String>,
    /// The checksum that the client chose for its parts.
    checksum: Option<(Algorithm, Kind)>,
    class: Class,
}

impl Kept {
    fn of(info: &ObjectInfo) -> Self {
        let said = UploadRecord::read(&info.attributes);
        Self {
            account: record::account(&info.attributes).map(str::to_owned),
            checksum: said.is_chosen.then_some((said.algorithm, said.kind)),
            class: Class::of(&info.attributes),
        }
    }

    fn shown(&self, bucket: &Bucket, key: &str, id: keyspace::Id) -> MultipartUpload {
        let owner = owner(bucket, self.account.as_deref());
        let (algorithm, kind) = self.checksum.unzip();
        MultipartUpload {
            checksum_algorithm: algorithm.map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
            checksum_type: kind.map(|kind| ChecksumType::from_static(kind.name())),
            initiated: Some(said::second(id.ms())),
            initiator: Some(initiator(owner.clone())),
            key: Some(key.to_owned()),
            owner: Some(owner),
            storage_class: Some(StorageClass::from_static(self.class.name())),
            upload_id: Some(id.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uploads of a key that is the prefix itself were listed again on each next page.
    #[test]
    fn a_marker_that_ends_with_the_delimiter_may_be_a_key() {
        assert!(is_shown_prefix("a/b/", "a/", Some("/")));
        assert!(is_shown_prefix("a/", "", Some("/")));
        assert!(!is_shown_prefix("a/", "a/", Some("/")));
        assert!(!is_shown_prefix("a/b", "a/", Some("/")));
        assert!(!is_shown_prefix("a/b/", "a/", None));
    }
}
