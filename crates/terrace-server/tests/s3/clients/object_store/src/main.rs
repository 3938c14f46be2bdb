//! An ordinary day of the crate object_store: `day ENDPOINT`, with a bucket that is there.

use futures::{StreamExt, TryStreamExt, stream};
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion, WriteMultipart,
    aws::AmazonS3Builder, path::Path,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let endpoint = std::env::args().nth(1).ok_or("day ENDPOINT")?;
    let s3 = AmazonS3Builder::from_env()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_bucket_name("object-store-bucket")
        .with_region("us-east-1")
        .build()?;
    objects(&s3).await?;
    conditions(&s3).await?;
    parts(&s3).await?;
    listings(&s3).await?;
    let all = s3.list(None).map_ok(|object| object.location).boxed();
    let deleted = s3.delete_stream(all).try_collect::<Vec<_>>().await?;
    assert!(deleted.len() > 25 && s3.list(None).next().await.is_none(), "everything is deleted");
    println!("object_store is content");
    Ok(())
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 251 + n) as u8 ^ seed).collect()
}

async fn objects(s3: &impl ObjectStore) -> Outcome<()> {
    let (path, value) = (Path::from("deep/päge & more+.bin"), bytes(1, 300_000));
    s3.put(&path, value.clone().into()).await?;
    assert_eq!(s3.get(&path).await?.bytes().await?, value);
    assert_eq!(s3.get_range(&path, 1_000..2_000).await?, value[1_000..2_000]);
    let ranges = s3.get_ranges(&path, &[0..10, 250_000..250_100]).await?;
    assert_eq!(ranges[1], value[250_000..250_100]);
    assert_eq!(s3.head(&path).await?.size, 300_000);
    s3.copy(&path, &Path::from("copy")).await?;
    assert_eq!(s3.get(&Path::from("copy")).await?.bytes().await?, value);
    let absent = s3.get(&Path::from("absent")).await;
    assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
    Ok(())
}

/// What table formats build their commits on.
async fn conditions(s3: &impl ObjectStore) -> Outcome<()> {
    let path = Path::from("commit");
    let create = PutOptions::from(PutMode::Create);
    let first = s3.put_opts(&path, "one".into(), create.clone()).await?;
    let again = s3.put_opts(&path, "two".into(), create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    let seen = UpdateVersion { e_tag: first.e_tag, version: first.version };
    let update = PutOptions::from(PutMode::Update(seen));
    s3.put_opts(&path, "three".into(), update.clone()).await?;
    let late = s3.put_opts(&path, "four".into(), update).await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
    assert_eq!(s3.get(&path).await?.bytes().await?, "three");
    Ok(())
}

async fn parts(s3: &impl ObjectStore) -> Outcome<()> {
    let (path, value) = (Path::from("large"), bytes(2, 11 << 20));
    let mut writer = WriteMultipart::new(s3.put_multipart(&path).await?);
    for piece in value.chunks(700_001) {
        writer.write(piece);
    }
    writer.finish().await?;
    assert_eq!(s3.get(&path).await?.bytes().await?, value);
    let mut given_up = s3.put_multipart(&Path::from("given-up")).await?;
    given_up.put_part(value[..5 << 20].to_vec().into()).await?;
    given_up.abort().await?;
    Ok(())
}

async fn listings(s3: &impl ObjectStore) -> Outcome<()> {
    stream::iter(0..25)
        .map(|n| async move { s3.put(&Path::from(format!("list/{}/{n}", n % 5)), "x".into()).await })
        .buffer_unordered(8)
        .try_collect::<Vec<_>>()
        .await?;
    let prefix = Path::from("list");
    assert_eq!(s3.list(Some(&prefix)).count().await, 25);
    assert_eq!(s3.list_with_delimiter(Some(&prefix)).await?.common_prefixes.len(), 5);
    Ok(())
}
