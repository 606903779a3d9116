// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/bounded_json.hpp"

#include <algorithm>
#include <vector>

#include "core/nearest_word.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

// Builds the value from parser events and stops at the first limit. The parser itself does not recurse.
class BoundedBuilder : public nlohmann::json_sax<Json> {
 public:
  BoundedBuilder(std::string_view what, const JsonLimits& limits) : what_(what), limits_(limits) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(Json(value)) != nullptr; }
  bool number_integer(int64_t value) override { return add(Json(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(Json(value)) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(Json(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }
  bool string(std::string& value) override {
    require_short(value);
    return add(Json(std::move(value))) != nullptr;
  }
  bool key(std::string& value) override {
    require_short(value);
    require(!open_.back()->contains(value), "{}: key '{}' must not be repeated", what_, value);
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text starts with its own error number in brackets.
    std::string reason = error.what();
    if (const size_t bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    constexpr size_t kMaxReason = 200;  // it quotes what was read last, be it a number of a million digits
    if (reason.size() > kMaxReason) reason = reason.substr(0, kMaxReason) + "...";
    require(false, "{}: must be JSON (byte {}: {})", what_, position, reason);
    return false;
  }

 private:
  void require_short(const std::string& text) const {
    require(static_cast<int64_t>(text.size()) <= limits_.max_string_bytes,
            "{}: JSON strings must not exceed {} bytes (got {})", what_, limits_.max_string_bytes, text.size());
  }

  Json* add(Json value) {
    ++num_values_;
    require(num_values_ <= limits_.max_values, "{}: JSON must not hold more than {} values", what_, limits_.max_values);
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  bool open(Json container) {
    require(static_cast<int>(open_.size()) < limits_.max_depth, "{}: JSON must not nest deeper than {} levels", what_,
            limits_.max_depth);
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  JsonLimits limits_;
  Json root_;
  // Pointers stay valid: a container only grows at its end while it is the innermost open one.
  std::vector<Json*> open_;
  std::string key_;
  int64_t num_values_ = 0;
};

}  // namespace

Json parse_bounded_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  require(static_cast<int64_t>(text.size()) <= limits.max_bytes, "{}: JSON must not exceed {} bytes (got {})", what,
          limits.max_bytes, text.size());
  BoundedBuilder builder(what, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string brief(const Json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

void require_known_keys(const Json& object, std::string_view what, std::span<const std::string_view> allowed) {
  require(object.is_object(), "{}: must be a JSON object (got {})", what, object.type_name());
  for (const auto& [key, value] : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    std::string list;
    for (const std::string_view name : allowed) list += (list.empty() ? "" : ", ") + std::string(name);
    const std::string_view near = nearest_word(key, allowed);
    require(false, "{}: unknown key '{}'{}; known are {}", what, key,
            near.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", near), list);
  }
}

int64_t whole_number(const Json& value, std::string_view what, const std::string& name, int64_t min, int64_t max) {
  require(value.is_number_integer(), "{}: {} must be a whole number (got {})", what, name, brief(value));
  const bool fits = value.is_number_unsigned() ? max >= 0 && value.get<uint64_t>() <= static_cast<uint64_t>(max) &&
                                                     (min <= 0 || value.get<uint64_t>() >= static_cast<uint64_t>(min))
                                               : value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  require(fits, "{}: {} must lie in [{}, {}] (got {})", what, name, min, max, brief(value));
  return value.get<int64_t>();
}

}  // namespace tangram::cli
