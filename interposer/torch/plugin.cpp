// The torch plugin: tells the shim which operator runs and which bytes it writes.
//
// It is a small library. There is one per torch version, because it uses torch's own classes. It is loaded into a
// process of a simulation once torch is there. A global RecordFunction callback runs at the begin and the end of every
// operator and
//
//   names it     the innermost running operator of a thread becomes a signature of kind "op" with the shapes that costs
//                depend on (operators.h); kernel, GEMM, ... signatures refer to it
//   forgets      device bytes that it writes become unknown at its begin (writes.h), so that what it copies survives
//   computes     an operator on small, known tensors is run again on the CPU at its end (compute.h), or when a payload
//                that it reads has come (deferred.h)
//   draws        small tensors of random numbers get those of torch's generator (random.h)
//   states       numbers that programs steer by, and that nobody can compute, get a default (defaults.h)
//
// A tracker in the caching allocator makes each block unknown that is handed out, so that no block shows the bytes of
// its last user. Nothing is counted here and nothing is thrown. In processes that are no rank (data loaders, forked
// children, CPU-only work) a callback only keeps its own books.
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "compute.h"
#include "core.h"
#include "defaults.h"
#include "deferred.h"
#include "levels.h"
#include "operators.h"
#include "random.h"
#include "writes.h"

// The C++ library exports this function only since GCC 11, and torch's wheels load with that of GCC 8. See
// core/glibc.c.
template std::string std::basic_stringbuf<char>::str() const &;

namespace eidolon::torch_plugin {
namespace {

// ---- the allocator -----------------------------------------------------------------------------------------------

void on_allocator_event(const c10::cuda::CUDACachingAllocator::TraceEntry &entry) {
  constexpr size_t kBlock = 512; // the allocator's smallest unit; `size_` is what was asked for
  if (entry.action_ != c10::cuda::CUDACachingAllocator::TraceEntry::ALLOC)
    return;
  void *block = reinterpret_cast<void *>(entry.addr_);
  value_unknown(block, (entry.size_ + kBlock - 1) / kBlock * kBlock);
  detail::levels.forget(block);
}

// The allocator takes trackers only after its own initialisation, which nothing announces. No bytes are known before
// the first operator on a CUDA tensor, so the tracker is added then. Allocators that take no tracker (cudaMallocAsync,
// pluggable ones) give every block back to the shim, which forgets its bytes itself.
void watch_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(on_allocator_event);
    } catch (...) {
    }
  });
}

// ---- operators ---------------------------------------------------------------------------------------------------

// An operator that a thread is running.
struct Frame {
  uint32_t outer;        // signature of the operator around it
  int exceptions;        // in flight at its begin
  const Computable *how; // nullptr: not looked at
  Pending *pending;      // nullptr: will not be computed
  Draw *draw;            // nullptr: it draws no random numbers, or too many
  uint64_t became_known; // of the thread, at its begin
  Statement otherwise;   // what its results are if they are not computed
  Leveled leveled;       // the mean of its result, in that case
  bool expects;          // told the shim what it will read
};

// What a thread keeps: the operators that it is running, and what it has seen before. It is trivially destructible,
// because operators also run in destructors of other thread-local objects.
struct Thread {
  static constexpr size_t kDepth = 128, kNames = 1024, kShapes = 2048;
  struct Name {
    const char *key; // address of the schema's name
    const Operator *op;
    const Computable *how;
    Default otherwise;
    Draws draws;
    Leveling leveling;
  };
  struct Shape {
    uint64_t hash;
    uint32_t sig;
  };
  uint32_t current; // signature of the innermost operator
  uint32_t depth;
  bool allocator_watched;
  uint64_t became_known; // how often an operator of this thread left known bytes
  Frame frames[kDepth];
  Name names[kNames];
  Shape shapes[kShapes];
};
thread_local Thread this_thread;

const Computable &computable_of(const Operator &op) {
  static auto &mutex = *new std::mutex;
  static auto &all = *new std::map<const Operator *, Computable>;
  std::lock_guard hold(mutex);
  auto found = all.find(&op);
  return found != all.end() ? found->second : all.emplace(&op, computable(op)).first->second;
}

// The description of the running function. A schema's name keeps its address. But a schema may go (torch.library) and
// another may take its place, so the texts are compared as well.
const Thread::Name &name_of(Thread &thread, const at::RecordFunction &function) {
  const char *name = function.name();
  Thread::Name &entry = thread.names[reinterpret_cast<uintptr_t>(name) * 0x9E3779B97F4A7C15ULL >> 54];
  static_assert(Thread::kNames == 1 << (64 - 54));
  if (entry.key == name && entry.op->name == name && entry.op->overload == function.overload_name())
    return entry;
  const Operator &op = describe(function);
  return entry = {name, &op, &computable_of(op), default_of(op), draws_of(op), leveling_of(op)};
}

// Decides at its begin whether an operator will be computed.
void consider(const Thread &thread, Frame &frame, const Operator &op, Inputs inputs) {
  if (!frame.how->possible)
    return;
  const Computing computing;
  // Operators with a default of their own, and their parts, leave what they read alone.
  const Frame *const end = &frame + 1;
  const bool takes_loss = !op.copies && std::none_of(+thread.frames, end, [](const Frame &outer) {
    return outer.otherwise.how != Default::kNone;
  });
  if (auto pending = begin_compute(*frame.how, op, inputs, takes_loss ? take_for_loss : nullptr)) {
    if (pending->coming)
      begin_deferred(*pending);
    frame.expects = frame.how->before;
    frame.pending = new Pending(std::move(*pending));
  }
}

// Leaves an operator. Its results become known, or what its parts left known in them is forgotten.
void conclude(Thread &thread, Frame &frame, const at::RecordFunction &function) {
  const std::unique_ptr<Pending> pending(std::exchange(frame.pending, nullptr));
  const std::unique_ptr<Draw> draw(std::exchange(frame.draw, nullptr));
  if (frame.expects)
    value_expect(-1);
  const std::vector<c10::IValue> &outputs = function.outputs();
  const size_t n = frame.how == nullptr ? 0 : frame.how->results;
  if (frame.how == nullptr || outputs.size() < n || std::uncaught_exceptions() > frame.exceptions) // it failed
    return;
  const Inputs results =
      Inputs(outputs.data(), outputs.size()).slice(outputs.size() - n, n); // a boxed call leaves the whole stack
  if (draw && n != 0) {
    const Computing computing;
    if (end_draw(*draw, results[0])) {
      ++thread.became_known;
      return;
    }
  }
  const bool forget = frame.how->launches && (pending != nullptr || frame.became_known != thread.became_known);
  bool computed = false;
  if (pending && small(results)) {
    const Computing computing;
    if (pending->coming) {
      if (n != 0) // what goes on from the result may have to do with its level
        end_level(frame.leveled, results[0]);
      end_deferred(*pending, results, stated_results(frame.otherwise, results), forget);
      ++thread.became_known;
      return;
    }
    try {
      computed = end_compute(*pending, results);
    } catch (...) { // what the CPU cannot compute stays unknown
    }
    ++thread.became_known;
  }
  if (computed)
    return;
  if (forget)
    forget_results(results);
  if (n != 0)
    end_level(frame.leveled, results[0]);
  if (state_results(frame.otherwise, results))
    ++thread.became_known;
}

uint32_t signature_of(Thread &thread, const Operator &op, const Facts &facts) {
  const uint64_t hash = facts.hash(reinterpret_cast<uintptr_t>(&op));
  Thread::Shape &entry = thread.shapes[hash % Thread::kShapes];
  if (entry.hash != hash) // with 64 bits, two shapes of one run are not expected to share a hash
    entry = {hash, intern(signatures::Op::kKind, op.name.c_str(), facts.attributes, facts.count)};
  return entry.sig;
}

void enter(Thread &thread, Frame *frame, const at::RecordFunction &function) {
  const Thread::Name &name = name_of(thread, function);
  const Operator &op = *name.op;
  if (!op.has_schema) // a named range or a Python autograd function, whose operators are seen by themselves
    return;
  count_operator(&op);
  Facts facts;
  const Inputs inputs = op.arguments_of(function.inputs());
  if (frame != nullptr) {
    frame->how = name.how;
    if (name.otherwise != Default::kNone)
      frame->otherwise = prepare(name.otherwise, op, inputs);
    if (name.leveling != Leveling::kNone) {
      const Computing computing;
      frame->leveled = begin_level(name.leveling, inputs, detail::loss_now);
    }
    consider(thread, *frame, op, inputs);
    if (name.draws != Draws::kNone)
      if (auto draw = begin_draw(name.draws, inputs))
        frame->draw = new Draw(std::move(*draw));
  }
  thread.became_known += op.overwrites;
  const bool shapes = !op.is_view && gather(op, inputs, facts);
  if (!shapes && thread.current != 0) // a part of the outer operator that costs nothing by itself
    return;
  if (!shapes)
    facts.count = 0; // by name alone
  const uint32_t sig = signature_of(thread, op, facts);
  if (sig != thread.current)
    set_operator(thread.current = sig);
  if (!shapes)
    return;
  if (!thread.allocator_watched) {
    watch_allocator();
    thread.allocator_watched = true;
  }
  apply_writes(op, inputs);
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &function) {
  if (computing)
    return nullptr;
  Thread &thread = this_thread;
  Frame *frame = thread.depth < Thread::kDepth ? &thread.frames[thread.depth] : nullptr;
  ++thread.depth;
  if (frame != nullptr)
    *frame = {.outer = thread.current,
              .exceptions = std::uncaught_exceptions(),
              .how = nullptr,
              .pending = nullptr,
              .draw = nullptr,
              .became_known = thread.became_known,
              .otherwise = {},
              .leveled = {},
              .expects = false};
  if (is_rank()) {
    try {
      enter(thread, frame, function);
    } catch (...) { // the operator runs as if it had not been seen
    }
  }
  return nullptr;
}

// Is called for every begin, on the same thread, and also when an exception leaves the operator.
void on_end(const at::RecordFunction &function, at::ObserverContext *) {
  Thread &thread = this_thread;
  if (computing || thread.depth == 0)
    return;
  if (--thread.depth >= Thread::kDepth)
    return;
  Frame &frame = thread.frames[thread.depth];
  try {
    conclude(thread, frame, function);
  } catch (...) {
  }
  if (frame.outer != thread.current)
    set_operator(thread.current = frame.outer);
}

} // namespace
} // namespace eidolon::torch_plugin

// Starts observing. Returns 1 if the process belongs to a simulation, and 0 otherwise. A second call does nothing more.
extern "C" __attribute__((visibility("default"))) int eidolon_plugin_attach(void) {
  using namespace eidolon::torch_plugin;
  static std::atomic<bool> attached{false};
  if (!eidolon::config().active)
    return 0;
  if (!attached.exchange(true))
    at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  return 1;
}
