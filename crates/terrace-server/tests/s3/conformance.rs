//! What the crate `object_store` asks of a store, asked of this one: its own tests of
//! implementations, over its S3 client.

use crate::{Service, common::Place};
use object_store::{
    Error, ObjectStoreExt as _, PutPayload,
    aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut, S3CopyIfNotExists},
    integration::{
        copy_if_not_exists, copy_rename_nonexistent_object, get_nonexistent_object, get_opts, list_paginated,
        list_uses_directories_correctly, list_with_delimiter, list_with_offset_exclusivity, multipart,
        multipart_out_of_order, multipart_put_part_out_of_order, multipart_race_condition, multipart_with_opts,
        put_get_attributes, put_get_delete_list, put_opts, rename_and_copy, stream_get,
    },
    path::Path,
};

/// A client of a bucket.
fn builder(service: &Service, bucket: &str) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", service.client.address))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(&service.client.id)
        .with_secret_access_key(&service.client.secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
}

/// A runtime. Its client wants to know what to encrypt with, though nothing is encrypted here.
fn runtime() -> tokio::runtime::Runtime {
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Runtime::new().unwrap()
}

fn client(service: &Service, bucket: &str) -> AmazonS3 {
    builder(service, bucket).build().unwrap()
}

/// Its tests ask for an empty bucket each time, and empty it themselves.
#[test]
fn tests_of_the_crate_object_store() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    runtime().block_on(async {
        let store = client(&service, "bucket");
        put_get_delete_list(&store).await;
        list_with_offset_exclusivity(&store).await;
        get_opts(&store).await;
        list_uses_directories_correctly(&store).await;
        list_with_delimiter(&store).await;
        rename_and_copy(&store).await;
        copy_rename_nonexistent_object(&store).await;
        stream_get(&store).await;
        multipart(&store, &store).await;
        multipart_with_opts(&store, &store).await;
        multipart_put_part_out_of_order(&store, &store).await;
        multipart_race_condition(&store, true).await;
        multipart_out_of_order(&store).await;
        put_get_attributes(&store).await;
        list_paginated(&store, &store).await;
        copy_if_not_exists(&store).await;
        put_opts(&store, true).await;
        for variant in [
            builder(&service, "bucket").with_unsigned_payload(true),
            builder(&service, "bucket").with_checksum_algorithm(Checksum::SHA256),
            builder(&service, "bucket").with_checksum_algorithm(Checksum::CRC64NVME),
        ] {
            put_get_delete_list(&variant.build().unwrap()).await;
        }
    });
}

#[test]
fn what_is_not_there_for_the_crate_object_store() {
    let place = Place::new();
    let service = Service::start(&place, &[]);
    service.client.send("PUT", "/bucket", &[], b"").status(200);
    runtime().block_on(async {
        let (store, none) = (client(&service, "bucket"), client(&service, "none-at-all"));
        let key = Path::from("key");
        let error = get_nonexistent_object(&store, Some(key.clone())).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        store.delete(&key).await.unwrap();
        for outcome in [
            none.get(&key).await.map(drop),
            none.put(&key, PutPayload::from("data")).await.map(drop),
            none.delete(&key).await,
        ] {
            assert!(matches!(outcome, Err(Error::NotFound { .. })), "{outcome:?}");
        }
    });
}
