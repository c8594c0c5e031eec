// Fields that both request bodies have.
#pragma once
#include <span>
#include <string_view>

#include "server/field_reader.h"
#include "server/openai_request.h"

namespace mettle {

// Reads the shared fields into `out`. `own` lists the fields the caller reads itself; every other field that is neither
// shared nor known to be harmless is noted in out.ignored, or refused when leaving it out would change the answer.
void read_generation_fields(const FieldReader& body, const RequestContext& context,
                            std::span<const std::string_view> own, GenerationFields& out);

}  // namespace mettle
