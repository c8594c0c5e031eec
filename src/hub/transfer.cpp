#include "hub/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "hub/names.h"
#include "hub/partial_file.h"

namespace mettle::hub {
namespace {

// A blob that some connections work on.
struct Active {
  explicit Active(PartialFile opened) : file(std::move(opened)) {
    for (int64_t c = file.chunks(); c-- > 0;)
      if (!file.is_done(c)) open.push_back(c);
    remaining = std::ssize(open);
  }
  PartialFile file;
  std::vector<int64_t> open;  // chunks nobody has begun, last one first
  int64_t remaining = 0;      // chunks that are not there
  bool finishing = false;     // by one connection
  std::string url;            // after redirects; "" until known
  std::mutex whole;           // of a server that sends whole files only: one at a time does it
  bool sends_whole = false;
};

struct Work {
  std::shared_ptr<Active> blob;
  int64_t chunk = -1;  // -1: nothing is missing, only the checksum
};

// "bytes 0-99/1234": first, last and total, -1 where there is none.
struct ContentRange {
  int64_t first = -1, last = -1, total = -1;
};
ContentRange read_content_range(std::string_view text) {
  ContentRange range;
  if (!text.starts_with("bytes ")) return range;
  text.remove_prefix(6);
  const auto number = [&](int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return value = -1, false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return true;
  };
  if (!number(range.first) || !text.starts_with('-')) return range;
  text.remove_prefix(1);
  if (!number(range.last) || !text.starts_with('/')) return range;
  text.remove_prefix(1);
  number(range.total);
  return range;
}

// One byte too many is told from the right number; error pages have room.
size_t most_body(int64_t bytes) { return static_cast<size_t>(std::max<int64_t>(bytes, 1 << 16)) + 1; }

int64_t content_length(const HttpReply& reply) {
  const std::string_view text = reply.header("content-length");
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

class Transfer {
 public:
  Transfer(const CacheFolder& cache, TransferRequest request)
      : cache_(cache), request_(std::move(request)), pending_(request_.blobs.begin(), request_.blobs.end()) {
    request_.session.stop = &stop_;
    if (const auto note = request_.session.on_note)
      request_.session.on_note = [this, note](const std::string& line) {
        const std::lock_guard<std::mutex> lock(report_mutex_);
        note(line);
      };
  }

  int64_t run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < request_.jobs; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& t : threads) t.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
    return downloaded_;
  }

 private:
  void work() {
    try {
      Session session(request_.session);
      while (std::optional<Work> w = next()) {
        if (w->chunk >= 0) fetch(session, *w->blob, w->chunk);
        if (claims(*w->blob)) finish(session, *w->blob);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
      stop_ = true;
      changed_.notify_all();
    }
  }

  // A chunk that nobody has; waits while others hold the locks of all blobs that are left.
  std::optional<Work> next() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      for (const auto& blob : active_)
        if (!blob->open.empty()) {
          const int64_t chunk = blob->open.back();
          blob->open.pop_back();
          return Work{blob, chunk};
        }
      if (!pending_.empty()) {
        const RemoteFile file = pending_.front();
        pending_.pop_front();
        if (std::shared_ptr<Active> blob = open(file)) {
          if (blob->open.empty()) return Work{blob, -1};
          active_.push_back(blob);
        }
        continue;
      }
      if (locked_.empty()) return std::nullopt;
      // Another process is at it. Locks of files tell nobody when they go, so they are asked again.
      if (changed_.wait_for(lock, std::chrono::milliseconds(200)) == std::cv_status::timeout) pending_.swap(locked_);
    }
    return std::nullopt;
  }

  // Null when the blob is there, or is being fetched by another process. mutex_ is held.
  std::shared_ptr<Active> open(const RemoteFile& file) {
    Descriptor lock = cache_.try_lock(file.sum);
    if (lock.get() < 0) {
      if (!told_locked_ && request_.session.on_note)
        request_.session.on_note(fmt::format("{}: another process downloads it, waiting", file.name));
      told_locked_ = true;
      locked_.push_back(file);
      return nullptr;
    }
    if (cache_.has_blob(file)) {  // meanwhile
      report(file.size, 0);
      return nullptr;
    }
    auto blob = std::make_shared<Active>(PartialFile(cache_, file, std::move(lock)));
    report(blob->file.done_bytes(), 0);
    return blob;
  }

  // Whether the blob has all its chunks and this connection is the one to finish it.
  bool claims(Active& blob) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ || blob.finishing || blob.remaining > 0) return false;
    return blob.finishing = true;
  }

  void finish(Session& session, Active& blob) {
    const RemoteFile& file = blob.file.file();
    for (int attempt = 0; !stop_; ++attempt) {
      const std::string sum = blob.file.checksum();
      if (sum == file.sum) {
        blob.file.publish();
        const std::lock_guard<std::mutex> lock(mutex_);
        std::erase_if(active_, [&](const auto& a) { return a.get() == &blob; });
        return;
      }
      const std::string wrong = fmt::format("{}: {} must be {}, is {}", file.name,
                                            file.kind == Checksum::kSha256 ? "sha256" : "git blob sha1", file.sum, sum);
      if (attempt > 0) {
        blob.file.discard();
        fail(Code::kBadModel, wrong + ", twice; what came was deleted");
      }
      if (request_.session.on_note) request_.session.on_note(wrong + "; downloading it again");
      report(-file.size, 0);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        blob.file.start_over();
        blob.remaining = blob.file.chunks();
      }
      for (int64_t c = 0; c < blob.file.chunks() && !stop_; ++c) fetch(session, blob, c);
    }
  }

  void fetch(Session& session, Active& blob, int64_t chunk) {
    Patience patience(request_.session);
    const RemoteFile& file = blob.file.file();
    int64_t at = blob.file.begin_of(chunk);
    const int64_t end = blob.file.end_of(chunk);
    while (at < end && !stop_) {
      if (sends_whole(blob)) return fetch_whole(session, blob, chunk);
      const int64_t before = at;
      bool whole = false;
      std::string lie;
      std::string url = url_of(blob);
      const HttpReply reply = session.get(
          {.url = url,
           .headers = {{"range", fmt::format("bytes={}-{}", at, end - 1)}, {"accept-encoding", "identity"}},
           .body_limit = most_body(end - at),
           .on_head =
               [&](const HttpReply& head) {
                 if (head.status == 206) {
                   const ContentRange range = read_content_range(head.header("content-range"));
                   if (range.first != at || range.last >= end)
                     lie = fmt::format("asked for bytes {}-{}, sent {}-{}", at, end - 1, range.first, range.last);
                   else if (range.total >= 0 && range.total != file.size)
                     lie = fmt::format("the hub says {} bytes, the server has {}", file.size, range.total);
                   return lie.empty();
                 }
                 whole = head.status == 200 && (at != 0 || end != file.size);
                 if (head.status == 200 && !whole && content_length(head) >= 0 && content_length(head) != file.size)
                   lie = fmt::format("the hub says {} bytes, the server has {}", file.size, content_length(head));
                 return !whole && lie.empty();
               },
           .on_body =
               [&](std::string_view piece) {
                 if (std::ssize(piece) > end - at) {
                   lie = fmt::format("the hub says {} bytes, the server sends more", file.size);
                   return false;
                 }
                 take(blob, at, piece);
                 return true;
               }});
      if (!lie.empty()) fail(Code::kBadModel, fmt::format("{}: {}", file.name, lie));
      if (whole) {
        const std::lock_guard<std::mutex> lock(mutex_);
        blob.sends_whole = true;
        continue;
      }
      if (reply.end == HttpEnd::kTooLarge)
        fail(Code::kBadModel, fmt::format("{}: the hub says {} bytes, the server sends more", file.name, file.size));
      if (reply.end == HttpEnd::kStopped) return;
      judge(patience, blob, url, reply, at > before, at == end);
    }
    if (at == end) set_done(blob, chunk);
  }

  // Of a server that knows no ranges: all of it, once, for every chunk.
  void fetch_whole(Session& session, Active& blob, int64_t wanted) {
    const std::lock_guard<std::mutex> one(blob.whole);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (blob.file.is_done(wanted)) return;
    }
    Patience patience(request_.session);
    const RemoteFile& file = blob.file.file();
    while (!stop_) {
      int64_t at = 0, chunk = 0;
      bool more = false;
      const std::string url = url_of(blob);
      const HttpReply reply =
          session.get({.url = url,
                       .headers = {{"accept-encoding", "identity"}},
                       .body_limit = most_body(file.size),
                       .on_body = [&](std::string_view piece) {
                         more = std::ssize(piece) > file.size - at;
                         if (more) return false;
                         blob.file.write(at, piece);
                         add_downloaded(std::ssize(piece));
                         at += std::ssize(piece);
                         for (; chunk < blob.file.chunks() && blob.file.end_of(chunk) <= at; ++chunk)
                           if (set_done(blob, chunk)) report(blob.file.end_of(chunk) - blob.file.begin_of(chunk), 0);
                         return true;
                       }});
      if (more || reply.end == HttpEnd::kTooLarge)
        fail(Code::kBadModel, fmt::format("{}: the hub says {} bytes, the server sends more", file.name, file.size));
      if (reply.end == HttpEnd::kStopped || at == file.size) return;
      judge(patience, blob, url, reply, false, false);
    }
  }

  // After an attempt: fine, worth another one after a pause, or the end.
  void judge(Patience& patience, Active& blob, const std::string& url, const HttpReply& reply, bool progress,
             bool complete) {
    const std::string& name = blob.file.file().name;
    if (progress) patience.progress();
    if (reply.ok()) {
      keep_url(blob, reply.url);
      if (complete || progress) return;
      HttpReply empty = reply;
      empty.end = HttpEnd::kCut;
      empty.error = "the reply ended before a byte came";
      return patience.wait(name, empty);
    }
    // A signed address runs out; the hub gives a new one.
    const bool kept = url != hub_url(blob);
    if (kept) keep_url(blob, "");
    if (is_passing(reply)) return patience.wait(name, reply);
    if (reply.status == 416)
      fail(Code::kBadModel,
           fmt::format("{}: the hub says {} bytes, the server has fewer", name, blob.file.file().size));
    if (!kept) fail(Code::kBadModel, why_refused(request_.session, reply, name));
  }

  std::string hub_url(const Active& blob) const { return request_.url_prefix + quoted(blob.file.file().name, true); }
  std::string url_of(const Active& blob) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blob.url.empty() ? hub_url(blob) : blob.url;
  }
  void keep_url(Active& blob, const std::string& url) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blob.url = url;
  }
  bool sends_whole(Active& blob) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blob.sends_whole;
  }

  void take(Active& blob, int64_t& at, std::string_view piece) {
    blob.file.write(at, piece);
    at += std::ssize(piece);
    report(std::ssize(piece), std::ssize(piece));
  }

  // Whether it was not there before.
  bool set_done(Active& blob, int64_t chunk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blob.file.is_done(chunk)) return false;
    blob.file.set_done(chunk);
    --blob.remaining;
    return true;
  }

  void report(int64_t more, int64_t downloaded) {
    const std::lock_guard<std::mutex> lock(report_mutex_);
    downloaded_ += downloaded;
    if (request_.on_bytes) request_.on_bytes(more);
  }
  void add_downloaded(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(report_mutex_);
    downloaded_ += bytes;
  }

  const CacheFolder& cache_;
  TransferRequest request_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // of what follows and of the blobs' books
  std::condition_variable changed_;
  std::deque<RemoteFile> pending_, locked_;
  std::vector<std::shared_ptr<Active>> active_;
  std::exception_ptr error_;
  bool told_locked_ = false;

  std::mutex report_mutex_;
  int64_t downloaded_ = 0;
};

}  // namespace

int64_t transfer(const CacheFolder& cache, TransferRequest request) {
  return Transfer(cache, std::move(request)).run();
}

}  // namespace mettle::hub
