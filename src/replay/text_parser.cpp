#include "replay/text_parser.h"

#include "base/try.h"

namespace dsv4rt::replay {
namespace {

using Json = nlohmann::json;

// The text of `object[key]`, or nothing.
const std::string* text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? &found->get_ref<const std::string&>() : nullptr;
}

}  // namespace

std::int64_t estimate_tokens(std::string_view text) noexcept {
  std::int64_t words = 0;
  std::int64_t other_characters = 0;
  bool in_word = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (byte < 0x80) {
      if (!space && !in_word) ++words;
      in_word = !space;
    } else {
      in_word = false;
      if ((byte & 0xc0) != 0x80) ++other_characters;  // the first byte of a character
    }
  }
  return (words * 4 + 2) / 3 + other_characters;
}

TextParser::TextParser(Kind kind, RecordErrors& errors) : kind_(kind), errors_(errors) {
  info_.format = kind == Kind::kOpenAiBatch ? "openai_batch" : "sharegpt";
  info_.arrival_times = false;
  info_.arrivals_ordered = false;
  info_.lengths_estimated = true;
}

Status TextParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(record, errors_));
  const JsonFields fields(document.root(), errors_);
  return kind_ == Kind::kOpenAiBatch ? parse_batch(fields, out) : parse_conversation(fields, out);
}

Result<std::int64_t> TextParser::content_tokens(const Json& content, const std::string& field) {
  if (content.is_string()) return estimate_tokens(content.get_ref<const std::string&>());
  if (content.is_null()) return std::int64_t{0};  // an answer that was only a tool call
  if (!content.is_array()) {
    return errors_.refuse_field(BadReason::kWrongType, field, describe_json(content), "text or an array of parts");
  }
  std::int64_t tokens = 0;
  for (const Json& part : content) {
    const std::string* const text = part.is_object() ? text_of(part, "text") : nullptr;
    if (text == nullptr) {
      return errors_.refuse_field(BadReason::kUnsupported, field, "a part without text", "parts with text");
    }
    tokens += estimate_tokens(*text);
  }
  return tokens;
}

Status TextParser::parse_batch(const JsonFields& fields, std::vector<ParsedRequest>& out) {
  ParsedRequest parsed;
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.id, fields.name("custom_id"));
  DSV4RT_ASSIGN_OR_RETURN(const Json* const body, fields.object("body"));
  const JsonFields body_fields(*body, errors_, "body.");
  DSV4RT_ASSIGN_OR_RETURN(
      parsed.request.output_tokens,
      body_fields.tokens(body_fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens"));
  if (body_fields.has("prompt")) {
    DSV4RT_ASSIGN_OR_RETURN(parsed.request.input_tokens, content_tokens((*body)["prompt"], "body.prompt"));
  } else {
    DSV4RT_ASSIGN_OR_RETURN(const Json* const messages, body_fields.array("messages"));
    for (std::size_t i = 0; i < messages->size(); ++i) {
      const Json& message = (*messages)[i];
      const std::string field = "body.messages[" + std::to_string(i) + "]";
      if (!message.is_object() || !message.contains("content")) {
        return errors_.refuse_field(BadReason::kMissingField, field + ".content", "missing", "text");
      }
      DSV4RT_ASSIGN_OR_RETURN(const std::int64_t tokens, content_tokens(message["content"], field + ".content"));
      parsed.request.input_tokens += tokens;
    }
  }
  out.push_back(std::move(parsed));
  return {};
}

Status TextParser::parse_conversation(const JsonFields& fields, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const Json* const turns, fields.array("conversations"));
  std::string id = "line " + std::to_string(errors_.line());
  if (fields.has("id")) {
    DSV4RT_ASSIGN_OR_RETURN(id, fields.name("id"));
  }
  const std::int64_t session = sessions_++;
  std::int64_t tokens_before = 0;
  for (std::size_t i = 0; i < turns->size(); ++i) {
    const Json& turn = (*turns)[i];
    const std::string field = "conversations[" + std::to_string(i) + "]";
    const std::string* const from = turn.is_object() ? text_of(turn, "from") : nullptr;
    const std::string* const value = turn.is_object() ? text_of(turn, "value") : nullptr;
    if (from == nullptr || value == nullptr) {
      return errors_.refuse_field(BadReason::kMissingField, field, describe_json(turn), "an object of from and value");
    }
    const std::int64_t tokens = estimate_tokens(*value);
    if (*from == "gpt" || *from == "assistant") {
      ParsedRequest parsed;
      parsed.request.id = id + "#" + std::to_string(i);
      parsed.request.session = session;
      parsed.request.input_tokens = tokens_before;
      parsed.request.output_tokens = tokens;
      out.push_back(std::move(parsed));
    }
    tokens_before += tokens;
  }
  return {};
}

}  // namespace dsv4rt::replay
