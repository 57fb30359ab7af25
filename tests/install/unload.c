/* Loads the installed library, runs an engine, and unloads it: nothing of it may stay in the process. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "dsv4rt/c_api.h"

/* ISO C has no conversion from an object pointer to a function pointer. */
#define LOAD(function)                                             \
  do {                                                             \
    void* const address = dlsym(library, #function);               \
    if (address == NULL) return fprintf(stderr, "%s\n", dlerror()); \
    memcpy(&function##_, &address, sizeof address);                \
  } while (0)

static int is_mapped(const char* name) {
  FILE* const maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int found = 0;
  if (maps == NULL) return -1;
  while (fgets(line, sizeof line, maps) != NULL) found |= strstr(line, name) != NULL;
  fclose(maps);
  return found;
}

static int run(void* library, const char* checkpoint) {
  dsv4rt_status (*dsv4rt_engine_options_init_)(dsv4rt_engine_options*, size_t);
  dsv4rt_status (*dsv4rt_engine_create_)(const dsv4rt_engine_options*, dsv4rt_engine**, char*, size_t);
  dsv4rt_status (*dsv4rt_sequence_create_)(dsv4rt_engine*, int64_t, dsv4rt_sequence*);
  dsv4rt_status (*dsv4rt_engine_destroy_)(dsv4rt_engine*);
  LOAD(dsv4rt_engine_options_init);
  LOAD(dsv4rt_engine_create);
  LOAD(dsv4rt_sequence_create);
  LOAD(dsv4rt_engine_destroy);
  dsv4rt_engine_options options;
  if (dsv4rt_engine_options_init_(&options, sizeof options) != DSV4RT_OK) return 2;
  options.checkpoint = checkpoint;
  options.threads = 2;
  options.max_context_tokens = 64;
  options.max_step_tokens = 16;
  dsv4rt_engine* engine = NULL;
  char message[512] = "";
  if (dsv4rt_engine_create_(&options, &engine, message, sizeof message) != DSV4RT_OK) {
    return fprintf(stderr, "%s\n", message);
  }
  dsv4rt_sequence sequence;
  if (dsv4rt_sequence_create_(engine, 0, &sequence) != DSV4RT_OK) return 3;
  return dsv4rt_engine_destroy_(engine) == DSV4RT_OK ? 0 : 4;
}

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  for (int round = 0; round < 2; ++round) {
    void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror());
    if (is_mapped("libdsv4rt") != 1) return 5;
    const int result = run(library, argv[2]);
    if (result != 0) return result;
    if (dlclose(library) != 0 || is_mapped("libdsv4rt") != 0) {
      fprintf(stderr, "libdsv4rt is still there after dlclose\n");
      return 6;
    }
  }
  puts("loaded and unloaded twice");
  return 0;
}
