#include "tokenizer/bpe_spec.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "isthmus/base/error.h"
#include "unicode/normal_form.h"

namespace isthmus::data {
namespace {

using Json = nlohmann::json;

// The longest known one has 512 characters of whitespace.
constexpr std::size_t max_added_token = 4096;
constexpr std::size_t max_pattern = 16384;
constexpr int max_json_depth = 32;
constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Added tokens that end a document; the first one in the file is used.
constexpr std::array separators = {
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<|eos|>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]",
};

std::string shown(const Json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  constexpr std::size_t most = 60;
  auto text = value.dump(-1, ' ', true);
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

/// A JSON value and its place in the file.
class Node {
 public:
  Node(const std::string& file, const Json& value, std::string place)
      : file_(&file), value_(&value), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& expected) const {
    config_error(*file_ + ": " + place_ + " is " + shown(*value_) + ": expected " + expected);
  }
  [[nodiscard]] const Json& json() const { return *value_; }
  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }

  const Node& object(std::initializer_list<std::string_view> keys) const {
    if (!value_->is_object()) refuse("an object");
    for (const auto& [key, value] : value_->items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) member(key, value).refuse("no such key");
    }
    return *this;
  }
  /// Null if the key is missing.
  [[nodiscard]] Node at(const std::string& key) const {
    static const Json null;
    const auto found = value_->find(key);
    return member(key, found == value_->end() ? null : *found);
  }
  [[nodiscard]] std::vector<Node> elements() const {
    if (!value_->is_array()) refuse("an array");
    std::vector<Node> out;
    for (std::size_t i = 0; i < value_->size(); ++i) out.push_back(element(i));
    return out;
  }
  [[nodiscard]] Node element(std::size_t i) const {
    return {*file_, (*value_)[i], fmt::format("{}[{}]", place_, i)};
  }
  [[nodiscard]] Node member(const std::string& key, const Json& value) const {
    return {*file_, value, place_ + (place_.empty() ? "" : ".") + key};
  }
  [[nodiscard]] const std::string& text() const {
    if (!value_->is_string()) refuse("a string");
    return value_->get_ref<const std::string&>();
  }
  [[nodiscard]] bool boolean(std::optional<bool> otherwise = {}) const {
    if (value_->is_null() && otherwise) return *otherwise;
    if (!value_->is_boolean()) refuse("true or false");
    return value_->get<bool>();
  }
  [[nodiscard]] std::uint32_t id() const {
    if (!value_->is_number_unsigned() ||
        value_->get<std::uint64_t>() >= std::numeric_limits<std::uint32_t>::max())
      refuse("an id, a whole number from 0 to 4294967294");
    return value_->get<std::uint32_t>();
  }
  void expect_null(const std::string& why) const {
    if (!is_null()) refuse("null: " + why);
  }
  void expect_false(const std::string& why) const {
    if (boolean(false)) refuse("false: " + why);
  }

 private:
  const std::string* file_;
  const Json* value_;
  std::string place_;
};

/// The alphabet of byte-level BPE (github.com/openai/gpt-2, encoder.py): printable bytes stand for
/// themselves, the others are the characters from U+0100 on.
class Alphabet {
 public:
  Alphabet() {
    byte_of_.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      byte_of_[printable ? static_cast<char32_t>(byte) : next++] = byte;
    }
  }
  /// Returns nullopt if a character is not in the alphabet, which has only characters of one or two bytes of
  /// UTF-8.
  [[nodiscard]] std::optional<std::string> bytes_of(std::string_view token) const {
    std::string out;
    for (std::size_t i = 0; i < token.size(); ++i) {
      const auto first = static_cast<unsigned char>(token[i]);
      std::uint32_t character = first;
      if (first >= 0x80) {
        if (first >= 0xE0 || i + 1 == token.size()) return {};
        character = (first & 0x1FU) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3FU);
      }
      if (character >= byte_of_.size() || byte_of_[character] < 0) return {};
      out += static_cast<char>(byte_of_[character]);
    }
    return out;
  }

 private:
  std::array<int, 512> byte_of_{};
};

class SpecReader {
 public:
  explicit SpecReader(const Node& root) : root_(root) {}

  BpeSpec read() {
    root_.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
    if (const auto version = root_.at("version"); !version.is_null() && version.text() != "1.0")
      version.refuse("\"1.0\"");
    root_.at("truncation").expect_null("truncation would drop text");
    root_.at("padding").expect_null("padding would add ids");
    read_model(root_.at("model"));
    read_normalizer(root_.at("normalizer"));
    read_pre_tokenizer(root_.at("pre_tokenizer"));
    if (!byte_level_) root_.at("pre_tokenizer").refuse("ByteLevel, or a Sequence that ends with it");
    read_post_processor(root_.at("post_processor"));
    read_decoder(root_.at("decoder"));
    if (const auto added = root_.at("added_tokens"); !added.is_null()) read_added(added);
    check_ids();
    find_separator();
    return std::move(spec_);
  }

 private:
  void read_model(const Node& model) {
    model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (const auto type = model.at("type"); !type.is_null() && type.text() != "BPE") type.refuse("\"BPE\"");
    if (const auto dropout = model.at("dropout"); !dropout.is_null() && dropout.json() != 0.0)
      dropout.refuse("null or 0: ids would be random");
    for (const auto* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const auto node = model.at(affix); !node.is_null() && !node.text().empty())
        node.refuse("null or \"\": byte-level BPE has none");
    }
    model.at("byte_fallback").expect_false("byte-level BPE has every byte");
    static_cast<void>(model.at("fuse_unk").boolean(false));  // every byte is a token, so nothing is unknown
    if (const auto unknown = model.at("unk_token"); !unknown.is_null()) static_cast<void>(unknown.text());
    spec_.ignore_merges = model.at("ignore_merges").boolean(false);
    read_vocab(model.at("vocab"));
    read_merges(model.at("merges"));
  }

  /// Stores the token with this id. The limit on ids keeps one large id from allocating much memory.
  void put(const Node& node, std::uint32_t id, std::string bytes) {
    if (id >= id_limit_)
      node.refuse(fmt::format(
          "an id below {}, twice the number of tokens: each unused id is a row of the model", id_limit_));
    if (id >= spec_.tokens.size()) {
      spec_.tokens.resize(id + 1);
      taken_.resize(id + 1);
    }
    if (taken_[id]) node.refuse("an id that no other token has");
    taken_[id] = true;
    spec_.tokens[id] = std::move(bytes);
  }

  void read_vocab(const Node& vocab) {
    if (!vocab.json().is_object()) vocab.refuse("an object of tokens and their ids");
    const Node added_tokens = root_.at("added_tokens");
    const auto& added = added_tokens.json();
    id_limit_ = 2 * (vocab.json().size() + (added.is_array() ? added.size() : 0));
    const Alphabet alphabet;
    std::array<bool, 256> bytes_there{};
    for (const auto& [token, value] : vocab.json().items()) {
      const Node node = vocab.member("\"" + token + "\"", value);
      const auto id = node.id();
      auto bytes = alphabet.bytes_of(token);
      if (token.empty()) node.refuse("a token of at least one character");
      if (bytes) {
        if (bytes->size() == 1) bytes_there[static_cast<unsigned char>(bytes->front())] = true;
        spec_.words.push_back({*bytes, id});
      }
      put(node, id, std::move(bytes).value_or(token));
    }
    const auto missing = std::find(bytes_there.begin(), bytes_there.end(), false) - bytes_there.begin();
    if (missing < 256)
      vocab.refuse(fmt::format("a token for each of the 256 bytes; that of byte {} is missing", missing));
    std::sort(spec_.words.begin(), spec_.words.end(),
              [](const WordToken& a, const WordToken& b) { return a.id < b.id; });
  }

  [[nodiscard]] std::uint32_t id_of(const Node& merge, const std::string& token, const char* what) const {
    const auto& vocab = root_.json()["model"]["vocab"];
    const auto found = vocab.find(token);
    if (found == vocab.end())
      merge.refuse(std::string(what) + " in model.vocab, which has no " + shown(Json(token)));
    return found->get<std::uint32_t>();
  }

  void read_merges(const Node& merges) {
    if (!merges.json().is_array()) merges.refuse("an array");
    for (std::size_t i = 0; i < merges.json().size(); ++i) {
      const auto& value = merges.json()[i];
      const auto node = merges.element(i);
      std::string left, right;
      if (value.is_string()) {
        const auto& line = value.get_ref<const std::string&>();
        if (line.starts_with("#version")) continue;  // a comment of merges.txt, which `tokenizers` skips
        const auto space = line.find(' ');
        if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
          node.refuse("two tokens with one space between them");
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else {
        if (!value.is_array() || value.size() != 2) node.refuse("two tokens");
        left = node.element(0).text();
        right = node.element(1).text();
      }
      const auto left_id = id_of(node, left, "a left part"), right_id = id_of(node, right, "a right part");
      spec_.merges.push_back({left_id, right_id, id_of(node, left + right, "a result")});
    }
  }

  void read_normalizer(const Node& node) {
    if (node.is_null()) return;
    if (!node.json().is_object()) node.refuse("null, NFC or a Sequence of those");
    const std::string type = node.at("type").text();
    if (type == "Sequence") {
      node.object({"type", "normalizers"});
      for (const auto& step : node.at("normalizers").elements()) read_normalizer(step);
    } else if (type == "NFC") {
      node.object({"type"});
      spec_.nfc = true;
    } else {
      node.at("type").refuse("NFC or Sequence");
    }
  }

  void read_pre_tokenizer(const Node& node) {
    if (!node.json().is_object()) node.refuse("an object: ByteLevel, Split or a Sequence of those");
    if (byte_level_) node.refuse("nothing after ByteLevel, which outputs bytes, not text");
    const std::string type = node.at("type").text();
    if (type == "Sequence") {
      node.object({"type", "pretokenizers"});
      for (const auto& step : node.at("pretokenizers").elements()) read_pre_tokenizer(step);
    } else if (type == "Split") {
      read_split(node);
    } else if (type == "ByteLevel") {
      node.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      static_cast<void>(node.at("trim_offsets").boolean());  // offsets are not used
      if (node.at("add_prefix_space").boolean()) spec_.steps.push_back({CutStep::Kind::prefix_space, {}});
      if (node.at("use_regex").boolean(true)) spec_.steps.push_back({CutStep::Kind::pattern, gpt2_pattern});
      byte_level_ = true;
    } else {
      node.at("type").refuse("ByteLevel, Split or Sequence");
    }
  }

  void read_split(const Node& node) {
    node.object({"type", "pattern", "behavior", "invert"});
    if (node.at("behavior").text() != "Isolated") node.at("behavior").refuse("\"Isolated\"");
    node.at("invert").expect_false("inverted patterns are not supported");
    const auto pattern = node.at("pattern");
    pattern.object({"Regex"});
    const std::string regex = pattern.at("Regex").text();
    if (regex.empty() || regex.size() > max_pattern)
      pattern.at("Regex").refuse(fmt::format("1 to {} bytes", max_pattern));
    spec_.steps.push_back({CutStep::Kind::pattern, regex});
  }

  /// Post-processors only add special tokens, which encode() leaves out, or change offsets, which are not
  /// used.
  static void read_post_processor(const Node& node) {
    if (node.is_null()) return;
    if (!node.json().is_object()) node.refuse("an object");
    const std::string type = node.at("type").text();
    if (type == "Sequence") {
      for (const auto& step : node.at("processors").elements()) read_post_processor(step);
    } else if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
               type != "BertProcessing") {
      node.at("type").refuse("ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or Sequence");
    }
  }

  static void read_decoder(const Node& node) {
    if (node.is_null()) return;
    if (!node.json().is_object()) node.refuse("an object");
    if (node.at("type").text() != "ByteLevel") node.at("type").refuse("\"ByteLevel\"");
  }

  void read_added(const Node& list) {
    const auto& vocab = root_.json()["model"]["vocab"];
    // `tokenizers` itself numbers the added tokens that the vocabulary does not have, and ignores the file's
    // ids.
    auto next = static_cast<std::uint32_t>(vocab.size());
    std::unordered_map<std::string, std::uint32_t> seen;
    for (const auto& node : list.elements()) {
      node.object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.content = node.at("content").text();
      if (token.content.empty() || token.content.size() > max_added_token)
        node.at("content").refuse(fmt::format("1 to {} bytes", max_added_token));
      node.at("single_word").expect_false("tokens that match only whole words are not supported");
      token.lstrip = node.at("lstrip").boolean();
      token.rstrip = node.at("rstrip").boolean();
      token.normalized = node.at("normalized").boolean();
      static_cast<void>(node.at("special").boolean());  // special or not, all are found in text
      token.id = node.at("id").id();
      if (!seen.emplace(token.content, token.id).second) node.at("content").refuse("every token once");
      if (const auto found = vocab.find(token.content); found != vocab.end()) {
        if (found->get<std::uint32_t>() != token.id)
          node.at("id").refuse(fmt::format("{}, as in model.vocab", found->get<std::uint32_t>()));
        // Its content is literal, not written in the byte alphabet.
        spec_.tokens[token.id] = token.content;
      } else {
        if (token.id != next)
          node.at("id").refuse(
              fmt::format("{}: ids continue after the {} tokens of model.vocab", next, vocab.size()));
        ++next;
        put(node.at("id"), token.id, token.content);
      }
      if (token.normalized && spec_.nfc) token.content = to_nfc(token.content);
      spec_.added.push_back(std::move(token));
    }
  }

  void check_ids() const {
    if (spec_.tokens.size() < 2) root_.at("model").refuse("at least two tokens");
  }

  void find_separator() {
    std::string names;
    for (const auto* name : separators) {
      const auto found = std::find_if(spec_.added.begin(), spec_.added.end(),
                                      [&](const AddedToken& token) { return token.content == name; });
      if (found != spec_.added.end()) {
        spec_.separator = found->id;
        return;
      }
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    root_.at("added_tokens").refuse("a token that ends documents, one of " + names);
  }

  const Node& root_;
  BpeSpec spec_;
  std::vector<bool> taken_;
  std::uint64_t id_limit_ = 0;
  bool byte_level_ = false;
};

Json parse(std::string_view text, const std::string& name) {
  if (text.size() > max_tokenizer_file)
    config_error(fmt::format("{}: has {} bytes: expected at most {}", name, text.size(), max_tokenizer_file));
  const auto check_depth = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > max_json_depth)
      config_error(
          fmt::format("{}: nested deeper than {} levels: expected a tokenizer.json", name, max_json_depth));
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    config_error(name + ": not a tokenizer.json: " + error.what());
  }
}

}  // namespace

BpeSpec read_bpe_spec(std::string_view json, const std::string& name) {
  const auto document = parse(json, name);
  const Node root(name, document, "");
  if (!document.is_object())
    config_error(name + ": is " + shown(document) + ": expected an object, as in a tokenizer.json");
  return SpecReader(root).read();
}

Digest fingerprint_of(const BpeSpec& spec) {
  Hasher hasher;
  const auto text = [&](std::string_view bytes) { hasher.update(std::uint64_t{bytes.size()}).update(bytes); };
  hasher.update("tokenizer bpe").update(std::uint64_t{spec.tokens.size()});
  for (const auto& token : spec.tokens) text(token);
  hasher.update(std::uint64_t{spec.words.size()});
  for (const auto& word : spec.words) {
    hasher.update(std::uint64_t{word.id});
    text(word.bytes);
  }
  hasher.update(std::uint64_t{spec.merges.size()});
  for (const auto& merge : spec.merges)
    hasher.update(std::uint64_t{merge.left})
        .update(std::uint64_t{merge.right})
        .update(std::uint64_t{merge.result});
  hasher.update(std::uint64_t{spec.ignore_merges}).update(std::uint64_t{spec.nfc});
  hasher.update(std::uint64_t{spec.steps.size()});
  for (const auto& step : spec.steps) {
    hasher.update(static_cast<std::uint64_t>(step.kind));
    text(step.pattern);
  }
  hasher.update(std::uint64_t{spec.added.size()});
  for (const auto& token : spec.added) {
    hasher.update(std::uint64_t{token.id})
        .update(std::uint64_t{token.lstrip})
        .update(std::uint64_t{token.rstrip})
        .update(std::uint64_t{token.normalized});
    text(token.content);
  }
  return hasher.update(std::uint64_t{spec.separator}).finish();
}

}  // namespace isthmus::data
