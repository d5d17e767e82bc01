#include "run/experiment/object_store_config.h"

namespace isthmus::app {

using config::Scope;

void ObjectStoreConfig::serialize(config::Archive& ar) {
  ar({"url", &url, Scope::per_site,
      "object store for copies of checkpoints and round logs, and for network.mailbox: s3://BUCKET/PREFIX, "
      "gs://BUCKET/PREFIX, or a folder that machines share; empty: none"});
  ar({"endpoint", &endpoint, Scope::per_site,
      "address of the S3-compatible server, as http(s)://HOST[:PORT]; empty: Amazon's for s3://, Google's "
      "for "
      "gs://"});
  ar({"region", &region, Scope::per_site, "region of the bucket; empty: us-east-1, or auto for gs://"});
  ar({"credentials", &credentials, Scope::per_site,
      "file with the access key for the bucket, in the format of ~/.aws/credentials; empty: that file"});
  ar({"ca", &ca, Scope::per_site,
      "file with the certificates that are trusted to have signed the server's; empty: the system's"});
  ar({"rate", &rate, Scope::per_site,
      "maximum rate at which a worker copies to the object store; auto: unlimited", 1e3, 1e13});
  ar({"copies", &copies, Scope::per_site,
      "whether workers copy their checkpoints and round logs to the object store"});
}

void ObjectStoreConfig::check() const {
  if (is_used()) check_object_store(options());
}

ObjectStoreOptions ObjectStoreConfig::options() const {
  return {.url = url,
          .endpoint = endpoint,
          .region = region,
          .credentials = credentials,
          .ca = ca,
          .rate = rate.bytes_per_second()};
}

}  // namespace isthmus::app
