// The program `mettle_planted`: mettle itself with a planted backend. The linker takes the lists of backends from here
// (--wrap), so the program that is shipped knows nothing of this.
//   PLANTED=moe/gelu  that faulty backend stands first in moe's list
//   PLANTED=moe/nan   moe has its reference and "nan" alone: a healthy backend with two switches, so that it is proved,
//                     serves, and then errs
//     PLANTED_SWITCH=FILE  once the file is there it is removed; the Nth call from then on, N being what it holds,
//                          leaves a NaN in its last row; "N lost": it fails as a call on a lost device does
//   PLANTED=linear/lies  in front of linear's list stands a backend for each way of saying something false about itself
//     PLANTED_PROOF=FILE   while the file is there a proof finds one column 1 % off
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "healthy.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool in_a_proof() {
  static const bool child = [] {
    std::ifstream file("/proc/self/cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    return line.find(std::string("\0--child", 8)) != std::string::npos;
  }();
  return child;
}

struct Switch {
  int to_go = 0;  // calls until the switched one; 0: none is
  bool lost = false;
};
Switch read_switch() {
  static const std::string path = variable("PLANTED_SWITCH");
  std::ifstream file(path);
  Switch s;
  std::string what;
  if (path.empty() || !(file >> s.to_go)) return {};
  s.lost = file >> what && what == "lost";
  std::remove(path.c_str());
  return s;
}

template <class Op>
struct Nan {
  static const Backend<Op>*& healthy() {
    static const Backend<Op>* backend = nullptr;
    return backend;
  }
  static void run(const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
    healthy()->run(tactic, args, stream);
    const Grid out = out_of(args);
    if (in_a_proof()) {
      static const std::string path = variable("PLANTED_PROOF");
      if (!path.empty() && std::ifstream(path).good())
        for (int64_t r = 0; r < out.rows; ++r) out.at(r, 1) *= 1.01f;
      return;
    }
    static Switch now;
    if (now.to_go == 0) now = read_switch();
    if (now.to_go == 0 || --now.to_go > 0) return;
    if (now.lost) fail(Code::kDevice, "cudaStreamSynchronize(stream): cudaErrorLaunchFailure: planted");
    out.at(out.rows - 1, 0) = NAN;
  }
};

// What a backend says about itself is believed until its proof: each of these says one thing that is not so, or throws
// where it is asked.
template <class Op>
std::vector<const Backend<Op>*> lies() {
  using P = typename Op::Problem;
  using B = Backend<Op>;
  struct Lie {
    const char* name;
    void (*tell)(B&);
  };
  static constexpr Lie kLies[] = {
      {"false_targets",
       [](B& b) {
         b.tactics = [](const P&, const Device&) { return std::vector<Tactic>{{"avx512bf16", Isa::kAvx512Bf16}}; };
       }},
      {"false_targets_run",
       [](B& b) { b.run = [](const Tactic&, const typename Op::Args&, Stream&) { raise(SIGILL); }; }},
      {"false_workspace",
       [](B& b) {
         b.workspace = [](const Tactic&, const P&, int, int) -> size_t { return 64; };
         b.run = [](const Tactic& t, const typename Op::Args& a, Stream& s) {
           right<Op>(t, a, s);
           if constexpr (HasWorkspace<typename Op::Args>) a.ws.data[64] = 3;
         };
       }},
      {"endless_workspace",
       [](B& b) { b.workspace = [](const Tactic&, const P&, int, int) { return size_t{1} << 60; }; }},
      {"permits_everything",
       [](B& b) {
         b.supports = [](const P&, const Device&) { return Verdict{}; };
         b.run = [](const Tactic&, const typename Op::Args&, Stream&) {};
       }},
      {"throws_when_asked",
       [](B& b) { b.supports = [](const P&, const Device&) -> Verdict { throw std::runtime_error("planted"); }; }},
      {"throws_when_listed",
       [](B& b) {
         b.tactics = [](const P&, const Device&) -> std::vector<Tactic> { throw std::runtime_error("planted"); };
       }},
      {"throws_when_planned",
       [](B& b) {
         b.workspace = [](const Tactic&, const P&, int, int) -> size_t { throw std::runtime_error("planted"); };
       }},
      {"throws_when_run",
       [](B& b) {
         b.run = [](const Tactic&, const typename Op::Args&, Stream&) { throw std::runtime_error("planted"); };
       }},
  };
  static std::array<B, std::size(kLies)> backends;
  std::vector<const B*> out;
  for (size_t i = 0; i < backends.size(); ++i) {
    backends[i] = fast_of<Op>();
    backends[i].name = kLies[i].name;
    kLies[i].tell(backends[i]);
    out.push_back(&backends[i]);
  }
  return out;
}

template <class Op>
std::vector<const Backend<Op>*> make_list(std::span<const Backend<Op>* const> real) {
  std::vector<const Backend<Op>*> list(real.begin(), real.end());
  const std::string wish = variable("PLANTED"), op = wish.substr(0, wish.find('/'));
  if (op != Op::kName) return list;
  const std::string name = wish.substr(std::min(wish.size(), op.size() + 1));
  if constexpr (!std::is_same_v<Op, SampleOp>)
    if (name == "nan") {
      static Backend<Op> nan = fast_of<Op>();
      Nan<Op>::healthy() = &fast_of<Op>();
      nan.name = "nan";
      nan.run = Nan<Op>::run;
      std::erase_if(list, [](const Backend<Op>* b) { return b->name != "reference"; });
      list.insert(list.begin(), &nan);
      return list;
    }
  if (name == "lies") {
    const std::vector<const Backend<Op>*> all = lies<Op>();
    list.insert(list.begin(), all.begin(), all.end());
    return list;
  }
  const Candidates faulty = planted([&](const Name& n) { return n.op == op && n.name == name; });
  CHECK(faulty.of<Op>().size() == 1, "PLANTED: no fault " + wish);
  list.insert(list.begin(), faulty.of<Op>().front());
  return list;
}

template <class Op>
std::span<const Backend<Op>* const> list_of(std::span<const Backend<Op>* const> real) {
  static thread_local bool making = false;  // what a planted backend is made of is asked for on the way
  if (making) return real;
  static const std::vector<const Backend<Op>*> list = [&] {
    making = true;
    std::vector<const Backend<Op>*> made = make_list<Op>(real);
    making = false;
    return made;
  }();
  return list;
}

}  // namespace

// backends_of<Op>() of this program, and the one of mettle's libraries.
#define WRAP(Op, length)                                                                                             \
  std::span<const Backend<Op>* const> real_##Op() asm("__real__ZN6mettle11backends_ofINS_" length #Op                \
                                                      "EEESt4spanIKPKNS_7BackendIT_EELm18446744073709551615EEv");    \
  std::span<const Backend<Op>* const> wrapped_##Op() asm("__wrap__ZN6mettle11backends_ofINS_" length #Op             \
                                                         "EEESt4spanIKPKNS_7BackendIT_EELm18446744073709551615EEv"); \
  std::span<const Backend<Op>* const> wrapped_##Op() { return list_of<Op>(real_##Op()); }
WRAP(EmbedOp, "7")
WRAP(JoinOp, "6")
WRAP(LinearOp, "8")
WRAP(MoeOp, "5")
WRAP(AttentionOp, "11")
WRAP(GdnOp, "5")
WRAP(SampleOp, "8")
#undef WRAP

}  // namespace mettle::mutants
