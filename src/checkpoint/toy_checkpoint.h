// For tests: safetensors files built tensor by tensor, and a look at the error something fails with.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "tensor/dtype.h"

namespace mettle {

class ToyCheckpoint {
 public:
  ToyCheckpoint& add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, std::string bytes) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
    return *this;
  }
  ToyCheckpoint& add_f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    return add(name, "F32", std::move(shape),
               std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }
  ToyCheckpoint& add_bf16(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float v : values) bits.push_back(float_to_bf16(v));
    return add(name, "BF16", std::move(shape),
               std::string(reinterpret_cast<const char*>(bits.data()), bits.size() * 2));
  }
  nlohmann::json& header() { return header_; }
  std::string& data() { return data_; }

  static std::string file(const std::string& header, const std::string& data) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[static_cast<size_t>(i)] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
    return length + header + data;
  }
  std::string file() const { return file(header_.dump(), data_); }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

// fn must throw Error with this code and all of these pieces in its message.
template <class Fn>
void expect_error(Code code, std::initializer_list<std::string> pieces, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << error.message;
    for (const std::string& piece : pieces)
      EXPECT_NE(error.message.find(piece), std::string::npos) << error.message << "\n  lacks: " << piece;
    return;
  }
  ADD_FAILURE() << "no error";
}

}  // namespace mettle
