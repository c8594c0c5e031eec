// A checkpoint of random weights in the layout of a real one: the tensors that the model of a config asks for, under
// their names, in safetensors shards with an index, NVFP4 and FP8 as ModelOpt writes them.
//   write_checkpoint CONFIG_FOLDER OUT_FOLDER [--seed N]
// The weights are those of --load-format dummy with that seed (norms as F32), so that a run of the files says what a
// run without them does. Prints one line of JSON: tensors, bytes, seconds.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "models/registry.h"
#include "models/weight_listener.h"

namespace mettle {
namespace {

constexpr int64_t kShardBytes = int64_t{5} << 30;
constexpr int64_t kRoundBytes = int64_t{512} << 20;  // of weights in memory at a time
constexpr int64_t kLargeMatrix = int64_t{64} << 20;  // made by all threads together

struct Wanted {
  Shape shape;  // of a vector; of a matrix rows and columns
  bool vector = false;
};

// Listens to a model's plan; what the config implies is there.
class Listener : public WeightSource, public WeightListener {
 public:
  explicit Listener(const nlohmann::json& config) : config_(dummy_weights(config, 1)) {}
  bool has(std::string_view module) const override { return config_->has(module); }
  WeightFormat format_of(const std::string& module) const override { return config_->format_of(module); }
  bool is_dummy() const override { return true; }
  void ignore(const std::string&, const std::string&) override {}
  void release() override {}
  void finish() override {}
  void wants_matrix(const std::string& module, int64_t rows, int64_t cols) override {
    wanted[module] = {{rows, cols}, false};
  }
  void wants_vector(const std::string& name, const Shape& shape) override { wanted[name] = {shape, true}; }
  RawMatrix matrix(const std::string& module, int64_t, int64_t, ThreadTeam*) override {
    fail(Code::kInternal, module + ": a plan reads no data");
  }
  std::vector<float> vector(const std::string& name, const Shape&) override {
    fail(Code::kInternal, name + ": a plan reads no data");
  }
  std::map<std::string, Wanted> wanted;

 private:
  std::unique_ptr<WeightSource> config_;
};

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0, at = 0;  // at: in its shard
};

struct Item {  // a module or a vector with its tensors: weight, scales, global scale
  std::string name;
  Wanted wanted;
  std::vector<Tensor> tensors;
  size_t shard = 0;
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Tensor& t : tensors) sum += t.bytes;
    return sum;
  }
};

Tensor tensor(std::string name, const char* dtype, std::vector<int64_t> shape, int64_t size) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return {std::move(name), dtype, std::move(shape), count * size, 0};
}

std::vector<Tensor> tensors_of(const std::string& name, const Wanted& w, const WeightSource& source) {
  if (w.vector)
    return {tensor(name, "F32", {w.shape.size.begin(), w.shape.size.begin() + w.shape.rank}, sizeof(float))};
  const int64_t rows = w.shape[0], cols = w.shape[1];
  if (name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj"))
    fail(Code::kUnsupported, name + ": experts in one tensor are not written here");
  switch (source.format_of(name)) {
    case WeightFormat::kNvfp4:
      return {tensor(name + ".weight", "U8", {rows, cols / 2}, 1),
              tensor(name + ".weight_scale", "F8_E4M3", {rows, cols / 16}, 1),
              tensor(name + ".weight_scale_2", "F32", {}, sizeof(float))};
    case WeightFormat::kFp8:
      return {tensor(name + ".weight", "F8_E4M3", {rows, cols}, 1),
              tensor(name + ".weight_scale", "F32", {}, sizeof(float))};
    case WeightFormat::kFp8Block:
      return {tensor(name + ".weight", "F8_E4M3", {rows, cols}, 1),
              tensor(name + ".weight_scale_inv", "F32", {(rows + 127) / 128, (cols + 127) / 128}, sizeof(float))};
    case WeightFormat::kBf16:
      return {tensor(name + ".weight", "BF16", {rows, cols}, 2)};
    case WeightFormat::kF32:
      return {tensor(name + ".weight", "F32", {rows, cols}, sizeof(float))};
  }
  fail(Code::kInternal, name + ": of no format");
}

class Shards {
 public:
  // Writes headers and sizes.
  Shards(const std::string& folder, std::vector<Item>& items) {
    std::vector<nlohmann::json> headers;
    std::vector<int64_t> used;
    for (Item& item : items) {
      if (headers.empty() || used.back() + item.bytes() > kShardBytes) headers.emplace_back(), used.push_back(0);
      item.shard = headers.size() - 1;
      for (Tensor& t : item.tensors) {
        t.at = used.back();
        used.back() += t.bytes;
        headers.back()[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {t.at, used.back()}}};
      }
    }
    nlohmann::json map = nlohmann::json::object();
    int64_t total = 0;
    for (size_t s = 0; s < headers.size(); ++s) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, headers.size());
      std::string header = headers[s].dump();
      header.resize((header.size() + 7) / 8 * 8, ' ');
      for (const auto& entry : headers[s].items()) map[entry.key()] = name;
      files_.push_back(::open((folder + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      if (files_.back() < 0) fail(Code::kDevice, fmt::format("{}/{}: {}", folder, name, std::strerror(errno)));
      const uint64_t length = header.size();
      data_at_.push_back(static_cast<int64_t>(8 + header.size()));
      write_at(s, -data_at_[s], &length, 8);
      write_at(s, 8 - data_at_[s], header.data(), header.size());
      total += used[s];
    }
    write_file_atomically(folder + "/model.safetensors.index.json",
                          nlohmann::json({{"metadata", {{"total_size", total}}}, {"weight_map", map}}).dump(1));
  }
  ~Shards() {
    for (const int file : files_)
      if (file >= 0) ::close(file);
  }
  Shards(const Shards&) = delete;

  // at: from where the data begins.
  void write_at(size_t shard, int64_t at, const void* from, size_t bytes) const {
    const auto* p = static_cast<const char*>(from);
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::pwrite(files_[shard], p + done, bytes - done,
                                 static_cast<off_t>(data_at_[shard] + at + static_cast<int64_t>(done)));
      if (n <= 0)
        fail(Code::kDevice, fmt::format("shard {}: write of {} bytes: {}", shard + 1, bytes, std::strerror(errno)));
      done += static_cast<size_t>(n);
    }
  }

 private:
  std::vector<int> files_;
  std::vector<int64_t> data_at_;
};

void write_item(const Item& item, WeightSource& source, const Shards& shards, ThreadTeam* team) {
  const auto put = [&](const Tensor& t, const void* from) {
    constexpr int64_t kPiece = int64_t{8} << 20;
    share_out(team, (t.bytes + kPiece - 1) / kPiece, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kPiece, last = std::min(end * kPiece, t.bytes);
      shards.write_at(item.shard, t.at + first, static_cast<const char*>(from) + first,
                      static_cast<size_t>(last - first));
    });
  };
  if (item.wanted.vector) {
    const std::vector<float> values = source.vector(item.name, item.wanted.shape);
    return put(item.tensors[0], values.data());
  }
  const RawMatrix raw = source.matrix(item.name, item.wanted.shape[0], item.wanted.shape[1], team);
  put(item.tensors[0], raw.data);
  if (raw.format == WeightFormat::kFp8) put(item.tensors[1], &raw.global_scale);
  if (raw.format == WeightFormat::kFp8Block || raw.format == WeightFormat::kNvfp4) put(item.tensors[1], raw.scales);
  if (raw.format == WeightFormat::kNvfp4) put(item.tensors[2], &raw.global_scale);
}

int run(int argc, char** argv) {
  std::vector<std::string> folders;
  uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--seed" && i + 1 < argc)
      seed = std::stoull(argv[++i]);
    else
      folders.emplace_back(argv[i]);
  }
  if (folders.size() != 2) fail(Code::kInvalidRequest, "write_checkpoint CONFIG_FOLDER OUT_FOLDER [--seed N]");
  const auto begin = std::chrono::steady_clock::now();
  const ModelFolder model = open_model_folder(folders[0]);
  Listener listener(model.config);
  make_model(model.config, listener, {});
  const std::unique_ptr<WeightSource> source = dummy_weights(model.config, seed);
  std::vector<Item> items;
  for (const auto& [name, wanted] : listener.wanted)
    items.push_back({.name = name, .wanted = wanted, .tensors = tensors_of(name, wanted, *source)});

  const std::string& out = folders[1];
  std::filesystem::create_directories(out);
  write_file_atomically(out + "/config.json", model.config.dump(1));
  ThreadTeam team(usable_cores());
  const Shards shards(out, items);
  int64_t bytes = 0, tensors = 0;
  for (size_t first = 0; first < items.size();) {
    size_t last = first;
    for (int64_t round = 0; last < items.size() && (last == first || round < kRoundBytes); ++last)
      round += items[last].bytes();
    std::vector<const Item*> small;
    for (size_t i = first; i < last; ++i) {
      bytes += items[i].bytes();
      tensors += std::ssize(items[i].tensors);
      if (items[i].bytes() < kLargeMatrix)
        small.push_back(&items[i]);
      else
        write_item(items[i], *source, shards, &team);
    }
    share_out(&team, std::ssize(small), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) write_item(*small[static_cast<size_t>(i)], *source, shards, nullptr);
    });
    source->release();
    first = last;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s\n", nlohmann::json({{"tensors", tensors}, {"bytes", bytes}, {"seconds", seconds}}).dump().c_str());
  return 0;
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  try {
    return mettle::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_checkpoint: %s\n", e.what());
    return 1;
  }
}
