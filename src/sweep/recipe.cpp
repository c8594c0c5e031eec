#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "sweep/matrix.h"
#include "sweep/report.h"

namespace mettle::sweep {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFiles[] = {"command.sh", "environment", "server.service", "replay.py"};
constexpr int kProductionPort = 8000;

// A program as production finds it: a name is looked up in PATH, a relative path begins at the plan's folder.
std::string absolute(const std::string& program, const std::string& folder) {
  namespace fs = std::filesystem;
  if (program.find('/') != std::string::npos) return (fs::path(folder) / program).lexically_normal().string();
  const char* path = std::getenv("PATH");
  std::string list = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(':', at), list.size());
    const std::string candidate = list.substr(at, end - at) + "/" + program;
    struct stat info {};
    if (candidate.front() == '/' && stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        (info.st_mode & S_IXUSR) != 0)
      return candidate;
    at = end + 1;
  }
  return program;
}

// Checks a running server again with the same prompts and the same rules; Python's standard library only.
constexpr const char* kReplay = R"py(#!/usr/bin/env python3
"""Asks a server the canary of the sweep again: replay.py [URL]. Exit code 0: every answer is right."""
import json
import math
import sys
import urllib.request

CANARY = json.loads(@CANARY@)


def repeats(text):
    text = text.strip()
    if len(text) < 24:
        return False
    for unit in range(1, len(text) // 4 + 1):
        same = 0
        while same + unit < len(text) and text[-1 - same] == text[-1 - same - unit]:
            same += 1
        filled = same + unit
        if filled >= 4 * unit and filled >= 24 and filled * 2 >= len(text):
            return True
    return False


def garbage(text):
    visible = [c for c in text if not c.isspace()]
    if not visible:
        return True
    most = max(set(visible), key=visible.count)
    return len(visible) >= 8 and visible.count(most) * 10 >= 9 * len(visible) and not most.isalnum()


def ask(url, entry):
    chat = CANARY["endpoint"] == "chat"
    body = {"model": CANARY["model"], "max_tokens": entry["max_tokens"], "temperature": 0, "stream": False}
    if chat:
        body["messages"] = [{"role": "user", "content": entry["prompt"]}]
    else:
        body["prompt"] = entry["prompt"]
    if CANARY["logprobs"]:
        body["logprobs"] = True if chat else 1
    path = "/v1/chat/completions" if chat else "/v1/completions"
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        choice = json.load(reply)["choices"][0]
    logprobs = choice.get("logprobs") or {}
    if chat:
        message = choice["message"]
        text = message.get("content") or message.get("reasoning_content") or ""
        values = [token["logprob"] for token in logprobs.get("content") or []]
    else:
        text, values = choice["text"], logprobs.get("token_logprobs") or []
    return text, values


def fault(entry, text, values):
    for i, value in enumerate(values):
        if value is None or not math.isfinite(value) or value > 1e-4:
            return f"the log-probability of token {i + 1} is {value}"
    if garbage(text):
        return "the answer is garbage"
    have, want = text.strip(), entry["answer"].strip()
    if want:
        right = {"exact": have == want, "prefix": have.startswith(want), "contains": want in have}[entry["match"]]
        return None if right else f"must {entry['match']} {want!r}"
    return "the answer repeats itself" if repeats(text) else None


def main():
    url = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:@PORT@").rstrip("/")
    wrong = 0
    for entry in CANARY["prompts"]:
        try:
            text, values = ask(url, entry)
            why = fault(entry, text, values)
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            text, why = "", f"no answer: {error}"
        wrong += why is not None
        print(f"{'wrong' if why else 'right'}  {entry['prompt']!r} -> {text[:60]!r}" + (f"  ({why})" if why else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
)py";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A path outside of quotes: % begins a specifier.
std::string systemd_path(const std::string& path) {
  std::string out;
  for (const char c : path) out += c == '%' ? std::string("%%") : std::string(1, c);
  return out;
}

std::string replay_script(const Plan& plan, const Row& row, int port) {
  Json prompts = Json::array();
  const bool logprobs = plan.canary.logprobs &&
                        std::none_of(row.result.notes.begin(), row.result.notes.end(), [](const std::string& note) {
                          return note.find("log-probabilities") != std::string::npos;
                        });
  for (const CanaryPrompt& p : plan.canary.prompts)
    prompts.push_back({{"prompt", p.prompt},
                       {"answer", p.answer},
                       {"match", p.match == Match::kExact    ? "exact"
                                 : p.match == Match::kPrefix ? "prefix"
                                                             : "contains"},
                       {"max_tokens", p.max_tokens}});
  const Json canary = {{"endpoint", row.cell->server.endpoint},
                       {"model", row.result.model},
                       {"logprobs", logprobs},
                       {"prompts", prompts}};
  // JSON in ASCII inside a JSON text in ASCII is a literal of Python too.
  const std::string literal = Json(canary.dump(-1, ' ', true, Json::error_handler_t::replace)).dump(-1, ' ', true);
  return replaced(replaced(kReplay, "@PORT@", std::to_string(port)), "@CANARY@", literal);
}

}  // namespace

std::string shell_words(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-./:=,+@%") == std::string::npos;
    if (plain) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

std::string systemd_word(const std::string& word) {
  std::string out = "\"";
  for (const char c : word) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    if (c == '%' || c == '$') out += c;  // doubled: no specifier, no variable
    out += c;
  }
  return out + "\"";
}

void write_recipe(const Plan& plan, const std::vector<Row>& rows, int winner, const std::string& out) {
  namespace fs = std::filesystem;
  const std::string folder = out + "/recipe";
  std::error_code ec;
  if (winner < 0) {
    for (const char* file : kFiles) fs::remove(folder + "/" + file, ec);
    fs::remove(folder, ec);
    return;
  }
  fs::create_directories(folder, ec);
  if (ec) fail(Code::kDevice, fmt::format("{}: cannot be made: {}", folder, ec.message()));
  const Row& row = rows[static_cast<size_t>(winner)];
  const ServerPlan& server = row.cell->server;
  const int port = server.port != 0 ? server.port : kProductionPort;
  const std::string self = fs::read_symlink("/proc/self/exe", ec).string();
  const Places places{port, "/tmp", self};
  std::vector<std::string> words = words_of(plan, server, places);
  words[0] = absolute(words[0], plan.folder);
  std::string exports, environment, unit_words;
  for (const auto& [name, value] : environment_of(plan, server, places)) {
    exports += fmt::format("export {}={}\n", name, shell_words({value}));
    environment += fmt::format("{}={}\n", name, shell_words({value}));
  }
  for (const std::string& word : words)
    unit_words += fmt::format("{}{}", unit_words.empty() ? "" : " ", systemd_word(word));
  write_whole(folder + "/command.sh",
              fmt::format("#!/bin/sh\n# {} of sweep {}: {}\n{}cd {} || exit 1\nexec {}\n", row.cell->name, plan.name,
                          goal_text(plan, row.result), exports, shell_words({plan.folder}), shell_words(words)));
  write_whole(folder + "/environment", environment);
  write_whole(
      folder + "/server.service",
      fmt::format("# cp server.service /etc/systemd/system/ && systemctl enable --now server\n"
                  "[Unit]\nDescription=Language model server, winner of sweep {}\nAfter=network.target\n\n"
                  "[Service]\nWorkingDirectory={}\nEnvironmentFile={}\nExecStart={}\n"
                  "Restart=on-failure\nKillMode=mixed\nTimeoutStartSec={:.0f}\nTimeoutStopSec={:.0f}\n\n"
                  "[Install]\nWantedBy=multi-user.target\n",
                  plan.name, systemd_path(plan.folder), systemd_path(fs::absolute(folder + "/environment").string()),
                  unit_words, server.deadline_seconds, server.stop_seconds));
  write_whole(folder + "/replay.py", replay_script(plan, row, port));
  for (const char* file : {"command.sh", "replay.py"}) chmod((folder + "/" + file).c_str(), 0755);
}

}  // namespace mettle::sweep
