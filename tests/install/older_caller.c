/* A program built against the header of interface version OLDER_VERSION (older_headers), served by the library of
   today. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsv4rt/c_api.h"

#if DSV4RT_C_API_VERSION != OLDER_VERSION
#error "this is not the header of that version"
#endif

struct hook_context {
  int64_t values;
  int calls;
};

static dsv4rt_status fill_zeros(void* user_data, int32_t layer, const dsv4rt_bf16* output, dsv4rt_bf16* next_input) {
  struct hook_context* const context = user_data;
  (void)layer;
  (void)output;
  ++context->calls;
  if (next_input != NULL) memset(next_input, 0, (size_t)context->values * sizeof(dsv4rt_bf16));
  return DSV4RT_OK;
}

static int check(dsv4rt_status status, const char* what, const dsv4rt_engine* engine) {
  if (status == DSV4RT_OK) return 1;
  fprintf(stderr, "%s: %s: %s\n", what, dsv4rt_status_name(status), dsv4rt_engine_last_error(engine));
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2 || dsv4rt_c_api_version() < DSV4RT_C_API_VERSION) return 1;
  /* Bytes after the struct that this program knows must stay as they are. */
  struct {
    dsv4rt_engine_options options;
    unsigned char after[64];
  } given;
  memset(&given, 0x5a, sizeof given);
  if (dsv4rt_engine_options_init(&given.options, sizeof given.options) != DSV4RT_OK) return 2;
  for (size_t i = 0; i < sizeof given.after; ++i) {
    if (given.after[i] != 0x5a) return 3;
  }
  given.options.checkpoint = argv[1];
  given.options.threads = 1;
  given.options.max_context_tokens = 64;
  given.options.max_step_tokens = 16;
  dsv4rt_engine* engine = NULL;
  char message[512] = "";
  if (dsv4rt_engine_create(&given.options, &engine, message, sizeof message) != DSV4RT_OK) {
    fprintf(stderr, "%s\n", message);
    return 4;
  }
  dsv4rt_memory memory;
  memory.struct_size = sizeof memory;
  dsv4rt_sequence sequence;
  int64_t hidden = 0;
  if (!check(dsv4rt_engine_memory(engine, &memory), "memory", engine) || memory.total_bytes <= 0 ||
      !check(dsv4rt_engine_hidden_size(engine, &hidden), "hidden_size", engine) ||
      !check(dsv4rt_sequence_create(engine, 0, &sequence), "create", engine)) {
    return 5;
  }
  const dsv4rt_step_entry entry = {sequence, 5};
  dsv4rt_step_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.pad_to_tokens = 8;
  dsv4rt_step step;
  if (!check(dsv4rt_step_prepare(engine, &entry, 1, &options, &step), "prepare", engine)) return 6;
  struct hook_context context = {step.tokens * hidden, 0};
  dsv4rt_bf16* const x = calloc((size_t)context.values, sizeof *x);
  const int ran = x != NULL && check(dsv4rt_step_run(engine, &step, x, fill_zeros, &context), "run", engine) &&
                  check(dsv4rt_step_commit(engine, &step, NULL, 0), "commit", engine);
  free(x);
  int64_t length = 0;
  if (!ran || context.calls == 0 || !check(dsv4rt_sequence_length(engine, sequence, &length), "length", engine)) {
    return 7;
  }
  printf("interface %d served by %d: %d layers, %d tokens\n", DSV4RT_C_API_VERSION, (int)dsv4rt_c_api_version(),
         context.calls, (int)length);
  return length == 5 && dsv4rt_engine_destroy(engine) == DSV4RT_OK ? 0 : 8;
}
