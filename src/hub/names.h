// Names that come from a server or a command line, before they become paths or parts of a URL.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mettle::hub {

// Empty when a file of that name may be made below a snapshot folder, else what is wrong: absolute, "..", empty parts,
// control characters, backslashes, not UTF-8, too long.
std::string fault_of_file_name(std::string_view name);
// The same for a branch, tag or commit.
std::string fault_of_revision(std::string_view revision);
bool is_hex(std::string_view text, size_t length);  // lower case

// Percent-encoded for a URL; keep_slashes: for a path of several parts.
std::string quoted(std::string_view text, bool keep_slashes);
// Printable and short: text of a server for a message to a person.
std::string printable(std::string_view text);

// As Python's fnmatch: '*' matches '/' too. A pattern that ends with '/' means what is below it.
bool matches(const std::string& name, const std::string& pattern);
bool is_wanted(const std::string& name, const std::vector<std::string>& include,
               const std::vector<std::string>& exclude);

// scheme://host:port in lower case with the port written out, or "" for what is no http or https URL, has a user name,
// or has characters that no URL may hold.
std::string origin_of(std::string_view url);
// The URL that a Location header of a reply to `base` means; "" when there is none.
std::string resolved(const std::string& base, std::string_view location);

}  // namespace mettle::hub
