// Text of a page: escaping, and numbers as people read them.
//
// A number that comes from the document is wrapped in <span data-json="/run/..." data-scale="...">: what it was before
// it was rounded can be looked up, and a test does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "report/document.h"

namespace dsv4rt::report {

// For contents of elements and for attributes in double quotes. Control characters and bytes that are no UTF-8 are
// replaced.
std::string escaped(std::string_view text);

// "13,732,944"
std::string count_text(std::int64_t value);
// About four digits, never an exponent below 1e15: "0.0123", "4.510", "227.1", "13,733".
std::string number_text(double value);
// "3.43 GiB"
std::string bytes_text(double bytes);
// Digits after the decimal point as given, with commas.
std::string fixed_text(double value, int digits);

// Numbers of the document, with their pointers.
std::string shown_count(const Field& field);
std::string shown_number(const Field& field, double scale = 1);
std::string shown_share(const Field& field, int digits = 2);  // "21.57 %" of 0.2157
std::string shown_text(const Field& field);                   // escaped
// The field if it is there and not null, otherwise "-".
std::string shown_count_or_dash(const Field& object, std::string_view key);
std::string shown_number_or_dash(const Field& object, std::string_view key);

// Width of a line of text in a sans-serif font of that size: an upper bound for common ones.
double text_width_px(std::string_view text, double font_px);

}  // namespace dsv4rt::report
