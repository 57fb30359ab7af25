// Known answers of FIPS 180-4.
#include "base/sha256.h"

#include <string>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hash(const std::string& text) {
  Sha256 sha;
  sha.update(bytes(text));
  return sha.hex();
}

TEST(Sha256, KnownVectors) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesAndTheWholeAgree) {
  const std::string text(1000, 'x');
  for (const std::size_t piece : {1U, 63U, 64U, 65U, 999U}) {
    Sha256 sha;
    for (std::size_t at = 0; at < text.size(); at += piece) sha.update(bytes(text.substr(at, piece)));
    EXPECT_EQ(sha.hex(), hash(text));
  }
}

TEST(Sha256, FeedingContinuesAfterReading) {
  Sha256 sha;
  sha.update(bytes("a"));
  EXPECT_EQ(sha.hex(), hash("a"));
  EXPECT_EQ(sha.hex(), hash("a"));
  sha.update(bytes("bc"));
  EXPECT_EQ(sha.hex(), hash("abc"));
  Sha256 moved = std::move(sha);
  moved.update(bytes("d"));
  EXPECT_EQ(moved.hex(), hash("abcd"));
}

}  // namespace
}  // namespace dsv4rt
