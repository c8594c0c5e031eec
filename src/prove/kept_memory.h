// Memory of Buffers of a child on a CPU: what one gives back is kept for the next of the same size. A proof makes and
// drops the same few buffers thousands of times; from the kernel each would come page by page.
#pragma once

namespace mettle {

// From now on, for this process: Buffers keep their memory, and so does malloc. Before other threads run.
void keep_memory();

}  // namespace mettle
