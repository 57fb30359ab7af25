// dsv4rt doctor: what this machine and this build can do together, and what is missing.

#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>
#include <unistd.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_report.h"
#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_devices.h"
#include "backend/cuda/kernel_report.h"
#endif
#include "backend/linear_precision_name.h"
#include "backend/row_ops.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "command.h"
#include "dsv4rt/version.h"
#include "layout/row_format.h"
#include "outputs.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorFlags {
  bool kernels = false;
  std::string config;
  std::int64_t context = 0;
  std::string cache_format = "fp8_ds_mla";
  std::string index_format = "mxfp4";
  std::string linear_precision = "exact";
  std::string json;
  Outputs outputs;
};

std::int64_t host_memory_bytes() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

// One RMSNorm on the backend: memory, copies and a kernel.
Result<std::vector<std::uint16_t>> small_computation(Backend& backend) {
  constexpr int kTokens = 3;
  constexpr int kWidth = 512;
  const SyntheticStream stream(1, "doctor");
  std::vector<bf16> x(kTokens * kWidth);
  std::vector<bf16> weight(kWidth);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(stream.normal(i));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = to_bf16(1.0F + stream.normal(x.size() + i) / 8);
  const std::size_t x_bytes = x.size() * sizeof(bf16);
  const std::size_t weight_bytes = weight.size() * sizeof(bf16);
  DSV4RT_ASSIGN_OR_RETURN(const Buffer x_memory, backend.allocate(x_bytes, "doctor input"));
  DSV4RT_ASSIGN_OR_RETURN(const Buffer weight_memory, backend.allocate(weight_bytes, "doctor weight"));
  DSV4RT_RETURN_IF_ERROR(backend.upload(x_memory.data(), x.data(), x_bytes));
  DSV4RT_RETURN_IF_ERROR(backend.upload(weight_memory.data(), weight.data(), weight_bytes));
  DSV4RT_RETURN_IF_ERROR(backend.row_ops().rms_norm({.tokens = kTokens,
                                                     .width = kWidth,
                                                     .x = x_memory.as<bf16>(),
                                                     .weight = weight_memory.as<bf16>(),
                                                     .eps = 1e-6F,
                                                     .y = x_memory.as<bf16>()}));
  std::vector<std::uint16_t> y(x.size());
  DSV4RT_RETURN_IF_ERROR(backend.download(y.data(), x_memory.data(), x_bytes));
  return y;
}

Result<std::vector<std::uint16_t>> cpu_result() {
  DSV4RT_ASSIGN_OR_RETURN(const auto backend, create_cpu_backend({.threads = 1, .max_isa = {}, .on_warning = {}}));
  return small_computation(*backend);
}

// Status as JSON: null when ok.
Json problem(const Status& status) {
  return status.ok() ? Json(nullptr) : Json(status.message());
}

#if defined(DSV4RT_HAVE_CUDA)
// Whether the device computes what the CPU computes: one BF16 code apart at most.
Status self_test(int device) {
  DSV4RT_ASSIGN_OR_RETURN(const auto backend, create_cuda_backend({.device = device}));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::uint16_t> ours, small_computation(*backend));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::uint16_t> reference, cpu_result());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const int apart = int{ours[i]} - int{reference[i]};
    if (apart < -1 || apart > 1) {
      return {StatusCode::kMismatch, "self-test: value " + std::to_string(i) + " differs from the CPU's"};
    }
  }
  return {};
}

Json device_json(const CudaDeviceReport& device, const Status& test) {
  return {{"ordinal", device.ordinal},
          {"name", device.name},
          {"compute_capability", std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor)},
          {"memory_bytes", device.memory_bytes},
          {"free_bytes", device.free_bytes},
          {"multiprocessors", device.multiprocessors},
          {"l2_bytes", device.l2_bytes},
          {"sm90a", device.has_sm90a},
          {"nvfp4_products", device.has_nvfp4_products},
          {"usable", test.ok()},
          {"problem", problem(test)}};
}

Json cuda_report() {
  const CudaSystem system = inspect_cuda();
  Json report{{"built", true},
              {"architectures", system.architectures},
              {"toolkit", system.toolkit_version},
              {"cublaslt", system.cublaslt_version},
              {"cublaslt_problem", problem(system.cublaslt_found)},
              {"driver_supports", system.driver_version},
              {"driver_module", nvidia_driver_version()},
              {"problem", problem(system.devices_found)},
              {"devices", Json::array()}};
  for (const CudaDeviceReport& device : system.devices) {
    const Status test = device.usable.ok() ? self_test(device.ordinal) : device.usable;
    report["devices"].push_back(device_json(device, test));
  }
  return report;
}
#else
Json cuda_report() {
  return {{"built", false},
          {"driver_module", nvidia_driver_version()},
          {"problem", "this build has no CUDA backend; configure with DSV4RT_CUDA=ON (docs/development.md)"},
          {"devices", Json::array()}};
}
#endif

Json doctor_report() {
  const BuildInfo build = build_info();
  const Status cpu = cpu_result().status();
  Json report{{"version", build.version},
              {"compiler", build.compiler},
              {"cpu",
               {{"isa", build.cpu_isa},
                {"threads", std::thread::hardware_concurrency()},
                {"memory_bytes", host_memory_bytes()},
                {"usable", cpu.ok()},
                {"problem", problem(cpu)}}},
              {"cuda", cuda_report()}};
  Json& formats = report["formats"];
  using enum RowFormat;
  for (const RowFormat format : {kFp8DsMla, kFp8Row, kNvfp4, kBf16}) {
    formats["rows"].push_back(row_format_name(format));
  }
  for (const IndexKeyFormat format :
       {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
    formats["index_keys"].push_back(index_key_format_name(format));
  }
  formats["weights"] = {"fp8", "bf16", "nvfp4"};
  report["usable_backends"] = Json::array();
  if (cpu.ok()) report["usable_backends"].push_back("cpu");
  for (const Json& device : report["cuda"]["devices"]) {
    if (device["usable"].get<bool>()) {
      report["usable_backends"].push_back("cuda");
      break;
    }
  }
  return report;
}

void add_uses(Json& kernels, const char* backend, const Json& device, const std::vector<KernelUse>& uses) {
  for (const KernelUse& use : uses) {
    kernels.push_back({{"backend", backend},
                       {"device", device},
                       {"operation", use.operation},
                       {"steps", use.steps},
                       {"kernel", use.kernel},
                       {"slow", use.slow}});
  }
}

// A value that a flag gave, or an error that names the flag.
template <class T>
Result<T> named(const char* flag, Result<T> value) {
  if (value.ok()) return value;
  return Status{value.status().code(), std::string(flag) + ": " + value.status().message()};
}

// What serves which operation here: on the CPU of any model, on GPUs of the config's.
Result<Json> kernels_report(const DoctorFlags& flags, const Json& cuda) {
  Json kernels = Json::array();
  add_uses(kernels, "cpu", nullptr, cpu_kernel_uses(cpu::detect_isa_level()));
  if (flags.config.empty()) return kernels;
  KernelQuestion question;
  DSV4RT_ASSIGN_OR_RETURN(question.config, ModelConfig::from_file(flags.config));
  DSV4RT_ASSIGN_OR_RETURN(question.row_format, named("--cache-format", row_format_from_name(flags.cache_format)));
  DSV4RT_ASSIGN_OR_RETURN(question.index_format,
                          named("--index-format", index_key_format_from_name(flags.index_format)));
  DSV4RT_ASSIGN_OR_RETURN(question.linear_precision,
                          named("--linear-precision", linear_precision_from_name(flags.linear_precision)));
  if (question.linear_precision == LinearPrecision::kNvfp4) {
    return Status{StatusCode::kInvalidArgument,
                  "--linear-precision: nvfp4, with --kernels: cuBLASLt chooses kernels by each product's shape; "
                  "accepted: exact, fp8"};
  }
  if (flags.context > 0) question.context_tokens = flags.context;
#if defined(DSV4RT_HAVE_CUDA)
  for (const Json& device : cuda["devices"]) {
    if (!device["usable"].get<bool>()) continue;
    DSV4RT_ASSIGN_OR_RETURN(const auto uses, cuda_kernel_uses(device["ordinal"].get<int>(), question));
    add_uses(kernels, "cuda", device["ordinal"], uses);
  }
#else
  static_cast<void>(cuda);
#endif
  return kernels;
}

std::string joined(const Json& names) {
  std::string text;
  for (const Json& name : names) text += (text.empty() ? "" : ", ") + name.get<std::string>();
  return text.empty() ? "none" : text;
}

std::string text_or(const Json& value, const char* otherwise) {
  return value.is_string() && !value.get_ref<const std::string&>().empty() ? value.get<std::string>() : otherwise;
}

// A Hopper device in a build without its kernels.
bool lacks_sm90a(const Json& device) {
  return device["compute_capability"] == "9.0" && !device["sm90a"].get<bool>();
}

void print_kernels(const Json& kernels, const DoctorFlags& flags) {
  TextTable table({"backend", "operation", "steps", "kernel", "slow"});
  std::vector<std::string> notes;
  for (const Json& use : kernels) {
    std::string note;
    if (const auto slow = use["slow"].get<std::string>(); !slow.empty()) {
      const auto found = std::find(notes.begin(), notes.end(), slow);
      note = "(" + std::to_string(found - notes.begin() + 1) + ")";
      if (found == notes.end()) notes.push_back(slow);
    }
    const std::string device = use["device"].is_null() ? "" : " " + std::to_string(use["device"].get<int>());
    table.add_row({use["backend"].get<std::string>() + device, use["operation"].get<std::string>(),
                   use["steps"].get<std::string>(), use["kernel"].get<std::string>(), note});
  }
  std::cout << table.to_string();
  for (std::size_t i = 0; i < notes.size(); ++i) std::cout << "(" << i + 1 << ") " << notes[i] << "\n";
  const auto on_gpu = [](const Json& use) { return use["backend"] == "cuda"; };
  if (flags.config.empty()) {
    std::cout << "kernels of GPUs depend on the model: --config FILE\n";
  } else if (std::none_of(kernels.begin(), kernels.end(), on_gpu)) {
    std::cout << "no GPU is usable here, so there are no kernels of one\n";
  }
}

void print_cuda(const Json& cuda) {
  if (cuda["built"].get<bool>()) {
    std::cout << "cuda: built for " << cuda["architectures"].get<std::string>() << ", toolkit "
              << cuda["toolkit"].get<std::string>()
              << "\ndriver: " << text_or(cuda["driver_module"], "no NVIDIA module") << ", serves CUDA "
              << text_or(cuda["driver_supports"], "-") << "\n"
              << "for --linear-precision nvfp4: " << text_or(cuda["cublaslt_problem"], "cuBLASLt ")
              << text_or(cuda["cublaslt"], "") << "\n";
  } else {
    std::cout << "driver: " << text_or(cuda["driver_module"], "no NVIDIA module") << "\n";
  }
  if (cuda["problem"].is_string()) std::cout << "cuda: " << cuda["problem"].get<std::string>() << "\n";
  if (cuda["devices"].empty()) return;
  TextTable table({"device", "name", "capability", "memory", "free", "SMs", "L2", "NVFP4 products", "state"});
  for (const Json& device : cuda["devices"]) {
    table.add_row({std::to_string(device["ordinal"].get<int>()), device["name"].get<std::string>(),
                   device["compute_capability"].get<std::string>(), human_bytes(device["memory_bytes"].get<double>()),
                   human_bytes(device["free_bytes"].get<double>()),
                   std::to_string(device["multiprocessors"].get<int>()), human_bytes(device["l2_bytes"].get<double>()),
                   device["nvfp4_products"].get<bool>() ? "yes" : "no",
                   text_or(device["problem"], lacks_sm90a(device) ? "usable, slowly: no code for 90a" : "usable")});
  }
  std::cout << table.to_string();
}

Status doctor(const DoctorFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  Provenance provenance;
  if (!flags.json.empty() && !flags.config.empty()) DSV4RT_RETURN_IF_ERROR(provenance.add_file(flags.config));
  Json report = doctor_report();
  const std::string& json = flags.json;
  if (flags.kernels) {
    DSV4RT_ASSIGN_OR_RETURN(report["kernels"], kernels_report(flags, report["cuda"]));
  }
  if (json != "-") {
    const Json& cpu = report["cpu"];
    std::cout << "dsv4rt " << report["version"].get<std::string>() << ", " << report["compiler"].get<std::string>()
              << "\ncpu: " << cpu["isa"].get<std::string>() << ", " << cpu["threads"] << " threads, "
              << human_bytes(cpu["memory_bytes"].get<double>()) << ", " << text_or(cpu["problem"], "usable") << "\n";
    print_cuda(report["cuda"]);
    std::cout << "rows: " << joined(report["formats"]["rows"])
              << "\nindex keys: " << joined(report["formats"]["index_keys"])
              << "\nweights: " << joined(report["formats"]["weights"])
              << "\nusable backends: " << joined(report["usable_backends"]) << "\n";
    if (flags.kernels) print_kernels(report["kernels"], flags);
  }
  if (!json.empty()) {
    DSV4RT_RETURN_IF_ERROR(write_json_report(report, provenance, json, flags.outputs.existing()));
  }
  if (report["usable_backends"].empty()) return {StatusCode::kInternal, "no backend is usable"};
  return {};
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand("doctor", "Show what this machine and this build can do");
  CLI::Option* kernels = command->add_flag("--kernels", flags->kernels, "Also show which kernels serve");
  CLI::Option* config =
      command->add_option("--config", flags->config, "config.json of the model that GPUs are to serve")->needs(kernels);
  command->add_option("--context", flags->context, "Longest sequence of a step in tokens; default 8192")
      ->needs(kernels);
  command->add_option("--cache-format", flags->cache_format, "Rows: fp8_ds_mla, fp8_row, nvfp4 or bf16")
      ->needs(config)
      ->capture_default_str();
  command->add_option("--index-format", flags->index_format, "Index keys: mxfp4, nvfp4, fp8 or bf16")
      ->needs(config)
      ->capture_default_str();
  command->add_option("--linear-precision", flags->linear_precision, "Products of FP8 weights: exact or fp8")
      ->needs(config)
      ->capture_default_str();
  command->add_option("--json", flags->json, "Write as JSON to a file, or - for stdout");
  flags->outputs.add_to(*command, {"--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return doctor(*flags); }; });
}

}  // namespace dsv4rt::cli
