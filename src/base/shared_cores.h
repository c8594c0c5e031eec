// For a process that works beside another one on the same cores, as two proofs side by side do.
#pragma once

namespace mettle {

// From now on members of this process's ThreadTeams that wait sleep at once: what they wait for may need the very core
// that they would spin on. Teams have the same members and shares as ever.
void share_cores();

}  // namespace mettle
