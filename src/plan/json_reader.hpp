// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Values of a plan's text on their way in. Nothing is trusted: every kind, range and key is checked, and what is wrong
// is said with the path that led to it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/require.hpp"

namespace tangram {

using Json = nlohmann::ordered_json;

/// Most chunks that the runs of a text may expand to: the length of a text does not bound the memory it takes.
inline constexpr int64_t kMaxChunksOfRuns = 1 << 24;

/// A value with the path that led to it, for messages. All members throw InvalidArgument where the value is something
/// else. The JSON must outlive it.
class JsonReader {
 public:
  JsonReader(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  /// An object with these keys, and perhaps the optional ones.
  void expect_keys(std::initializer_list<const char*> keys, std::initializer_list<const char*> optional = {}) const;
  JsonReader operator[](const char* key) const { return {value_->at(key), path_ + "." + key}; }
  JsonReader operator[](size_t i) const { return {(*value_)[i], path_ + "[" + std::to_string(i) + "]"}; }
  size_t array_size() const {
    require(value_->is_array(), "plan_from_json: {} must be an array (got {})", path_, value_->type_name());
    return value_->size();
  }
  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }
  bool is_null() const { return value_->is_null(); }

  int64_t integer(int64_t min, int64_t max) const;
  uint64_t unsigned_integer() const;
  int small(int max = 1 << 30) const { return static_cast<int>(integer(0, max)); }
  int64_t count() const { return integer(0, INT64_MAX); }
  /// A row, or how many. Sums of them do not overflow.
  int64_t row() const { return integer(0, int64_t{1} << 31); }
  double number() const {
    require(value_->is_number(), "plan_from_json: {} must be a number (got {})", path_, value_->type_name());
    return value_->get<double>();
  }
  bool flag() const {
    require(value_->is_boolean(), "plan_from_json: {} must be true or false (got {})", path_, value_->type_name());
    return value_->get<bool>();
  }
  const std::string& text() const {
    require(value_->is_string(), "plan_from_json: {} must be a string (got {})", path_, value_->type_name());
    return value_->get_ref<const std::string&>();
  }
  /// A list of a given length.
  void expect_tuple(size_t size) const {
    require(array_size() == size, "plan_from_json: {} must have {} entries (got {})", path_, size, value_->size());
  }
  const std::string& path() const { return path_; }

 private:
  // The value for messages, cut where it is long.
  std::string brief() const;

  const Json* value_;
  std::string path_;
};

}  // namespace tangram
