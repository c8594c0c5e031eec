#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace mettle {
namespace {

using nlohmann::json;

struct StoredType {
  std::string_view name;
  int bits;     // of one element
  DType dtype;  // what it reads as; kU8 for types that only have a size here (StoredTensor::readable is false)
  bool readable;
};

constexpr StoredType kTypes[] = {
    {"F32", 32, DType::kF32, true},       {"BF16", 16, DType::kBF16, true},   {"F16", 16, DType::kF16, true},
    {"F64", 64, DType::kF64, true},       {"F8_E4M3", 8, DType::kE4M3, true}, {"U8", 8, DType::kU8, true},
    {"I8", 8, DType::kI8, true},          {"I32", 32, DType::kI32, true},     {"I64", 64, DType::kI64, true},
    {"BOOL", 8, DType::kBool, true},      {"F8_E8M0", 8, DType::kU8, false},  {"F8_E5M2", 8, DType::kU8, false},
    {"F4", 4, DType::kU8, false},         {"F6_E2M3", 6, DType::kU8, false},  {"F6_E3M2", 6, DType::kU8, false},
    {"I16", 16, DType::kU8, false},       {"U16", 16, DType::kU8, false},     {"U32", 32, DType::kU8, false},
    {"U64", 64, DType::kU8, false},       {"C64", 64, DType::kU8, false},     {"F8_E4M3FNUZ", 8, DType::kU8, false},
    {"F8_E5M2FNUZ", 8, DType::kU8, false}};

constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 1024;

const StoredType* type_named(std::string_view name) {
  for (const StoredType& t : kTypes)
    if (t.name == name) return &t;
  return nullptr;
}

// A name or value out of a hostile file, short enough for a message.
std::string shown(std::string_view text) {
  return text.size() <= 200 ? std::string(text) : fmt::format("{}... ({} bytes)", text.substr(0, 200), text.size());
}

struct Entry {
  StoredTensor tensor;
  std::array<uint64_t, 2> offsets{};
};

// Walks { "name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {"k": "v"} }.
class Walker : public json::json_sax_t {
 public:
  explicit Walker(const std::string& path) : path_(path) {}
  std::vector<Entry> entries;

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_float(double, const std::string& text) override { return scalar(text); }
  bool number_integer(int64_t value) override { return scalar(std::to_string(value)); }
  bool binary(json::binary_t&) override { return scalar("binary"); }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::kShape) {
      if (current_.tensor.shape.size() == kMaxRank) bad("shape", fmt::format("must have at most {} sizes", kMaxRank));
      if (value > uint64_t{1} << 48) bad("shape", fmt::format("sizes must be at most 2^48, got {}", value));
      current_.tensor.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_ == 2) bad("data_offsets", "must be [begin, end], got more than two numbers");
      current_.offsets[offsets_++] = value;
      return true;
    }
    return scalar(std::to_string(value));
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kTensor && field_ == "dtype") {
      const StoredType* type = type_named(value);
      if (type == nullptr) {
        std::vector<std::string_view> known;
        for (const StoredType& t : kTypes) known.push_back(t.name);
        bad("dtype", fmt::format("must be one of {}, got \"{}\"", fmt::join(known, " "), shown(value)));
      }
      current_.tensor.dtype = type->dtype;
      current_.tensor.stored_as = type->name;
      current_.tensor.readable = type->readable;
      return true;
    }
    return scalar(fmt::format("\"{}\"", shown(value)));
  }

  bool start_object(size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTop) return scalar("an object");
    if (name_ == "__metadata__") {
      state_ = State::kMetadata;
      return true;
    }
    state_ = State::kTensor;
    current_ = {};
    current_.tensor.name = name_;
    seen_ = {};
    offsets_ = 0;
    return true;
  }

  bool key(std::string& key) override {
    if (state_ == State::kTop) {
      if (key.empty() || key.size() > kMaxNameBytes)
        fail(Code::kBadModel,
             fmt::format("{}: a tensor name must have 1 to {} bytes, got \"{}\"", path_, kMaxNameBytes, shown(key)));
      name_ = key;
    } else if (state_ == State::kTensor) {
      field_ = key;
      constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
      const size_t i =
          static_cast<size_t>(std::find(std::begin(kFields), std::end(kFields), key) - std::begin(kFields));
      if (i == 3) bad(shown(key), "is not a field of a tensor (dtype, shape, data_offsets)");
      if (seen_[i]) bad(shown(key), "is given twice");
      seen_[i] = true;
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (!seen_[0] || !seen_[1] || !seen_[2] || current_.tensor.stored_as.empty())
        bad(!seen_[0] ? "dtype" : !seen_[1] ? "shape" : "data_offsets", "is missing");
      entries.push_back(std::move(current_));
      state_ = State::kTop;
    } else if (state_ == State::kMetadata) {
      state_ = State::kTop;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kTensor && field_ == "shape")
      state_ = State::kShape;
    else if (state_ == State::kTensor && field_ == "data_offsets")
      state_ = State::kOffsets;
    else
      return scalar("a list");
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_ != 2)
      bad("data_offsets", fmt::format("must be [begin, end], got {} numbers", offsets_));
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    fail(Code::kBadModel,
         fmt::format("{}: header is not valid JSON at byte {}: {}", path_, position, shown(error.what())));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] void bad(std::string_view field, std::string_view what) const {
    fail(Code::kBadModel, fmt::format("{}: {}: {}: {}", path_, shown(name_), field, what));
  }
  // A value where none of its kind may stand.
  bool scalar(std::string_view what) const {
    switch (state_) {
      case State::kStart:
        fail(Code::kBadModel, fmt::format("{}: header must be a JSON object, got {}", path_, what));
      case State::kTop:
        fail(Code::kBadModel, fmt::format("{}: {}: must be an object, got {}", path_, shown(name_), what));
      case State::kMetadata:
        bad("value", fmt::format("must be a string, got {}", what));
      case State::kTensor:
        bad(field_, fmt::format("has the wrong type, got {}", what));
      case State::kShape:
        bad("shape", fmt::format("sizes must be integers >= 0, got {}", what));
      case State::kOffsets:
        bad("data_offsets", fmt::format("must be integers >= 0, got {}", what));
    }
    return false;
  }

  const std::string& path_;
  State state_ = State::kStart;
  std::string name_, field_;
  Entry current_;
  std::array<bool, 3> seen_{};
  size_t offsets_ = 0;
};

// Bytes the shape takes; nothing when it is absurd or no whole number of bytes. The product leaves zeros out, so that
// no product of some of the sizes overflows later.
std::optional<uint64_t> bytes_of(const StoredTensor& tensor) {
  constexpr uint64_t kMostBits = uint64_t{1} << 60;
  uint64_t bits = static_cast<uint64_t>(type_named(tensor.stored_as)->bits);
  bool empty = false;
  for (const int64_t size : tensor.shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(bits, std::max<uint64_t>(static_cast<uint64_t>(size), 1), &bits) || bits > kMostBits)
      return std::nullopt;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace

std::vector<StoredTensor> read_safetensors_header(std::span<const uint8_t> file, const std::string& path) {
  if (file.size() < 8)
    fail(Code::kBadModel, fmt::format("{}: a safetensors file has at least 8 bytes, this one {}", path, file.size()));
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{file[static_cast<size_t>(i)]} << (8 * i);
  if (length > kMaxHeaderBytes)
    fail(Code::kBadModel, fmt::format("{}: header must be at most {} bytes, is {}", path, kMaxHeaderBytes, length));
  if (length > file.size() - 8)
    fail(Code::kBadModel,
         fmt::format("{}: header of {} bytes is longer than the file ({} bytes)", path, length, file.size()));

  const auto header = file.subspan(8, length);
  const auto data = file.subspan(8 + length);
  Walker walker(path);
  json::sax_parse(header.begin(), header.end(), &walker);

  std::vector<Entry>& entries = walker.entries;
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& e : entries) {
    const StoredTensor& t = e.tensor;
    const auto [begin, end] = e.offsets;
    if (!names.insert(t.name).second) fail(Code::kBadModel, fmt::format("{}: {}: is there twice", path, shown(t.name)));
    if (begin > end || end > data.size())
      fail(Code::kBadModel, fmt::format("{}: {}: data_offsets [{}, {}] must lie within the {} data bytes of the file",
                                        path, shown(t.name), begin, end, data.size()));
    const std::optional<uint64_t> need = bytes_of(t);
    if (!need || *need != end - begin)
      fail(Code::kBadModel, fmt::format("{}: {}: {} [{}] needs {} bytes, data_offsets [{}, {}] give {}", path,
                                        shown(t.name), t.stored_as, fmt::join(t.shape, ", "),
                                        need ? std::to_string(*need) : "no whole number of", begin, end, end - begin));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });

  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  uint64_t at = 0;
  for (Entry& e : entries) {
    const auto [begin, end] = e.offsets;
    if (begin < at)
      fail(Code::kBadModel, fmt::format("{}: {}: data_offsets [{}, {}] overlap {}, which ends at {}", path,
                                        shown(e.tensor.name), begin, end, shown(tensors.back().name), at));
    if (begin > at)
      fail(Code::kBadModel, fmt::format("{}: {}: data_offsets [{}, {}] leave a gap after byte {}", path,
                                        shown(e.tensor.name), begin, end, at));
    e.tensor.data = data.data() + begin;
    e.tensor.bytes = end - begin;
    at = end;
    tensors.push_back(std::move(e.tensor));
  }
  if (at != data.size())
    fail(Code::kBadModel, fmt::format("{}: {} data bytes, but the tensors end at {}", path, data.size(), at));
  return tensors;
}

}  // namespace mettle
