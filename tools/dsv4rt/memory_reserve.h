// Memory kept back for the end of a command that runs out of it.
#pragma once

namespace dsv4rt::cli {

// Keeps some MiB of the heap in reserve and gives them back where an allocation fails (std::set_new_handler): the first
// part is handed out as if nothing had happened, so that what only had to be finished is finished; when that is used up
// the second is freed and std::bad_alloc thrown, so that destructors on the way to main(), those of JSON trees among
// them, find what they take. Without it a destructor that allocates would end the process instead of an error that says
// what is missing. Call once, early; throws std::bad_alloc without that memory.
void keep_memory_in_reserve();

}  // namespace dsv4rt::cli
