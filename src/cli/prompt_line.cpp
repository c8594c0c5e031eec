#include "cli/prompt_line.h"

#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace mettle {
namespace {

constexpr int kHistoryLines = 1000;

// $XDG_STATE_HOME/mettle/history, else ~/.local/state; empty when there is no home.
std::string history_path() {
  std::filesystem::path folder;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/')
    folder = state;
  else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    folder = std::filesystem::path(home) / ".local" / "state";
  else
    return {};
  folder /= "mettle";
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  return ec ? std::string() : (folder / "history").string();
}

}  // namespace

struct PromptLine::Impl {
  std::string prompt;
  std::string path = history_path();
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
};

namespace {

char* prompt_of(EditLine* editor) {
  void* prompt = nullptr;
  el_get(editor, EL_CLIENTDATA, &prompt);
  return static_cast<std::string*>(prompt)->data();
}

// Ctrl-C at the prompt drops the line. libedit would only retry its read() after a signal, so the key is a key here.
unsigned char drop_line(EditLine* editor, int) {
  const LineInfoW* line = el_wline(editor);
  el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
  el_deletestr(editor, static_cast<int>(line->lastchar - line->buffer));
  el_insertstr(editor, "\n");  // an empty line, not the end of input
  return CC_NEWLINE;
}

// Ctrl-D that came before the editor had the terminal, while a model loads or an answer comes. It is the terminal's own
// mark then: input that waits and has no byte. The editor would read it as a NUL, which ends nothing.
bool ended_before() {
  pollfd in{STDIN_FILENO, POLLIN, 0};
  int bytes = 0;
  return poll(&in, 1, 0) == 1 && (in.revents & POLLIN) != 0 && ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes == 0;
}

}  // namespace

PromptLine::PromptLine(const std::string& prompt) : impl_(std::make_unique<Impl>()) {
  Impl& i = *impl_;
  i.prompt = prompt;
  i.editor = el_init("mettle", stdin, stderr, stderr);
  i.history = history_init();
  history(i.history, &i.event, H_SETSIZE, kHistoryLines);
  history(i.history, &i.event, H_SETUNIQUE, 1);
  if (!i.path.empty()) history(i.history, &i.event, H_LOAD, i.path.c_str());
  el_set(i.editor, EL_CLIENTDATA, &i.prompt);
  el_set(i.editor, EL_PROMPT, prompt_of);
  el_set(i.editor, EL_EDITOR, "emacs");
  el_set(i.editor, EL_HIST, history, i.history);
  el_set(i.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(i.editor, EL_ADDFN, "drop-line", "drop the line", drop_line);
  el_set(i.editor, EL_BIND, "^C", "drop-line", nullptr);
  el_set(i.editor, EL_SETTY, "-d", "-isig", nullptr);  // while a line is edited; an answer is stopped by the signal
}

PromptLine::~PromptLine() {
  Impl& i = *impl_;
  if (!i.path.empty()) history(i.history, &i.event, H_SAVE, i.path.c_str());
  history_end(i.history);
  el_end(i.editor);
}

std::optional<std::string> PromptLine::read() {
  Impl& i = *impl_;
  int count = 0;
  const char* line = ended_before() ? nullptr : el_gets(i.editor, &count);
  if (line == nullptr || count <= 0) {
    std::fputs("\n", stderr);
    return std::nullopt;
  }
  std::string text(line, static_cast<size_t>(count));
  if (text.find_first_not_of(" \t\r\n") != std::string::npos) history(i.history, &i.event, H_ENTER, text.c_str());
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace mettle
