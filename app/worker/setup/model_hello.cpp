#include "worker/setup/model_hello.h"

#include "isthmus/outer_sync/log/fingerprint.h"

namespace isthmus::app {

outer_sync::protocol::Hello model_hello(Experiment& experiment, const trainer::ParameterTable& table,
                                        const Digest& tokenizer, const std::string& name,
                                        const std::string& build) {
  auto hello = hello_of(experiment, name, build);
  // Not the table's own fingerprint, which covers this trainer's settings: those are compared key by key.
  hello.model = outer_sync::fingerprint_of(trainer::logged_tensors(table), table.layout());
  hello.tokenizer = tokenizer;
  return hello;
}

}  // namespace isthmus::app
