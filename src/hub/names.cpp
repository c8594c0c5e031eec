#include "hub/names.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace mettle::hub {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : 3;
    if (more == 3 && (lead < 0xF0 || lead > 0xF4)) return false;
    if (text.size() - i <= more) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

std::string fault_of_path(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > 1024) return fmt::format("has {} bytes, more than 1024", name.size());
  if (std::any_of(name.begin(), name.end(), is_control)) return "has control characters";
  if (name.find('\\') != std::string_view::npos) return "has a backslash";
  if (!is_utf8(name)) return "is not UTF-8";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty()) return begin == 0 ? "is absolute" : "has an empty part";
    if (part == "." || part == "..") return fmt::format("has the part \"{}\"", part);
    if (part.size() > 255) return fmt::format("has a part of {} bytes, more than 255", part.size());
    begin = end + 1;
  }
  return "";
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

std::string fault_of_file_name(std::string_view name) { return fault_of_path(name); }

std::string fault_of_revision(std::string_view revision) {
  if (revision.size() > 250) return fmt::format("has {} bytes, more than 250", revision.size());
  return fault_of_path(revision);
}

bool is_hex(std::string_view text, size_t length) {
  return text.size() == length &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string quoted(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if ((u < 128 && std::isalnum(u)) || c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && keep_slashes))
      out += c;
    else
      out += fmt::format("%{:02X}", u);
  }
  return out;
}

std::string printable(std::string_view text) {
  constexpr size_t kMost = 300;
  std::string out;
  for (const char c : text.substr(0, kMost)) out += is_control(c) || static_cast<unsigned char>(c) > 126 ? '?' : c;
  return text.size() > kMost ? out + "..." : out;
}

bool matches(const std::string& name, const std::string& pattern) {
  const std::string whole = pattern.ends_with('/') ? pattern + "*" : pattern;
  return fnmatch(whole.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool is_wanted(const std::string& name, const std::vector<std::string>& include,
               const std::vector<std::string>& exclude) {
  const auto among = [&](const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return matches(name, p); });
  };
  return (include.empty() || among(include)) && !among(exclude);
}

std::string origin_of(std::string_view url) {
  for (const char c : url)
    if (is_control(c) || c == ' ' || c == '\\' || static_cast<unsigned char>(c) > 126) return "";
  const size_t scheme_end = url.find("://");
  if (scheme_end == std::string_view::npos) return "";
  const std::string scheme = lower(url.substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") return "";
  std::string_view authority = url.substr(scheme_end + 3);
  authority = authority.substr(0, authority.find_first_of("/?#"));
  if (authority.empty() || authority.find('@') != std::string_view::npos) return "";
  std::string_view host = authority, port;
  const size_t bracket = authority.rfind(']'), colon = authority.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  if (host.empty()) return "";
  int number = scheme == "https" ? 443 : 80;
  if (!port.empty()) {
    const auto [at, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || at != port.data() + port.size() || number < 1 || number > 65535) return "";
  }
  return fmt::format("{}://{}:{}", scheme, lower(host), number);
}

std::string resolved(const std::string& base, std::string_view location) {
  if (location.find("://") != std::string_view::npos && location.find("://") < location.find_first_of("/?#"))
    return origin_of(location).empty() ? "" : std::string(location);
  if (location.empty() || origin_of(base).empty()) return "";
  const size_t path = std::min(base.find_first_of("/?#", base.find("://") + 3), base.size());
  std::string url;
  if (location.starts_with("//"))
    url = base.substr(0, base.find("://") + 1) + std::string(location);
  else if (location.starts_with('/'))
    url = base.substr(0, path) + std::string(location);
  else
    url = base.substr(0, base.substr(0, base.find_first_of("?#")).rfind('/') + 1) + std::string(location);
  return origin_of(url).empty() ? "" : url;
}

}  // namespace mettle::hub
