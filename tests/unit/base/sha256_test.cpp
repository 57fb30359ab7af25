// Known answers of FIPS 180-4.
#include "base/sha256.h"

#include <string>

#include <gtest/gtest.h>

#include "base/hmac_sha256.h"

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

// RFC 4231, test cases 1, 2 and 6.
TEST(HmacSha256, KnownCodes) {
  const auto code = [](const std::string& key, const std::string& text) {
    HmacSha256 hmac(bytes(key));
    hmac.update(bytes(text.substr(0, text.size() / 2)));
    hmac.update(bytes(text.substr(text.size() / 2)));
    return hex_text(hmac.finish());
  };
  EXPECT_EQ(code(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(code("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, CodesAreComparedWhole) {
  Sha256::Digest one{};
  EXPECT_TRUE(equal_codes(one, Sha256::Digest{}));
  for (std::byte& byte : one) {
    byte = std::byte{1};
    EXPECT_FALSE(equal_codes(one, Sha256::Digest{}));
    byte = std::byte{0};
  }
}

}  // namespace
}  // namespace dsv4rt
