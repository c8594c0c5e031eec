// Reads a tokenizer.json: model (vocabulary, merges), added tokens, normalizer, pre-tokenizer, decoder.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "base/file_map.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace mettle {
namespace {

constexpr size_t kFileLimit = 64 << 20;
constexpr size_t kAddedLimit = 256;  // bytes of an added token; a text is searched for it at every place

// Byte-level BPE writes each byte as one character: printable bytes as themselves, the rest from U+0100 on.
class ByteCharacters {
 public:
  ByteCharacters() {
    byte_.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b < 127) || (b >= 161 && b != 173);
      code_[b] = printable ? b : next++;
      byte_[code_[b]] = static_cast<int16_t>(b);
    }
  }
  uint32_t code(uint8_t byte) const { return code_[byte]; }

  // The bytes that the characters stand for, in `out`; false (and the text itself) when one stands for none.
  bool bytes(std::string_view characters, std::string& out) const {
    out.clear();
    for (size_t at = 0; at < characters.size();) {
      const unicode::Char c = unicode::decode(characters.data() + at);
      if (c.code >= byte_.size() || byte_[c.code] < 0) {
        out = characters;
        return false;
      }
      out.push_back(static_cast<char>(byte_[c.code]));
      at += c.bytes;
    }
    return true;
  }

 private:
  std::array<uint32_t, 256> code_;
  std::array<int16_t, 256 + 68> byte_;
};

[[noreturn]] void bad(std::string message) { fail(Code::kBadModel, std::move(message)); }

class Loader {
 public:
  Loader(TokenizerParts& out, JsonValue root) : out_(out), root_(std::move(root)), model_(root_.at("model")) {}

  void run() {
    check_model();
    if (const auto json = root_.find("normalizer")) out_.normalizer = Normalizer(*json);
    out_.pre_tokenizer.emplace(root_.at("pre_tokenizer"));
    check_decoder(root_.at("decoder"));
    if (const auto json = root_.find("post_processor")) check_post_processor(*json);
    read_vocabulary();
    read_merges();
    read_added_tokens();
    make_models();
  }

 private:
  void check_model() {
    if (const auto type = model_.find("type"); type && type->string() != "BPE") type->fail_kind("must be \"BPE\"");
    if (const auto dropout = model_.find("dropout")) {
      double value = 0;
      if (dropout->element().get(value) || value != 0) dropout->fail_kind("must be 0 or absent");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto affix = model_.find(key);
      if (affix && !affix->string().empty()) affix->fail_kind("must be empty (byte-level BPE)");
    }
  }

  // ByteLevel, alone or in a Sequence before Fuse: the bytes of all tokens in a row, read as UTF-8.
  static void check_decoder(const JsonValue& json) {
    const JsonValue type = json.at("type");
    if (type.string() == "ByteLevel") return;
    if (type.string() != "Sequence") type.fail_kind("must be ByteLevel, or a Sequence of ByteLevel and Fuse");
    const auto steps = json.at("decoders").items();
    if (steps.empty()) json.fail_kind("must have a ByteLevel decoder");
    for (size_t i = 0; i < steps.size(); ++i) {
      const JsonValue step = steps[i].at("type");
      if (step.string() != (i == 0 ? "ByteLevel" : "Fuse")) step.fail_kind("must be ByteLevel first, then Fuse");
    }
  }

  // Not applied (see tokenizer.h), but one that is not known may stand for a file that is not understood.
  static void check_post_processor(const JsonValue& json) {
    const JsonValue type = json.at("type");
    constexpr std::string_view kKnown[] = {"ByteLevel", "TemplateProcessing", "Sequence", "RobertaProcessing"};
    if (std::find(std::begin(kKnown), std::end(kKnown), type.string()) == std::end(kKnown)) {
      type.fail_kind(fmt::format("must be one of {}", fmt::join(kKnown, ", ")));
    }
  }

  void read_vocabulary() {
    const JsonValue json = model_.at("vocab");
    simdjson::dom::object vocabulary;
    if (json.element().get(vocabulary)) json.fail_kind("must be an object");
    // size() saturates at 2^24 - 1; it is a hint only.
    out_.tokens.reserve(std::min<size_t>(vocabulary.size(), TokenTable::kMaxId) + 256, vocabulary.size() * 8);
    std::string bytes;
    for (const auto [key, value] : vocabulary) {
      int64_t id = 0;
      if (value.get(id) || id < 0 || id > TokenTable::kMaxId) {
        bad(fmt::format("{}: ids must be integers from 0 to {}, got {} for \"{}\"", json.place(), TokenTable::kMaxId,
                        simdjson::minify(value), key));
      }
      add_token(static_cast<int32_t>(id), key, json.place(), bytes);
    }
    if (out_.tokens.size() == 0) json.fail_kind("must have at least one token");
  }

  void add_token(int32_t id, std::string_view text, const std::string& place, std::string& bytes) {
    const bool findable = characters_.bytes(text, bytes);
    if (out_.tokens.has(id)) {
      bad(fmt::format("{}: ids must differ, got {} for \"{}\" and for \"{}\"", place, id, text, out_.tokens.bytes(id)));
    }
    if (!out_.tokens.add(id, bytes, findable) || (!findable && !other_ids_.emplace(text, id).second)) {
      bad(fmt::format("{}: tokens must differ, got \"{}\" twice", place, text));
    }
  }

  // -1: none. A token that has a character which stands for no byte is found by its text.
  int32_t vocabulary_id(std::string_view text, std::string& bytes) const {
    if (characters_.bytes(text, bytes)) return out_.tokens.find(bytes);
    const auto found = other_ids_.find(std::string(text));
    return found == other_ids_.end() ? -1 : found->second;
  }

  void read_merges() {
    const JsonValue json = model_.at("merges");
    simdjson::dom::array array;
    if (json.element().get(array)) json.fail_kind("must be an array");
    merges_.reserve(array.size());
    std::string left, right;
    size_t index = 0;
    for (const simdjson::dom::element item : array) {
      const auto [a, b] = merge_sides(item, json, index);
      if (!a.starts_with("#version")) add_merge(a, b, left, right, json, index);
      ++index;
    }
    if (merges_.empty()) json.fail_kind("must have at least one merge");
  }

  static std::pair<std::string_view, std::string_view> merge_sides(const simdjson::dom::element& item,
                                                                   const JsonValue& json, size_t index) {
    std::string_view text, sides[2];
    if (!item.get(text)) {
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && (text.starts_with("#version") || text.find(' ', space + 1) == text.npos)) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    } else if (simdjson::dom::array pair; !item.get(pair) && pair.size() == 2) {
      if (!pair.at(0).get(sides[0]) && !pair.at(1).get(sides[1])) return {sides[0], sides[1]};
    }
    JsonValue(item, fmt::format("{}[{}]", json.place(), index)).fail_kind("must be \"a b\" or [\"a\", \"b\"]");
  }

  void add_merge(std::string_view a, std::string_view b, std::string& left, std::string& right, const JsonValue& json,
                 size_t index) {
    const int32_t left_id = vocabulary_id(a, left), right_id = vocabulary_id(b, right);
    const auto missing = [&](std::string_view token) {
      bad(fmt::format("{}[{}]: must refer to tokens of the vocabulary, got \"{}\"", json.place(), index, token));
    };
    if (left_id < 0) missing(a);
    if (right_id < 0) missing(b);
    left += right;
    const int32_t result = out_.tokens.find(left);
    if (result < 0) {
      const std::string joined = std::string(a) + std::string(b);
      if (!other_ids_.contains(joined)) missing(joined);
      return;  // bytes never become its parts, so this merge is never applied
    }
    merges_.push_back({left_id, right_id, result});
  }

  void read_added_tokens() {
    out_.special.assign(out_.tokens.size(), 0);
    const auto json = root_.find("added_tokens");
    if (!json) return;
    std::vector<AddedToken> raw, normalized;
    std::string bytes;
    for (const JsonValue& item : json->items()) {
      AddedToken token = added_token(item, bytes);
      if (static_cast<size_t>(token.id) >= out_.special.size()) out_.special.resize(out_.tokens.size());
      out_.special[token.id] = token.special;
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    out_.added_raw = AddedMatcher(std::move(raw));
    out_.added_normalized = AddedMatcher(std::move(normalized));
  }

  AddedToken added_token(const JsonValue& item, std::string& bytes) {
    const int64_t id = item.at("id").integer();
    if (id < 0 || id > TokenTable::kMaxId) {
      item.at("id").fail_kind(fmt::format("must be from 0 to {}", TokenTable::kMaxId));
    }
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = item.at("content").string();
    if (token.content.size() > kAddedLimit) {
      bad(fmt::format("{}.content: may have {} bytes, got {}", item.place(), kAddedLimit, token.content.size()));
    }
    token.special = item.boolean("special", false);
    token.normalized = item.boolean("normalized", !token.special);
    token.single_word = item.boolean("single_word", false);
    token.lstrip = item.boolean("lstrip", false);
    token.rstrip = item.boolean("rstrip", false);
    const int32_t known = vocabulary_id(token.content, bytes);
    if (known >= 0 && known != token.id) {
      bad(fmt::format("{}: id must be that of the vocabulary for \"{}\", {}, got {}", item.place(), token.content,
                      known, token.id));
    }
    if (!out_.added_ids.emplace(token.content, token.id).second) {
      bad(fmt::format("{}: added tokens must differ, got \"{}\" twice", item.place(), token.content));
    }
    if (token.normalized) token.content = out_.normalizer.apply(token.content);
    if (known < 0) {
      if (out_.tokens.has(token.id)) {
        bad(fmt::format("{}: ids must differ, got {} for \"{}\" and for \"{}\"", item.place(), token.id, token.content,
                        out_.tokens.bytes(token.id)));
      }
      characters_.bytes(token.content, bytes);
      out_.tokens.add(token.id, bytes, /*findable=*/false);
    }
    return token;
  }

  void make_models() {
    Bpe::Options options;
    options.ignore_merges = model_.boolean("ignore_merges", false);
    options.fuse_unknown = model_.boolean("fuse_unk", false);
    std::string bytes;
    if (const auto unknown = model_.find("unk_token"); unknown && !unknown->string().empty()) {
      options.unknown = vocabulary_id(unknown->string(), bytes);
      if (options.unknown < 0) unknown->fail_kind("must be a token of the vocabulary");
    }
    const bool fallback = model_.boolean("byte_fallback", false);
    for (uint32_t b = 0; b < 256; ++b) options.start[b] = start_of(static_cast<uint8_t>(b), fallback);
    out_.model.emplace(out_.tokens, merges_, options);

    // Untrusted text must not become an added token, not by merges either.
    std::vector<uint8_t> allowed(out_.tokens.size(), 1);
    bool reachable = false;
    for (const auto& [content, id] : out_.added_ids) {
      allowed[id] = 0;
      if (options.ignore_merges && out_.tokens.find(out_.tokens.bytes(id)) == id) reachable = true;
    }
    for (const Bpe::Merge& m : merges_) reachable = reachable || !allowed[m.result];
    if (reachable) out_.model_text.emplace(out_.tokens, merges_, options, std::move(allowed));
  }

  Bpe::Options::Start start_of(uint8_t byte, bool fallback) const {
    Bpe::Options::Start start;
    const char as_char = static_cast<char>(byte);
    start.ids[0] = out_.tokens.find({&as_char, 1});
    if (start.ids[0] >= 0) {
      start.count = 1;
    } else if (fallback) {
      std::string character;
      unicode::append_utf8(character, characters_.code(byte));
      for (const char c : character) {
        start.ids[start.count] = out_.tokens.find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c)));
        if (start.ids[start.count] < 0) return {};
        ++start.count;
      }
      start.fallback = true;
    }
    return start;
  }

  TokenizerParts& out_;
  JsonValue root_, model_;
  ByteCharacters characters_;
  std::unordered_map<std::string, int32_t> other_ids_;  // tokens that bytes cannot spell
  std::vector<Bpe::Merge> merges_;
};

}  // namespace

TokenizerParts::TokenizerParts(std::string_view json, const std::string& origin) {
  if (json.size() > kFileLimit) bad(fmt::format("{}: may have {} bytes, got {}", origin, kFileLimit, json.size()));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    bad(fmt::format("{}: must be JSON, got {} bytes: {}", origin, json.size(), simdjson::error_message(error)));
  }
  Loader(*this, JsonValue(root, origin)).run();
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& origin) {
  return Tokenizer(std::make_unique<Impl>(json, origin));
}

Tokenizer Tokenizer::from_file(const std::string& path) { return from_json(read_file(path, kFileLimit), path); }

}  // namespace mettle
