// Attributes of streams, for the runtime and the driver. The priority is the stream's own. All others are hints (L2
// window, synchronisation policy, memory domain); they are kept per stream, so that asking gives back what was set.
#pragma once
#include <cstring>
#include <map>
#include <mutex>

#include "status.h"

namespace eidolon {

// The attributes that streams have, by their numbers in cudaLaunchAttributeID and CUlaunchAttributeID.
inline constexpr int kAttributeAccessPolicyWindow = 1, kAttributeSynchronizationPolicy = 3, kAttributePriority = 8,
                     kAttributeMemSyncDomainMap = 9, kAttributeMemSyncDomain = 10;

template <class Value> class StreamAttributes {
public:
  // Those of all streams in this library. They are never destroyed, since streams may be used until the process ends.
  static StreamAttributes &all() {
    static auto &attributes = *new StreamAttributes;
    return attributes;
  }

  Status get(Stream *stream, int attribute, Value *out) {
    if (!known(attribute))
      return kInvalidValue;
    std::memset(out, 0, sizeof *out);
    std::lock_guard hold(mutex_);
    auto found = values_.find({stream_id(stream), attribute});
    if (found != values_.end())
      *out = found->second;
    else if (attribute == kAttributePriority)
      out->priority = stream_priority(stream);
    else if (attribute == kAttributeSynchronizationPolicy)
      std::memcpy(out, &kPolicyAuto, sizeof kPolicyAuto);
    return kSuccess;
  }

  Status set(Stream *stream, int attribute, const Value *value) {
    if (!known(attribute) || attribute == kAttributePriority) // given when the stream is made
      return kInvalidValue;
    std::lock_guard hold(mutex_);
    values_[{stream_id(stream), attribute}] = *value;
    return kSuccess;
  }

  void copy(Stream *to, Stream *from) {
    std::lock_guard hold(mutex_);
    for (int attribute : kHints) {
      auto found = values_.find({stream_id(from), attribute});
      if (found != values_.end())
        values_[{stream_id(to), attribute}] = Value(found->second);
      else
        values_.erase({stream_id(to), attribute});
    }
  }

private:
  static constexpr int kPolicyAuto = 1;
  static constexpr int kHints[] = {kAttributeAccessPolicyWindow, kAttributeSynchronizationPolicy,
                                   kAttributeMemSyncDomainMap, kAttributeMemSyncDomain};
  static bool known(int attribute) {
    for (int hint : kHints)
      if (attribute == hint)
        return true;
    return attribute == kAttributePriority;
  }

  std::mutex mutex_;
  std::map<std::pair<uint64_t, int>, Value> values_;
};

} // namespace eidolon
