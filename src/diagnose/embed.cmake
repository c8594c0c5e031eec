# cmake -DFROM=file -DTO=file.cpp -P embed.cmake: the bytes of FROM as mettle::diagnose::signatures_json().
file(READ ${FROM} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
file(WRITE ${TO} "#include \"diagnose/signatures.h\"
namespace mettle::diagnose {
namespace {
constexpr char kBytes[] = {${bytes}};
}
std::string_view signatures_json() { return {kBytes, sizeof kBytes}; }
}  // namespace mettle::diagnose
")
