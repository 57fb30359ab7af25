/* Prefill and decode one sequence through the C interface: c_decode <checkpoint directory>
 *
 * Rows of x stand for what the embedding and the experts of a model would give. The program prints the
 * memory plan and a checksum of every output byte; cpp_decode.cpp prints the same one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "dsv4rt/c_api.h"

enum { kPrefillTokens = 16, kDecodeSteps = 8 };

/* What the hook needs: the step's size and where the next inputs come from. */
struct feed {
  uint32_t random;
  uint64_t checksum;
  int64_t values; /* tokens * hidden_size of this step */
};

/* BF16 values of magnitude 0.5 to 2, the same in every run. */
static void fill_rows(struct feed* feed, dsv4rt_bf16* rows) {
  for (int64_t i = 0; i < feed->values; ++i) {
    feed->random = feed->random * 1664525u + 1013904223u;
    rows[i] = (dsv4rt_bf16)(((feed->random >> 16) & 0x8000u) | (0x3f00u + ((feed->random >> 8) & 0xffu)));
  }
}

static dsv4rt_status on_layer(void* user_data, int32_t layer, const dsv4rt_bf16* output, dsv4rt_bf16* next_input) {
  struct feed* feed = user_data;
  (void)layer;
  for (int64_t i = 0; i < feed->values; ++i)
    feed->checksum = (feed->checksum ^ output[i]) * 1099511628211u; /* FNV-1a */
  if (next_input != NULL) fill_rows(feed, next_input);
  return DSV4RT_OK;
}

static dsv4rt_status print_plan(dsv4rt_engine* engine) {
  dsv4rt_memory memory = {.struct_size = sizeof(memory)};
  dsv4rt_status status = dsv4rt_engine_memory(engine, &memory);
  for (size_t i = 0; status == DSV4RT_OK && i < memory.region_count; ++i) {
    dsv4rt_memory_region region = {.struct_size = sizeof(region)};
    status = dsv4rt_engine_memory_region(engine, i, &region);
    if (status == DSV4RT_OK)
      printf("%-12s %" PRId32 " layers %12" PRId64 " B\n", region.role_name, region.layers, region.total_bytes);
  }
  if (status == DSV4RT_OK) printf("total %" PRId64 " B\n", memory.total_bytes);
  return status;
}

static dsv4rt_status advance(dsv4rt_engine* engine, dsv4rt_sequence sequence, int32_t tokens, int64_t hidden_size,
                             struct feed* feed, dsv4rt_bf16* x) {
  const dsv4rt_step_entry entry = {sequence, tokens};
  dsv4rt_step step;
  dsv4rt_status status = dsv4rt_step_prepare(engine, &entry, 1, NULL, &step);
  if (status != DSV4RT_OK) return status;
  feed->values = step.tokens * hidden_size;
  fill_rows(feed, x);
  status = dsv4rt_step_run(engine, &step, x, on_layer, feed);
  return status == DSV4RT_OK ? dsv4rt_step_commit(engine, &step, NULL, 0) : status;
}

static dsv4rt_status decode(dsv4rt_engine* engine) {
  struct feed feed = {1u, 14695981039346656037u, 0};
  dsv4rt_sequence sequence;
  int64_t hidden_size = 0;
  int64_t length = 0;
  dsv4rt_status status = dsv4rt_engine_hidden_size(engine, &hidden_size);
  if (status == DSV4RT_OK) status = dsv4rt_sequence_create(engine, kPrefillTokens + kDecodeSteps, &sequence);
  if (status != DSV4RT_OK) return status;
  dsv4rt_bf16* x = malloc((size_t)(kPrefillTokens * hidden_size) * sizeof(*x));
  if (x == NULL) return DSV4RT_RESOURCE_EXHAUSTED;
  status = advance(engine, sequence, kPrefillTokens, hidden_size, &feed, x);
  for (int i = 0; status == DSV4RT_OK && i < kDecodeSteps; ++i) {
    status = advance(engine, sequence, 1, hidden_size, &feed, x);
  }
  free(x);
  if (status == DSV4RT_OK) status = dsv4rt_sequence_length(engine, sequence, &length);
  if (status == DSV4RT_OK) status = dsv4rt_sequence_release(engine, sequence);
  if (status == DSV4RT_OK) printf("%" PRId64 " tokens, checksum %016" PRIx64 "\n", length, feed.checksum);
  return status;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s <checkpoint directory>\n", argv[0]);
    return 2;
  }
  dsv4rt_engine_options options;
  dsv4rt_engine_options_init(&options, sizeof(options));
  options.checkpoint = argv[1];
  options.max_context_tokens = 256;
  options.max_step_tokens = kPrefillTokens;

  dsv4rt_engine* engine = NULL;
  char message[512];
  dsv4rt_status status = dsv4rt_engine_create(&options, &engine, message, sizeof(message));
  if (status != DSV4RT_OK) {
    fprintf(stderr, "%s: %s\n", dsv4rt_status_name(status), message);
    return 1;
  }
  status = print_plan(engine);
  if (status == DSV4RT_OK) status = decode(engine);
  if (status != DSV4RT_OK) fprintf(stderr, "%s: %s\n", dsv4rt_status_name(status), dsv4rt_engine_last_error(engine));
  dsv4rt_engine_destroy(engine);
  return status == DSV4RT_OK ? 0 : 1;
}
