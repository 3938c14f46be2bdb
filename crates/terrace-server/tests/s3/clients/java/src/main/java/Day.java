import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.*;

/** A day's ordinary work: objects, metadata, ranges, conditions, parts, listings, tags, versions. */
public final class Day {
    private static final String BUCKET = "java-bucket";

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static byte[] bytes(int seed, int length) {
        byte[] bytes = new byte[length];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    private static byte[] read(S3Client s3, String key) {
        return s3.getObjectAsBytes(get -> get.bucket(BUCKET).key(key)).asByteArray();
    }

    private static void objects(S3Client s3) {
        byte[] value = bytes(1, 300_000);
        PutObjectResponse put = s3.putObject(
                p -> p.bucket(BUCKET).key("päge & more+.bin").contentType("image/x-test").metadata(Map.of("colour", "red")),
                RequestBody.fromBytes(value));
        check(Arrays.equals(read(s3, "päge & more+.bin"), value), "what was put is got");
        HeadObjectResponse head = s3.headObject(h -> h.bucket(BUCKET).key("päge & more+.bin"));
        check(head.contentLength() == value.length && head.contentType().equals("image/x-test"), "head");
        check(head.metadata().get("colour").equals("red") && head.eTag().equals(put.eTag()), "metadata and ETag");
        byte[] part = s3.getObjectAsBytes(g -> g.bucket(BUCKET).key("päge & more+.bin").range("bytes=1000-1999")).asByteArray();
        check(Arrays.equals(part, Arrays.copyOfRange(value, 1000, 2000)), "a range");
        try {
            s3.putObject(p -> p.bucket(BUCKET).key("päge & more+.bin").ifNoneMatch("*"), RequestBody.fromString("other"));
            check(false, "a key that exists is not created");
        } catch (S3Exception refused) {
            check(refused.statusCode() == 412, "412, found " + refused.statusCode());
        }
        try {
            read(s3, "absent");
            check(false, "an absent key is not read");
        } catch (NoSuchKeyException absent) {
            check(absent.statusCode() == 404, "404");
        }
        s3.copyObject(c -> c.sourceBucket(BUCKET).sourceKey("päge & more+.bin").destinationBucket(BUCKET).destinationKey("copy"));
        check(Arrays.equals(read(s3, "copy"), value), "a copy");
        s3.putObjectTagging(t -> t.bucket(BUCKET).key("copy").tagging(g -> g.tagSet(Tag.builder().key("a").value("b").build())));
        check(s3.getObjectTagging(t -> t.bucket(BUCKET).key("copy")).tagSet().size() == 1, "tags");
    }

    private static void parts(S3Client s3) {
        byte[] value = bytes(2, 11 << 20);
        String id = s3.createMultipartUpload(c -> c.bucket(BUCKET).key("large")).uploadId();
        List<CompletedPart> parts = new ArrayList<>();
        for (int number = 1, from = 0; from < value.length; number++, from += 5 << 20) {
            int part = number;
            ByteBuffer body = ByteBuffer.wrap(value, from, Math.min(5 << 20, value.length - from)).slice();
            UploadPartResponse done = s3.uploadPart(
                    u -> u.bucket(BUCKET).key("large").uploadId(id).partNumber(part), RequestBody.fromByteBuffer(body));
            parts.add(CompletedPart.builder().partNumber(part).eTag(done.eTag()).checksumCRC32(done.checksumCRC32()).build());
        }
        check(s3.listParts(l -> l.bucket(BUCKET).key("large").uploadId(id)).parts().size() == parts.size(), "parts listed");
        s3.completeMultipartUpload(
                c -> c.bucket(BUCKET).key("large").uploadId(id).multipartUpload(m -> m.parts(parts)));
        check(Arrays.equals(read(s3, "large"), value), "an object of parts");
        String left = s3.createMultipartUpload(c -> c.bucket(BUCKET).key("given-up")).uploadId();
        s3.abortMultipartUpload(a -> a.bucket(BUCKET).key("given-up").uploadId(left));
        check(s3.listMultipartUploads(l -> l.bucket(BUCKET)).uploads().isEmpty(), "no upload is left");
    }

    private static void listings(S3Client s3) {
        for (int n = 0; n < 25; n++) {
            String key = "list/" + (n % 5) + "/" + n;
            s3.putObject(p -> p.bucket(BUCKET).key(key), RequestBody.fromString(key));
        }
        long listed = s3.listObjectsV2Paginator(l -> l.bucket(BUCKET).prefix("list/").maxKeys(4)).contents().stream().count();
        check(listed == 25, "25 keys in pages, found " + listed);
        long folders = s3.listObjectsV2Paginator(l -> l.bucket(BUCKET).prefix("list/").delimiter("/").maxKeys(2))
                .commonPrefixes().stream().count();
        check(folders == 5, "5 folders, found " + folders);
    }

    private static void versions(S3Client s3) {
        s3.putBucketVersioning(v -> v.bucket(BUCKET).versioningConfiguration(c -> c.status(BucketVersioningStatus.ENABLED)));
        String first = s3.putObject(p -> p.bucket(BUCKET).key("kept"), RequestBody.fromString("one")).versionId();
        s3.putObject(p -> p.bucket(BUCKET).key("kept"), RequestBody.fromString("two"));
        s3.deleteObject(d -> d.bucket(BUCKET).key("kept"));
        String old = s3.getObjectAsBytes(g -> g.bucket(BUCKET).key("kept").versionId(first)).asUtf8String();
        check(old.equals("one"), "an old version");
        ListObjectVersionsResponse all = s3.listObjectVersions(l -> l.bucket(BUCKET).prefix("kept"));
        check(all.versions().size() == 2 && all.deleteMarkers().size() == 1, "versions listed");
    }

    private static void empty(S3Client s3) {
        s3.listObjectVersionsPaginator(l -> l.bucket(BUCKET)).forEach(page -> {
            List<ObjectIdentifier> keys = new ArrayList<>();
            page.versions().forEach(v -> keys.add(ObjectIdentifier.builder().key(v.key()).versionId(v.versionId()).build()));
            page.deleteMarkers().forEach(v -> keys.add(ObjectIdentifier.builder().key(v.key()).versionId(v.versionId()).build()));
            DeleteObjectsResponse deleted = s3.deleteObjects(d -> d.bucket(BUCKET).delete(k -> k.objects(keys)));
            check(deleted.errors().isEmpty() && deleted.deleted().size() == keys.size(), "many deleted at once");
        });
        s3.deleteBucket(d -> d.bucket(BUCKET));
    }

    public static void main(String[] arguments) {
        try (S3Client s3 = S3Client.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.US_EAST_1)
                .forcePathStyle(true)
                .httpClient(UrlConnectionHttpClient.create())
                .build()) {
            s3.createBucket(c -> c.bucket(BUCKET));
            objects(s3);
            parts(s3);
            listings(s3);
            versions(s3);
            empty(s3);
            System.out.println("the Java SDK is content");
        }
    }
}
