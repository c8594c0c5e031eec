// Faults that any op may have: memory, rows, repeated runs, the process. Each computes right and then spoils one thing.
#pragma once
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "healthy.h"
#include "tensor/dtype.h"

namespace mettle::mutants {

template <class Op>
struct Common {
  using A = typename Op::Args;

  // ---- memory
  static void last_row_skipped(const Tactic& t, const A& a, Stream& s) {
    const Grid g = out_of(a);
    const std::vector<float> before(g.row(g.rows - 1), g.row(g.rows));
    right<Op>(t, a, s);
    std::copy(before.begin(), before.end(), g.row(g.rows - 1));
  }
  static void last_column_skipped(const Tactic& t, const A& a, Stream& s) {
    const Grid g = out_of(a);
    std::vector<float> before;
    for (int64_t r = 0; r < g.rows; ++r) before.push_back(g.at(r, g.cols - 1));
    right<Op>(t, a, s);
    for (int64_t r = 0; r < g.rows; ++r) g.at(r, g.cols - 1) = before[static_cast<size_t>(r)];
  }
  static void tail_of_last_row_skipped(const Tactic& t, const A& a, Stream& s) {
    const Grid g = out_of(a);
    float* tail = g.row(g.rows) - 3;
    const std::vector<float> before(tail, tail + 3);
    right<Op>(t, a, s);
    std::copy(before.begin(), before.end(), tail);
  }
  // The output of the call before, where as many rows were asked for.
  static void stale_output(const Tactic& t, const A& a, Stream& s) {
    static std::vector<float> kept;
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    std::vector<float> now(g.data, g.data + g.size());
    if (kept.size() == now.size()) std::copy(kept.begin(), kept.end(), g.data);
    kept = std::move(now);
  }
  static void writes_one_past_the_end(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    out_of(a).data[out_of(a).size()] = 1;
  }
  static void writes_one_before_the_start(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    out_of(a).data[-1] = 1;
  }
  static void writes_behind_its_workspace(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    a.ws.data[a.ws.bytes] = 3;
  }
  static void uninitialised_scratch(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    out_of(a).at(0, 1) += 1e-3f * *reinterpret_cast<const float*>(a.ws.data);
  }
  // As if the loop over the last row's inputs ran one too far.
  static void reads_beyond_the_end(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const int64_t end = a.x.shape.elements();
    const float beyond =
        a.x.dtype == DType::kF32 ? a.x.template as<float>()[end] : bf16_to_float(a.x.template as<uint16_t>()[end]);
    out_of(a).at(out_of(a).rows - 1, 0) += 0.01f * beyond;
  }
  static void adds_to_what_is_there(const Tactic& t, const A& a, Stream& s) {
    const Grid g = out_of(a);
    const std::vector<float> before(g.data, g.data + g.size());
    right<Op>(t, a, s);
    for (int64_t i = 0; i < g.size(); ++i) g.data[i] += before[static_cast<size_t>(i)];
  }
  static void right_only_when_aligned(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    if (reinterpret_cast<uintptr_t>(out_of(a).data) % 64 != 0) out_of(a).at(0, 2) *= 1.01f;
  }

  // ---- rows
  static void last_row_is_its_neighbour(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    if (g.rows > 1) std::copy(g.row(g.rows - 2), g.row(g.rows - 1), g.row(g.rows - 1));
  }
  static void neighbour_leaks(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    for (int64_t r = g.rows - 1; r > 0; --r)
      for (int64_t c = 0; c < g.cols; ++c) g.at(r, c) += g.at(r - 1, c) * 0x1p-40f;
  }
  static void odd_rows_wrong(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    for (int64_t r = 1; r < g.rows; r += 2) g.at(r, 3) *= 1.02f;
  }
  static void wrong_from_64_rows_on(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    if (out_of(a).rows >= 64) out_of(a).at(out_of(a).rows - 2, 1) *= 1.02f;
  }
  static void right_for_multiples_of_8_rows(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    if (out_of(a).rows % 8 != 0) out_of(a).at(out_of(a).rows - 1, 1) *= 1.02f;
  }

  // ---- values
  static void column_one_percent(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    for (int64_t r = 0; r < g.rows; ++r) g.at(r, 40) *= 1.01f;
  }
  static void rounded_to_bf16(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    for (int64_t i = 0; i < g.size(); ++i) g.data[i] = bf16_to_float(float_to_bf16(g.data[i]));
  }
  static void tiny_flushed(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    const Grid g = out_of(a);
    for (int64_t i = 0; i < g.size(); ++i)
      if (std::fabs(g.data[i]) < 0x1p-80f) g.data[i] = 0;
  }
  static void all_zero(const Tactic&, const A& a, Stream&) { std::fill_n(out_of(a).data, out_of(a).size(), 0.f); }
  static void last_element_nan(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    out_of(a).data[out_of(a).size() - 1] = NAN;
  }

  // ---- repeated runs
  static void last_bit_now_and_then(const Tactic& t, const A& a, Stream& s) {
    static int calls = 0;
    right<Op>(t, a, s);
    if (++calls % 2 == 0) out_of(a).at(0, 0) = std::nextafter(out_of(a).at(0, 0), 1e30f);
  }
  static void right_at_first_calls(const Tactic& t, const A& a, Stream& s) {
    static int calls = 0;
    right<Op>(t, a, s);
    if (++calls > 3 && std::isfinite(out_of(a).at(0, 0))) out_of(a).at(0, 3) *= 1.5f;
  }
  // Members count finished items without an atomic; what is lost is missing in the output.
  static void data_race(const Tactic& t, const A& a, Stream& s) {
    right<Op>(t, a, s);
    volatile uint32_t finished = 0;
    std::atomic<int> here{0};
    const int members = s.team->members();
    constexpr uint32_t kItems = 30'000;
    s.team->run([&](int) {
      for (++here; here.load() < members;) {
      }
      for (uint32_t i = 0; i < kItems; ++i) {
        const uint32_t before = finished;
        if (i % 1000 == 500) std::this_thread::yield();  // so that members also meet on one core
        finished = before + 1;
      }
    });
    out_of(a).at(0, 5) *= static_cast<float>(finished) / static_cast<float>(kItems * static_cast<uint32_t>(members));
  }

  // ---- the process
  static void aborts(const Tactic&, const A&, Stream&) { std::abort(); }
  static void segfaults(const Tactic&, const A&, Stream&) { raise(SIGSEGV); }
  static void loops_forever(const Tactic&, const A&, Stream&) {
    for (volatile int forever = 1; forever == 1;) {
    }
  }
  static void exits_with_success(const Tactic&, const A&, Stream&) { std::_Exit(0); }
  static void throws(const Tactic&, const A&, Stream&) { throw std::runtime_error("planted"); }
  static void throws_a_number(const Tactic&, const A&, Stream&) { throw 17; }
  static void allocates_without_end(const Tactic&, const A&, Stream&) {
    std::vector<std::unique_ptr<char[]>> all;
    for (;;) all.push_back(std::make_unique_for_overwrite<char[]>(size_t{1} << 32));
  }
  static void reports_for_itself(const Tactic& t, const A& a, Stream& s) {
    std::printf("{\"done\": 0, \"verdict\": \"OK\"}\n\xff\xfe garbage \n{\"end\": true}\n");
    std::fflush(stdout);
    column_one_percent(t, a, s);
  }
  // Half an event on every descriptor that could be the parent's pipe, then a clean end.
  static void partial_report(const Tactic&, const A&, Stream&) {
    constexpr char kHalf[] = "{\"done\": 0, \"verdict\": \"OK\", \"max_err";
    for (int fd = 1; fd < 16; ++fd) {
      [[maybe_unused]] const ssize_t n = write(fd, kHalf, sizeof kHalf - 1);
    }
    std::_Exit(0);
  }
};

}  // namespace mettle::mutants
