// A safetensors file out of arbitrary bytes: opened as a checkpoint, every module read with the shape it claims to
// have. First byte odd: the length of the header is put in front, so that mutations do not have to guess it; the header
// ends at the first zero byte. First byte even: the bytes as they are.
#include <stdlib.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/temporary_folder.h"
#include "checkpoint/file_weights.h"
#include "checkpoint/module_tensors.h"

namespace {

std::string file_of(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size == 0 || bytes[0] % 2 == 0) return bytes.substr(size == 0 ? 0 : 1);
  bytes.erase(0, 1);
  const size_t zero = bytes.find('\0');
  const uint64_t header = zero == std::string::npos ? bytes.size() : zero;
  if (zero != std::string::npos) bytes.erase(zero, 1);
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[static_cast<size_t>(i)] = static_cast<char>(header >> (8 * i));
  return length + bytes;
}

double read_all(mettle::WeightSource& source, const mettle::ModuleTensors& m) {
  if (m.rows() <= 0 || m.cols() <= 0) return 0;
  const mettle::RawMatrix raw = source.matrix(m.module, m.rows(), m.cols());
  double sum = 0;
  for (int64_t r = 0; r < raw.rows; ++r)
    for (int64_t c = 0; c < raw.cols; ++c) sum += raw.at(r, c);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mettle::log::set_level(mettle::log::Level::kOff);
  static const mettle::TemporaryFolder folder;
  static const std::string path = folder / "model.safetensors";
  FILE* f = fopen(path.c_str(), "wb");
  if (f == nullptr) abort();
  const std::string bytes = file_of(data, size);
  if (fwrite(bytes.data(), 1, bytes.size(), f) != bytes.size()) abort();
  fclose(f);
  volatile double sink = 0;
  try {
    const mettle::Safetensors names = mettle::Safetensors::open_file(path);
    const auto source =
        mettle::file_weights(mettle::Safetensors::open_file(path), mettle::QuantRules(nlohmann::json::object()));
    for (const mettle::StoredTensor& t : names.tensors()) {
      for (size_t i = 0; i < t.bytes; ++i) sink = sink + t.data[i];
      try {
        if (const auto module = mettle::module_of_weight(t); !module.empty())
          if (const auto m = mettle::module_tensors(names, std::string(module))) sink = sink + read_all(*source, *m);
        if (t.shape.size() == 1) source->vector(t.name, {t.shape[0]});
      } catch (const mettle::Error&) {
      }
    }
    source->release();
    source->finish();
  } catch (const mettle::Error& error) {
    if (error.code == mettle::Code::kInternal) abort();
  }
  return 0;
}
