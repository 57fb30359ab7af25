/* The installed C interface from a C11 program that is linked without a C++ compiler. */
#include <stdio.h>
#include <string.h>

#include "dsv4rt/c_api.h"

int main(void) {
  printf("%s %d\n", dsv4rt_version(), (int)dsv4rt_c_api_version());
  if (strcmp(dsv4rt_version(), DSV4RT_EXPECTED_VERSION) != 0) return 1;
  if (dsv4rt_c_api_version() != DSV4RT_C_API_VERSION) return 2;

  dsv4rt_engine_options options;
  if (dsv4rt_engine_options_init(&options, sizeof options) != DSV4RT_OK) return 3;
  options.checkpoint = "no-such-checkpoint";
  options.max_sequences = 1;
  options.max_context_tokens = 256;
  options.max_step_tokens = 16;
  dsv4rt_engine* engine = NULL;
  char message[256] = "";
  const dsv4rt_status status = dsv4rt_engine_create(&options, &engine, message, sizeof message);
  printf("%s: %s\n", dsv4rt_status_name(status), message);
  if (status == DSV4RT_OK || engine != NULL) return 4;
  return strstr(message, "no-such-checkpoint") != NULL ? 0 : 5;
}
