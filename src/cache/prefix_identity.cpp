#include "cache/prefix_identity.h"

#include <string_view>

namespace dsv4rt {
namespace {

void add_number(Sha256& hash, std::uint64_t value) {
  std::byte bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  hash.update(bytes);
}

void add_framed(Sha256& hash, std::span<const std::byte> bytes) {
  add_number(hash, bytes.size());
  hash.update(bytes);
}

void add_tag(Sha256& hash, std::string_view tag) {
  add_framed(hash, std::as_bytes(std::span(tag.data(), tag.size())));
}

}  // namespace

PrefixDigest PrefixHasher::engine_digest(std::span<const std::byte> checkpoint, std::span<const std::byte> layout) {
  Sha256 hash;
  add_tag(hash, "dsv4rt prefix engine 1");
  add_framed(hash, checkpoint);
  add_framed(hash, layout);
  return hash.bytes();
}

PrefixDigest PrefixHasher::root(std::span<const std::byte> salt) {
  hash_.restart();
  add_tag(hash_, "dsv4rt prefix salt 1");
  add_framed(hash_, engine_);
  add_framed(hash_, salt);
  return hash_.finish();
}

PrefixDigest PrefixHasher::unit(const PrefixDigest& before, std::span<const std::int32_t> token_ids) {
  hash_.restart();
  add_tag(hash_, "dsv4rt prefix unit 1");
  add_framed(hash_, before);
  // Token ids are little-endian in the digest, as on every machine that this library runs on.
  add_framed(hash_, std::as_bytes(token_ids));
  return hash_.finish();
}

}  // namespace dsv4rt
