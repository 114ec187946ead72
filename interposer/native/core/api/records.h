// Records of intercepted calls, and the signatures that they name.
#pragma once
#include "../abi.h"
#include "status.h"

namespace eidolon {

// Interns (kind, name, attributes) and returns its id; the definition is sent before first use. Thread-safe; ~100 ns
// when known. Attribute order matters: always pass keys in one order. Use `signature` where the kind has a struct.
EID_API uint32_t intern(const char *kind, const char *name, const Attribute *attributes, size_t n);

// The id of a signature of a kind that proto/vocabulary.toml declares: signature("cublasGemmEx",
// signatures::Gemm{...}). A name or attribute that is not declared, and an attribute that is left out, do not compile.
template <class Fields> uint32_t signature(typename Fields::Name name, const Fields &fields) {
  const auto attributes = fields.attributes();
  return intern(Fields::kKind, text_of(name), attributes.data(), attributes.size());
}

// Id of an API call's name for host costs, e.g. call_id("cudaLaunchKernel"). Use through EID_CALL.
EID_API uint16_t call_id(const char *name);
#define EID_CALL(name)                                                                                                 \
  ([]() -> uint16_t {                                                                                                  \
    static const uint16_t id = ::eidolon::call_id(name);                                                               \
    return id;                                                                                                         \
  }())

struct Stream; // streams.h

// What a library fills in to emit a record; the core adds sequence number, thread, flags and host cost.
struct Event {
  Kind kind = Kind::kHost;
  uint8_t flags = 0; // kGroupMore, kInGraph and kPayload; the core adds the others
  uint16_t call = 0;
  Stream *stream = nullptr; // nullptr: no stream
  uint32_t sig = 0;
  uint64_t value = 0;
};
struct Reply {
  Status status = 0;
  int64_t clock_ns = 0;
  int64_t value = 0;
  uint64_t seq = 0;
};
// Writes one record and returns its sequence number. No-op (0) in processes that are no rank.
EID_API uint64_t emit(const Event &event);
// Writes one record and waits for its answer. Never returns if the run failed or was stopped.
EID_API Reply ask(const Event &event);
// A host-only call: costs its host time, nothing else.
inline void host(uint16_t call) { emit({.kind = Kind::kHost, .call = call}); }

// Counts a call that is not modelled ("cusparse:cusparseSpMM") for the run's summary. Each call costs a record.
EID_API void unmodelled(const char *library, const char *function);

} // namespace eidolon
