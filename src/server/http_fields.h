// Fields that HTTP asks of every message: the date of an answer, the host of a request. And how words of fields
// compare.
#pragma once
#include <ctime>
#include <string>
#include <string_view>

namespace mettle {

// RFC 9110 5.6.7: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(std::time_t time);
// Of now, written once a second for each thread.
const std::string& http_date_now();

// Schemes, types and codings are words in any case (ASCII).
bool same_word(std::string_view a, std::string_view b);

// HOST or HOST:PORT by the characters that RFC 3986 3.2.2 has for them; also empty, which RFC 9112 3.2 asks of a client
// without one.
bool is_host(std::string_view value);

// Whether a page of some website can not have sent a request with this Host: an IP address, localhost and names below
// it, a name without a dot, names that public DNS does not have (.local, .internal). Any other name can be made to mean
// 127.0.0.1 by whoever owns it (DNS rebinding), and a browser then takes that server for the site itself.
bool is_local_host(std::string_view value);

}  // namespace mettle
