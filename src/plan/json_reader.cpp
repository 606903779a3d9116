// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/json_reader.hpp"

#include <algorithm>

namespace tangram {

void JsonReader::expect_keys(std::initializer_list<const char*> keys,
                             std::initializer_list<const char*> optional) const {
  require(value_->is_object(), "plan_from_json: {} must be an object (got {})", path_, value_->type_name());
  for (const auto& item : value_->items()) {
    const auto known = [&](const auto& list) { return std::find(list.begin(), list.end(), item.key()) != list.end(); };
    require(known(keys) || known(optional), "plan_from_json: {} has an unknown key '{}'", path_, item.key());
  }
  for (const char* key : keys) {
    require(value_->contains(key), "plan_from_json: {} must have the key '{}'", path_, key);
  }
}

int64_t JsonReader::integer(int64_t min, int64_t max) const {
  require(value_->is_number_integer() && !(value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX),
          "plan_from_json: {} must be a whole number of 64 bits (got {})", path_, brief());
  const int64_t number = value_->get<int64_t>();
  require(min <= number && number <= max, "plan_from_json: {} must lie in [{}, {}] (got {})", path_, min, max, number);
  return number;
}

uint64_t JsonReader::unsigned_integer() const {
  require(value_->is_number_unsigned(), "plan_from_json: {} must be a whole number, not negative (got {})", path_,
          brief());
  return value_->get<uint64_t>();
}

std::string JsonReader::brief() const {
  constexpr size_t kMaxLength = 80;
  std::string text = value_->dump();
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + "...";
  return text;
}

}  // namespace tangram
