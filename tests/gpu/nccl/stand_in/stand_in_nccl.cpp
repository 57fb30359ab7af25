#include "gpu/nccl/stand_in/stand_in_nccl.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <utility>
#include <vector>

namespace dsv4rt::test {

StandInNccl& stand_in_nccl() {
  static StandInNccl made;
  return made;
}

namespace {

constexpr auto kPatience = std::chrono::seconds(2);

enum class Kind { kGather, kBroadcast, kSend, kReceive };
struct Operation {
  Kind kind;
  const void* from;
  void* to;
  std::size_t bytes;
  int peer;  // root of a broadcast
  void* stream;
};

// The ranks of one unique id.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int here = 0;  // at the present meeting
  int meeting = 0;
  bool ended = false;
  std::vector<std::vector<Operation>> operations;  // index: rank

  // Whether all came.
  bool meet() {
    std::unique_lock lock(mutex);
    if (ended) return false;
    const int mine = meeting;
    if (++here == size) {
      here = 0;
      ++meeting;
      changed.notify_all();
      return true;
    }
    changed.wait_for(lock, kPatience, [&] { return meeting != mine || ended; });
    if (meeting != mine) return true;
    ended = true;  // who comes later finds nobody
    changed.notify_all();
    return false;
  }
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;

bool fails(const char* name) {
  StandInNccl& control = stand_in_nccl();
  return control.failing == name && control.until_failure > 0 && --control.until_failure == 0;
}

}  // namespace
}  // namespace dsv4rt::test

using namespace dsv4rt::test;

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  std::vector<void*> stuck;
};

namespace {

thread_local int group_depth = 0;
thread_local ncclComm_t group_comm = nullptr;
thread_local std::vector<Operation> group;
thread_local bool group_failed = false;

std::vector<const Operation*> collectives(const std::vector<Operation>& operations) {
  std::vector<const Operation*> found;
  for (const Operation& one : operations) {
    if (one.kind == Kind::kGather || one.kind == Kind::kBroadcast) found.push_back(&one);
  }
  return found;
}

std::vector<const Operation*> messages(const std::vector<Operation>& operations, Kind kind, int peer) {
  std::vector<const Operation*> found;
  for (const Operation& one : operations) {
    if (one.kind == kind && one.peer == peer) found.push_back(&one);
  }
  return found;
}

bool match(const World& world) {
  const auto first = collectives(world.operations[0]);
  for (const auto& operations : world.operations) {
    const auto others = collectives(operations);
    if (others.size() != first.size()) return false;
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (others[i]->kind != first[i]->kind || others[i]->bytes != first[i]->bytes || others[i]->peer != first[i]->peer)
        return false;
    }
  }
  for (int from = 0; from < world.size; ++from) {
    for (int to = 0; to < world.size; ++to) {
      const auto sent = messages(world.operations[static_cast<std::size_t>(from)], Kind::kSend, to);
      const auto received = messages(world.operations[static_cast<std::size_t>(to)], Kind::kReceive, from);
      if (sent.size() != received.size()) return false;
      for (std::size_t i = 0; i < sent.size(); ++i) {
        if (sent[i]->bytes != received[i]->bytes) return false;
      }
    }
  }
  return true;
}

void take(void* to, const void* from, std::size_t bytes, bool own) {
  if (to != from) stand_in_nccl().copy(to, from, bytes);
  if (!own) stand_in_nccl().bytes += static_cast<std::int64_t>(bytes);
}

ncclResult_t run(ncclComm_t comm, std::vector<Operation> operations) {
  if (operations.empty()) return ncclSuccess;
  World& world = *comm->world;
  std::vector<void*> streams;
  for (const Operation& one : operations) {
    if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) streams.push_back(one.stream);
  }
  for (void* stream : streams) stand_in_nccl().settle(stream);
  {
    const std::lock_guard lock(world.mutex);
    world.operations[static_cast<std::size_t>(comm->rank)] = operations;
  }
  if (!world.meet() || !match(world)) {
    for (void* stream : streams) stand_in_nccl().stick(stream, true);
    comm->stuck = streams;
    return ncclSuccess;  // enqueued, as far as NCCL knows
  }
  const std::vector<Operation>& own = world.operations[static_cast<std::size_t>(comm->rank)];
  std::size_t number = 0;
  std::map<int, std::size_t> received;
  for (const Operation& one : own) {
    if (one.kind == Kind::kGather) {
      for (int rank = 0; rank < world.size; ++rank) {
        const auto* theirs = collectives(world.operations[static_cast<std::size_t>(rank)])[number];
        take(static_cast<std::byte*>(one.to) + static_cast<std::size_t>(rank) * one.bytes, theirs->from, one.bytes,
             rank == comm->rank);
      }
      ++number;
    } else if (one.kind == Kind::kBroadcast) {
      const auto* theirs = collectives(world.operations[static_cast<std::size_t>(one.peer)])[number];
      take(one.to, theirs->from, one.bytes, one.peer == comm->rank);
      ++number;
    } else if (one.kind == Kind::kReceive) {
      const auto sent = messages(world.operations[static_cast<std::size_t>(one.peer)], Kind::kSend, comm->rank);
      take(one.to, sent[received[one.peer]++]->from, one.bytes, false);
    }
  }
  static_cast<void>(world.meet());  // nobody's bytes change before all have them
  return ncclSuccess;
}

ncclResult_t call(const char* name, ncclComm_t comm, const Operation& operation) {
  if (fails(name)) {
    group_failed = group_depth > 0;
    return ncclSystemError;
  }
  if (group_depth == 0) return run(comm, {operation});
  group_comm = comm;
  group.push_back(operation);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION(2, 28, 9);
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  std::memset(id, 0, sizeof(*id));
  const std::string name = "stand-in " + std::to_string(++made);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(worlds_mutex);
    auto& found = worlds[id.internal];
    if (found == nullptr) {
      found = std::make_shared<World>();
      found->size = size;
      found->operations.resize(static_cast<std::size_t>(size));
    }
    world = found;
  }
  *comm = new ncclComm{.world = world, .rank = rank, .stuck = {}};
  ++stand_in_nccl().communicators;
  return world->meet() ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++stand_in_nccl().aborted;
  {
    const std::lock_guard lock(comm->world->mutex);
    comm->world->ended = true;
    comm->world->changed.notify_all();
  }
  for (void* stream : comm->stuck) stand_in_nccl().stick(stream, false);
  std::this_thread::sleep_for(stand_in_nccl().abort_takes.load());
  return ncclCommDestroy(comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  --stand_in_nccl().communicators;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) {
  return "told to fail";
}
const char* ncclGetLastError(ncclComm_t) {
  return "by the test";
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t, ncclComm_t comm,
                           cudaStream_t stream) {
  ++stand_in_nccl().gathers;
  return call("ncclAllGather", comm, {Kind::kGather, from, to, count, 0, stream});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  ++stand_in_nccl().broadcasts;
  return call("ncclBroadcast", comm, {Kind::kBroadcast, from, to, count, root, stream});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  ++stand_in_nccl().messages;
  return call("ncclSend", comm, {Kind::kSend, from, nullptr, count, peer, stream});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclRecv", comm, {Kind::kReceive, nullptr, to, count, peer, stream});
}
ncclResult_t ncclGroupStart() {
  if (fails("ncclGroupStart")) return ncclSystemError;
  ++group_depth;
  ++stand_in_nccl().open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --stand_in_nccl().open_groups;
  if (--group_depth > 0) return ncclSuccess;
  const int calls = static_cast<int>(group.size());
  for (int most = stand_in_nccl().most_calls; calls > most;) {
    if (stand_in_nccl().most_calls.compare_exchange_weak(most, calls)) break;
  }
  std::vector<Operation> operations = std::move(group);
  group.clear();
  // A group one of whose calls has failed, or that fails itself, is not run.
  if (std::exchange(group_failed, false)) return ncclInvalidUsage;
  if (fails("ncclGroupEnd")) return ncclSystemError;
  return operations.empty() ? ncclSuccess : run(group_comm, std::move(operations));
}

}  // extern "C"
