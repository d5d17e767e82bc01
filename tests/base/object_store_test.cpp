// Object stores: what is asked for, how requests are signed, what answers are believed; and a folder as a
// store. tests/app/object_store_test.py runs against a real S3 server.

#include "isthmus/base/object_store.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "isthmus/base/error.h"
#include "objects/s3_answers.h"
#include "objects/s3_signature.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::span<const std::byte> as_bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string problem_of(const ObjectStoreOptions& options) {
  try {
    check_object_store(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return {};
}

// The examples of "Signature Calculations for the Authorization Header" in Amazon's reference of S3.
const S3Credentials example{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
constexpr auto of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr auto example_time = "20130524T000000Z";

S3Request example_request(const std::string& path) {
  return {.method = "GET",
          .path = path,
          .query = {},
          .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                      {"x-amz-content-sha256", of_nothing},
                      {"x-amz-date", example_time}},
          .body_sha256 = of_nothing};
}

TEST(S3Signature, IsThatOfAmazonsExamples) {
  auto object = example_request("/test.txt");
  object.headers["range"] = "bytes=0-9";
  EXPECT_EQ(s3_authorization(object, example, "us-east-1", example_time),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  auto bucket = example_request("/");
  bucket.query = {{"lifecycle", ""}};
  EXPECT_THAT(s3_authorization(bucket, example, "us-east-1", example_time),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  bucket.query = {{"max-keys", "2"}, {"prefix", "J"}};
  EXPECT_THAT(s3_authorization(bucket, example, "us-east-1", example_time),
              EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(S3Signature, EncodesAllButUnreservedCharacters) {
  EXPECT_EQ(s3_encoded("a/b c+d~\xc3\xa9", true), "a/b%20c%2Bd~%C3%A9");
  EXPECT_EQ(s3_encoded("a/b", false), "a%2Fb");
  EXPECT_EQ(s3_query({{"prefix", "a b/"}, {"list-type", "2"}}), "list-type=2&prefix=a%20b%2F");
}

TEST(S3Answers, APageListsItsObjects) {
  const auto page =
      s3_page(R"(<?xml version="1.0"?><ListBucketResult xmlns="x"><IsTruncated>true</IsTruncated>)"
              "<Contents><Key>runs/a%20b</Key><Size>12</Size></Contents>"
              "<Contents><Key>runs/c&amp;d</Key><Size>0</Size></Contents>"
              "<Contents><Key>no size</Key></Contents><Contents><Key>bad%2</Key><Size>1</Size></Contents>"
              "<Contents><Key>negative</Key><Size>-1</Size></Contents>"
              "<NextContinuationToken>1/x==</NextContinuationToken></ListBucketResult>");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->objects, ElementsAre(ObjectEntry{"runs/a b", 12}, ObjectEntry{"runs/c&d", 0}));
  EXPECT_EQ(page->next, "1/x==");
  EXPECT_FALSE(s3_page("<html>a login page</html>"));
  EXPECT_FALSE(s3_page(""));
}

TEST(S3Answers, AReasonIsOneHarmlessLine) {
  EXPECT_EQ(s3_reason("<Error><Code>AccessDenied</Code><Message>no\x1b[2J</Message></Error>"),
            "AccessDenied: no?[2J");
  EXPECT_EQ(s3_reason("<Error><Code>SlowDown</Code></Error>"), "SlowDown");
  EXPECT_EQ(s3_reason("not XML"), "");
  EXPECT_LE(s3_reason("<Code>" + std::string(100'000, 'a') + "</Code>").size(), 300U);
}

TEST(ObjectStore, NamesWhatIsWrongWithItsOptions) {
  EXPECT_EQ(problem_of({.url = "s3://bucket/some/prefix"}), "");
  EXPECT_EQ(problem_of({.url = "gs://bucket"}), "");
  EXPECT_EQ(problem_of({.url = "/mnt/shared"}), "");
  EXPECT_EQ(problem_of({.url = "s3://bucket", .endpoint = "http://127.0.0.1:9000"}), "");
  EXPECT_THAT(problem_of({.url = "s3://"}),
              HasSubstr("object_store.url is 's3://'; expected s3://BUCKET/PREFIX"));
  EXPECT_THAT(problem_of({.url = "s3://Bad_Bucket!/x"}), HasSubstr("expected s3://BUCKET/PREFIX"));
  EXPECT_THAT(problem_of({.url = "https://host/bucket"}), HasSubstr("or a folder"));
  for (const auto* endpoint :
       {"127.0.0.1:9000", "http://", "ftp://host", "http://user@host", "http://host/path"})
    EXPECT_THAT(problem_of({.url = "s3://bucket", .endpoint = endpoint}),
                HasSubstr("expected http(s)://HOST[:PORT]"));
}

TEST(ObjectStore, NamesTheFileWithoutCredentials) {
  const TemporaryFolder folder;
  const auto open = [&](const std::filesystem::path& file) -> std::string {
    try {
      static_cast<void>(open_object_store({.url = "s3://bucket", .credentials = file.string()}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(open(folder / "missing"), HasSubstr((folder / "missing").string()));
  EXPECT_THAT(open(folder.write("empty", "[default]\n")), HasSubstr("has no aws_access_key_id"));
  EXPECT_THAT(open(folder.write("other", "[other]\naws_access_key_id = a\naws_secret_access_key = b\n")),
              HasSubstr("in its section [default]"));
  EXPECT_EQ(
      open(folder.write("good", "# mine\n[default]\r\naws_access_key_id=a\r\naws_secret_access_key = b=c\n")),
      "");
}

TEST(FolderStore, KeepsObjectsUnderTheirKeys) {
  const TemporaryFolder folder;
  const auto store = open_object_store({.url = (folder / "shared").string()});
  EXPECT_THAT(store->list(""), ElementsAre());
  EXPECT_EQ(store->get("run/a", 0, 10), std::nullopt);
  store->put("run/a", as_bytes_of("0123456789"));
  store->put("run/b/c", as_bytes_of(""));
  store->put("other", as_bytes_of("x"));
  EXPECT_EQ(text_of(store->get("run/a", 2, 3).value()), "234");
  EXPECT_EQ(text_of(store->get("run/a", 8, 100).value()), "89");
  EXPECT_EQ(text_of(store->get("run/a", 100, 1).value()), "");
  EXPECT_THAT(store->list("run/"), ElementsAre(ObjectEntry{"run/a", 10}, ObjectEntry{"run/b/c", 0}));
  EXPECT_THAT(store->list("run/b"), ElementsAre(ObjectEntry{"run/b/c", 0}));
  store->remove("run/a");
  store->remove("run/a");
  EXPECT_THAT(store->list("run/"), ElementsAre(ObjectEntry{"run/b/c", 0}));
  EXPECT_EQ(store->name("run/a"), (folder / "shared/run/a").string());
}

TEST(FolderStore, CopiesFilesWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const auto store = open_object_store({.url = (folder / "shared").string()});
  const std::string text(3'000'000, 'x');
  const auto file = folder.write("file", text);
  EXPECT_FALSE(store->put_file("a", file, [] { return true; }));
  EXPECT_THAT(store->list(""), ElementsAre());
  EXPECT_TRUE(store->put_file("a", file, [] { return false; }));
  const auto objects = store->list("");
  ASSERT_THAT(objects, ElementsAre(ObjectEntry{"a", text.size()}));
  EXPECT_FALSE(store->get_file(objects[0], folder / "copy", [] { return true; }));
  EXPECT_FALSE(std::filesystem::exists(folder / "copy"));
  EXPECT_TRUE(store->get_file(objects[0], folder / "copy", [] { return false; }));
  EXPECT_EQ(read_all(folder / "copy"), text);
  store->put("a", as_bytes_of("short"));
  EXPECT_THROW(static_cast<void>(store->get_file(objects[0], folder / "other", [] { return false; })), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

TEST(FolderStore, RefusesKeysOutsideItsFolder) {
  const TemporaryFolder folder;
  const auto store = open_object_store({.url = (folder / "shared").string()});
  for (const auto* key : {"", "/etc/passwd", "../x", "a/../../x"})
    EXPECT_THROW(store->put(key, as_bytes_of("x")), Error) << key;
}

}  // namespace
}  // namespace isthmus
