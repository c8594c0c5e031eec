#include "diagnose/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "base/temporary_folder.h"
#include "diagnose/labelled_logs.h"
#include "diagnose/signatures.h"

namespace mettle::diagnose {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Diagnosis of(const std::string& log, Options options = {}) {
  Diagnoser d(std::move(options));
  d.read_text(log, "log");
  return d.finish();
}

const char* const kServing =
    "INFO:     Application startup complete.\nINFO: 1.2.3.4 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n";

TEST(Diagnose, EverySignatureItsNearMissesAndTheCompoundLogs) {
  const SelfTest t = test_signatures();
  for (const std::string& wrong : t.wrong) ADD_FAILURE() << wrong;
  EXPECT_GE(t.cases, 83u * 3);
  EXPECT_EQ(t.right, t.cases);
  EXPECT_EQ(t.healthy_called_broken, 0u);
}

// What a row tells is the same when worker 3 of several says it, and then it is worker 3 that failed. Disputed classes
// are never surer than low.
TEST(Diagnose, EverySignatureNamesTheRankThatSaidIt) {
  size_t rows = 0;
  for (const Signature& s : table().signatures) {
    const Example& example = s.examples[0];
    if (example.cause != s.cause) continue;
    ++rows;
    std::string log;
    for (size_t at = 0; at < example.log.size();) {
      const size_t end = std::min(example.log.find('\n', at), example.log.size());
      log += "(Worker_TP3 pid=7) " + example.log.substr(at, end - at) + "\n";
      at = end + 1;
    }
    const Diagnosis d = of(log);
    EXPECT_EQ(d.cause, s.cause) << s.id;
    // These two name a rank of their own in the line.
    EXPECT_EQ(d.rank, s.id == "S009" ? "0" : s.id == "G37" ? "1" : "3") << s.id;
    if (table().classes.at(s.cause).disputed) {
      EXPECT_EQ(d.confidence, Confidence::kLow) << s.id;
    }
  }
  EXPECT_GE(rows, 130u);
}

TEST(Diagnose, WholeLogs) {
  const SelfTest t = test_folder(METTLE_SOURCE_DIR "/tests/data/logs");
  for (const std::string& wrong : t.wrong) ADD_FAILURE() << wrong;
  EXPECT_GE(t.cases, 40u);
  EXPECT_EQ(t.right, t.cases);
  EXPECT_GE(t.healthy_cases, 5u);
  EXPECT_EQ(t.healthy_called_broken, 0u);
}

TEST(Diagnose, TheSelfTestFindsAWrongLabel) {
  const TemporaryFolder folder;
  folder.write("a.log", "RuntimeError: CUDA error: misaligned address\n");
  folder.write("b.log", kServing);
  folder.write("c.log", kServing);
  folder.write("expected.json", R"({"a.log": {"cause": "KERNEL_FAULT", "line": 2}, "b.log": {"cause": "VRAM_OOM"}})");
  const SelfTest t = test_folder(folder.path());
  EXPECT_EQ(t.cases, 3u);
  EXPECT_EQ(t.right, 0u);
  EXPECT_THAT(t.wrong, Contains("a.log: evidence must be line 2, is line 1"));
  EXPECT_THAT(t.wrong, Contains(HasSubstr("b.log: must be VRAM_OOM, is HEALTHY")));
  EXPECT_THAT(t.wrong, Contains("c.log: is not named in expected.json"));
  EXPECT_THROW(test_folder(METTLE_SOURCE_DIR "/docs"), Error);
}

TEST(Diagnose, TheLinterFindsFaultsOfATable) {
  nlohmann::json all = nlohmann::json::parse(signatures_json());
  EXPECT_TRUE(lint(table()).empty());
  all["signatures"][0]["class"] = "WRONG_CLASS";
  all["signatures"][1]["id"] = "S001";
  all["signatures"][2]["needles"] = {"words of no line"};
  all["signatures"][3]["examples"].erase(2);
  all["classes"]["VRAM_OOM"]["flags"]["ollama"] = {"--x"};
  const std::vector<std::string> wrong = lint(read_table(all.dump()));
  EXPECT_THAT(wrong, Contains("S001: unknown class WRONG_CLASS"));
  EXPECT_THAT(wrong, Contains("S001: the id is taken twice"));
  EXPECT_THAT(wrong, Contains(HasSubstr("S003: no needle in a line it matches")));
  EXPECT_THAT(wrong, Contains("S004: must have one example and two near misses, has 2"));
  EXPECT_THAT(wrong, Contains("VRAM_OOM: flags of an unknown server: ollama"));
  all["signatures"][0]["kind"] = "whatever";
  EXPECT_THROW(read_table(all.dump()), Error);
  EXPECT_THROW(read_table("{"), Error);
}

TEST(Diagnose, EveryClassOfTheTableIsReachable) {
  std::set<std::string> reached{"UNKNOWN", "HEALTHY", "WRAPPER", "NOISE", "INFO", "INCONCLUSIVE", "VRAM_FRAGMENTED"};
  for (const Signature& s : table().signatures) reached.insert(s.cause);
  for (const auto& [name, info] : table().classes) EXPECT_TRUE(reached.contains(name)) << name;
}

TEST(Diagnose, NothingIsUnknownAndSaysWhatToSend) {
  const Diagnosis empty = of("");
  EXPECT_EQ(empty.cause, "UNKNOWN");
  EXPECT_EQ(empty.sentence, "The log is empty.");
  EXPECT_FALSE(empty.missing.empty());
  const Diagnosis start = of("INFO starting\n");
  EXPECT_TRUE(start.healthy());
  EXPECT_EQ(start.confidence, Confidence::kLow);
  const Diagnosis odd =
      of("Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g()\nfoo.BarError: odd\n");
  EXPECT_EQ(odd.cause, "UNKNOWN");
  ASSERT_EQ(odd.evidence.size(), 1u);
  EXPECT_EQ(odd.evidence[0].line, 4u);
  EXPECT_EQ(odd.evidence[0].text, "foo.BarError: odd");
}

TEST(Diagnose, ALogThatEndsInsideATracebackIsNotHealthy) {
  const std::string trace = "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g()\n";
  const Diagnosis cut = of("INFO starting\n" + trace);
  EXPECT_EQ(cut.cause, "UNKNOWN");
  EXPECT_NE(cut.sentence.find("ends inside a traceback"), std::string::npos) << cut.sentence;
  ASSERT_EQ(cut.evidence.size(), 1u);
  EXPECT_EQ(cut.evidence[0].line, 4u);
  EXPECT_EQ(of(kServing + trace + "\n").cause, "UNKNOWN");
  EXPECT_EQ(of("INFO starting\n" + trace.substr(0, trace.find("    g()"))).cause, "UNKNOWN");
  EXPECT_TRUE(of("INFO starting\nThread 0x1 (most recent call first):\n  File \"a.py\", line 3 in f\n").healthy());
  EXPECT_TRUE(of(trace + "INFO it goes on\n").healthy());
}

TEST(Diagnose, ThePhaseIsNamedOnlyWhenALineTellsOfIt) {
  const std::string fault = "CUDA error: misaligned address\n";
  EXPECT_EQ(of(fault).phase, "");
  EXPECT_EQ(of(fault).sentence.find('('), std::string::npos);
  EXPECT_EQ(of("vLLM API server version 0.17\n" + fault).phase, "import");
  EXPECT_EQ(of("Loading weights\n" + fault).phase, "load");
  EXPECT_EQ(of(kServing + fault).phase, "serving");
}

TEST(Diagnose, KilledIsNoOutOfMemoryKillWithoutAKernelLine) {
  const std::string log = "INFO Loading safetensors checkpoint shards: 40% Completed\nKilled\n";
  const Diagnosis bare = of(log);
  EXPECT_EQ(bare.cause, "UNKNOWN");
  ASSERT_EQ(bare.misleading.size(), 1u);
  EXPECT_THAT(bare.misleading[0].remark, HasSubstr("only SIGKILL"));
  EXPECT_THAT(bare.missing, Contains(HasSubstr("--dmesg")));
  const TemporaryFolder folder;
  Options options;
  options.dmesg = {folder.write(
      "oom", "[ 1.000000] eth0: up\n[99.000000] Out of memory: Killed process 7 (python3) total-vm:9kB\n")};
  const Diagnosis oom = of(log, options);
  EXPECT_EQ(oom.cause, "HOST_OOM");
  EXPECT_EQ(oom.confidence, Confidence::kHigh);
  EXPECT_EQ(oom.phase, "load");
  EXPECT_EQ(oom.evidence[0].file, options.dmesg[0]);
  EXPECT_EQ(oom.evidence[0].line, 2u);
  options.dmesg = {folder.write("other", "[99.000000] Out of memory: Killed process 7 (chrome) total-vm:9kB\n")};
  EXPECT_EQ(of(log, options).cause, "UNKNOWN");
  EXPECT_TRUE(of(kServing, options).healthy());
}

TEST(Diagnose, ExitMinusNineAgainstTheKernelLog) {
  const std::string log =
      "INFO Loading safetensors checkpoint shards: 40% Completed\nlauncher: rank 2 died, exit code -9\n";
  const Diagnosis alone = of(log);
  EXPECT_EQ(alone.cause, "HOST_OOM");
  EXPECT_EQ(alone.rank, "2");
  EXPECT_EQ(alone.confidence, Confidence::kMedium);
  const TemporaryFolder folder;
  Options options;
  options.dmesg = {folder.write("clean", "[ 1.000000] eth0: up\n")};
  EXPECT_EQ(of(log, options).cause, "UNKNOWN");
  options.dmesg = {folder.write("oom", "[99.000000] Out of memory: Killed process 7 (python3)\n")};
  EXPECT_EQ(of(log, options).confidence, Confidence::kHigh);
}

TEST(Diagnose, ARealKillAgainstTheKernelLogOfThatHour) {
  const std::string logs = METTLE_SOURCE_DIR "/tests/data/logs/",
                    all = read_file(logs + "real-llama-group-limit.log", 1 << 20);
  const std::string until_killed = all.substr(0, all.find("bringup: memory of the control group"));
  Options options;
  options.exit_code = 137;
  EXPECT_EQ(of(until_killed, options).cause, "UNKNOWN");
  options.dmesg = {logs + "real-llama-group-limit.dmesg"};
  const Diagnosis d = of(until_killed, options);
  EXPECT_EQ(d.cause, "HOST_OOM");
  EXPECT_EQ(d.confidence, Confidence::kHigh);
  EXPECT_EQ(d.phase, "load");
  EXPECT_THAT(d.evidence.at(0).text, HasSubstr("llama-server"));
  EXPECT_THAT(d.evidence.at(0).file, HasSubstr(".dmesg"));
}

TEST(Diagnose, WordsOfAStopAfterAnErrorAreNoStop) {
  const std::string start = "0.00.007.404 I srv    load_model: loading model 'm.gguf'\n",
                    stop = "0.01.676.690 I srv    operator(): operator(): cleaning up before exit...\n",
                    ready = "0.00.776.597 I srv  llama_server: listening on http://127.0.0.1:8080\n",
                    answer = "0.00.834.312 I slot print_timing: id  0 | task 0 | prompt eval time =      12.24 ms\n",
                    error = "0.01.676.635 E llama_model_load: error loading model: of a kind nobody has seen\n";
  EXPECT_EQ(of(start + error + stop + "bringup: exit code: 1\n").cause, "UNKNOWN");
  EXPECT_EQ(of(start + error + stop).evidence.at(0).line, 2u);
  EXPECT_TRUE(of(start + ready + answer + stop).healthy());
  EXPECT_EQ(of(start + ready + answer + stop).phase, "serving");
  EXPECT_TRUE(of(start + ready + error + answer + stop).healthy());  // it went on answering
  EXPECT_TRUE(of(start + stop).healthy());
}

TEST(Diagnose, ExitCodes) {
  Options options;
  options.exit_code = 0;
  EXPECT_TRUE(of(kServing, options).healthy());
  options.exit_code = 143;
  EXPECT_TRUE(of(kServing, options).healthy());
  options.exit_code = 137;
  const Diagnosis killed = of(kServing, options);
  EXPECT_EQ(killed.cause, "UNKNOWN");
  EXPECT_EQ(killed.phase, "serving");
  EXPECT_THAT(killed.missing, Contains(HasSubstr("who sent SIGKILL")));
  options.exit_code = 1;
  EXPECT_THAT(of("INFO a\n", options).sentence, HasSubstr("exit code 1"));
}

TEST(Diagnose, TheDeviceDecidesAboutFp4) {
  const std::string log = "WARNING Your GPU does not have native support for FP4 computation\n";
  Options options;
  options.device = "sm120";
  const Diagnosis missed = of(log, options);
  EXPECT_EQ(missed.cause, "GATE_TOO_NARROW");
  EXPECT_EQ(missed.device, "sm120");
  EXPECT_EQ(of(log).confidence, Confidence::kLow);
  EXPECT_THAT(of(log).missing, Contains(HasSubstr("--device")));
  for (const char* device : {"9.0", "sm_90a", "SM90", "90"}) {
    options.device = device;
    EXPECT_TRUE(of(log, options).healthy()) << device;
  }
  for (const char* device : {"hopper", "sm", "1234", "12.", "sm12", ""}) {
    options.device = device;
    if (*device == '\0') continue;
    try {
      of(log, options);
      FAIL() << device;
    } catch (const Error& e) {
      EXPECT_EQ(e.message, std::string("--device: must be an SM such as sm120 or 12.0, got ") + device);
    }
  }
}

TEST(Diagnose, BuildFilterIsDecidedByDeviceAndToolkit) {
  const std::string line = "RuntimeError: No supported CUDA architectures found for major versions [9, 10].\n";
  EXPECT_EQ(of(line).cause, "GATE_OR_TOOLKIT");
  EXPECT_EQ(of("INFO nvcc version 12.8\n  Device 0: RTX 5090\n" + line).cause, "TOOLKIT_TOO_OLD");
  EXPECT_EQ(of("INFO nvcc version 13.0\n  Device 0: RTX 5090\n" + line).cause, "GATE_TOO_NARROW");
}

TEST(Diagnose, MemoryNumbersDecideWhoseMemoryItIs) {
  const std::string head =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 "
      "GiB ";
  EXPECT_EQ(of(head + "of which 1.00 GiB is free.\n").cause, "VRAM_OOM");
  EXPECT_EQ(of(head + "of which 30.00 GiB is free.\n").cause, "VRAM_FRAGMENTED");
  const Diagnosis other = of(head +
                             "of which 1.00 GiB is free. Process 4242 has 60.00 GiB memory in use. Including "
                             "non-PyTorch memory, this process has 33.00 GiB memory in use.\n");
  EXPECT_EQ(other.cause, "LEFTOVER_OR_TENANT");
  EXPECT_THAT(other.sentence, HasSubstr("60.00 of 94.97 GiB"));
}

TEST(Diagnose, SilenceNeedsTimesOrTheUsersWord) {
  const std::string line = "host:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\n";
  EXPECT_TRUE(of(line).healthy());
  Options options;
  options.silent_s = 600;
  EXPECT_EQ(of(line, options).cause, "P2P_HANG");
  EXPECT_EQ(of(line + "INFO all-reduce done\n", options).cause, "UNKNOWN");
  options.silent_s = 30;
  EXPECT_TRUE(of(line, options).healthy());
}

TEST(Diagnose, RemediesAreFlagsOfTheServerInTheLogAndFitThePhase) {
  const std::string oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
  EXPECT_THAT(of("vLLM API server version 0.17\nCapturing CUDA graphs: 10%\n" + oom).remedy,
              Contains(HasSubstr("--enforce-eager")));
  const Diagnosis sglang = of("server_args=ServerArgs(model_path='x')\nLoad weight begin.\n" + oom);
  EXPECT_EQ(sglang.phase, "load");
  EXPECT_THAT(sglang.remedy, Contains(HasSubstr("--tp-size")));
  EXPECT_THAT(sglang.remedy, Not(Contains(HasSubstr("--cuda-graph-max-bs"))));
  EXPECT_THAT(of(oom).missing, Contains(HasSubstr("which server")));
}

TEST(Diagnose, TheFirstRankThatFailedByTimeNotByPlace) {
  const std::string late = "[2026-01-12 10:00:09 TP0] CUDA error: misaligned address\n";
  const std::string early = "[2026-01-12 10:00:03 TP1] no kernel image is available for execution on the device\n";
  const Diagnosis d = of(late + early);
  EXPECT_EQ(d.cause, "WRONG_SM");
  EXPECT_EQ(d.rank, "1");
  EXPECT_EQ(d.evidence[0].line, 2u);
}

TEST(Diagnose, ClocksThatCannotBeComparedLeaveTheOrderOfTheLines) {
  const std::string first = "[2026-01-12 10:00:09 TP0] CUDA error: misaligned address\n";
  const std::string second =
      "[rank1]:[E112 10:00:03.000 x.cpp:6] no kernel image is available for execution on the device\n";
  EXPECT_EQ(of(first + second).cause, "KERNEL_FAULT");
  EXPECT_EQ(of(second + first).cause, "WRONG_SM");
}

TEST(Diagnose, FilesOfAFolderAreOneRun) {
  const TemporaryFolder folder;
  folder.write("rank0.log", "[2026-01-12 10:00:09 TP0] an illegal memory access was encountered\n");
  folder.write("rank1.log", "[2026-01-12 10:00:02 TP1] Could not find nvcc\n");
  Diagnoser d;
  d.read_path(folder.path());
  const Diagnosis answer = d.finish();
  EXPECT_EQ(answer.cause, "NO_COMPILER");
  EXPECT_THAT(answer.evidence[0].file, HasSubstr("rank1.log"));
}

TEST(Diagnose, ASecondStartIsJudgedAloneAndTheFirstIsNoted) {
  const Diagnosis d =
      of("vLLM API server version 0.17\nRuntimeError: Could not find nvcc\nEngineCore encountered a fatal error.\nvLLM "
         "API server version 0.17\n" +
         std::string(kServing));
  EXPECT_TRUE(d.healthy());
  EXPECT_THAT(d.notes, Contains(HasSubstr("the one before ended with NO_COMPILER")));
}

TEST(Diagnose, WhatStandsInPromptsAndHelpIsNotTheServers) {
  EXPECT_TRUE(
      of(std::string(kServing) + "INFO Received request a: prompt: \"CUDA error: misaligned address\"\n").healthy());
  EXPECT_TRUE(of(std::string(kServing) + "INFO hint: if you see misaligned address, rerun\n").healthy());
  EXPECT_EQ(of("RuntimeError: CUDA error: misaligned address\n").cause, "KERNEL_FAULT");
}

TEST(Diagnose, HostileTextIsBoundedAndCannotReachTheTerminal) {
  std::string log =
      "RuntimeError: CUDA error: misaligned address \x1b[31m\x07\x01\xC2\x9B" + std::string(5000, 'x') + "\n";
  for (int i = 0; i < 20000; ++i)
    log +=
        "[2026-01-12 10:00:09 TP" + std::to_string(i) + "] no kernel image is available for execution on the device\n";
  const Diagnosis d = of(log);
  EXPECT_EQ(d.cause, "KERNEL_FAULT");
  EXPECT_LE(d.evidence.size(), 8u);
  EXPECT_LE(d.evidence[0].text.size(), 600u);
  EXPECT_LE(d.notes.size(), 10u);
  const std::string text = to_text(d, false);
  EXPECT_EQ(text.find_first_of("\x1b\x07\x01"), std::string::npos);
  EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos);  // CSI in one character
  EXPECT_LT(text.size(), 20000u);
}

TEST(Diagnose, JsonHoldsEveryFieldAndBrokenUtf8IsReplaced) {
  const auto j = nlohmann::json::parse(to_json(of("RuntimeError: CUDA error: misaligned address \xff\xfe\n")));
  for (const char* field : {"cause", "sentence", "confidence", "phase", "evidence", "misleading", "remedy", "missing"})
    EXPECT_TRUE(j.contains(field)) << field;
  EXPECT_EQ(j["cause"], "KERNEL_FAULT");
  EXPECT_EQ(j["evidence"][0]["line"], 1);
  EXPECT_EQ(j["evidence"][0]["file"], "log");
}

TEST(Diagnose, ListNamesEveryRow) {
  const std::string text = signature_list(false);
  const auto j = nlohmann::json::parse(signature_list(true));
  EXPECT_EQ(j.size(), table().signatures.size());
  for (const Signature& s : table().signatures) EXPECT_NE(text.find(s.id + " "), std::string::npos) << s.id;
}

}  // namespace
}  // namespace mettle::diagnose
