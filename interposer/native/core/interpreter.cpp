// What a thread's host time goes into between our calls: Python functions and operators, counted, not timed.
//
// The time that this machine takes for them says little about the server that is emulated, and differs from run to run.
// How often a function is entered, or an operator called, does not change. What that costs depends on whether the same
// code is still in the processor's caches: an optimizer's loop over its parameters stays there, a step's way through a
// framework does not. So a piece of code has an age: what the thread has fetched since that code last ran. A function
// or an operator that was not warm itself counts one. A launch, a library call and a wait for a whole device count more
// (`host.ages` of server.conf), for the code that they take. Warm code pushes nothing out, however often it runs. So
// the accessors that ZeRO-3 calls in loops for each parameter stay warm, and the hooks that FSDP runs once a layer in
// autograd's thread, between library calls, are as cold as on a real host. After a device-wide wait, caches are cold:
// what a step does first after such a wait takes longer than the same in its second layer.
//
// All figures come from the host cost table of the run (simcore's data/host_cost.yaml says what they are fitted to) by
// way of server.conf; the shim has none of its own. docs/costs.md, "The host", describes the model.
//
// Importing a module costs nothing: it is no part of a step, and how often code is entered there depends on the order
// of sets, which differs from process to process.
//
// Entries are seen by the hook that CPython has for that (PEP 523, since 3.11 the same in all versions); torch's
// compiler puts itself in front of it and calls it in turn. Operators are told by the torch plugin.
#include <dlfcn.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "internal.h"

namespace eidolon {
namespace {

// What it costs to run code whose last run, by this thread, was at most `warm` ago, at most `cold`, at most `rare`, or
// more. Warm code ages nothing.
struct Costs {
  uint64_t warm, cold, rare;
  int64_t warm_ns, cold_ns, rare_ns, far_ns;

  int64_t of(uint64_t ago) const {
    return ago <= warm ? warm_ns : ago <= cold ? cold_ns : ago <= rare ? rare_ns : far_ns;
  }
};
// By how much each of these ages the code that ran before.
struct Ages {
  uint64_t launch, library, device_wait;
};

constexpr const char *kAges = "%" SCNu64 " %" SCNu64 " %" SCNu64;
constexpr const char *kTimes = " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64;

// Nothing is charged without a core, so server.conf needs no figures then.
const char *figures(ConfKey key) {
  const char *text = setting(key);
  if (text == nullptr && config().active && !config().null_core)
    fatal("server.conf: %s is missing: mode=core needs the figures of the host cost table", key.text());
  return text;
}
Costs costs(ConfKey key) {
  Costs c{};
  const char *text = figures(key);
  if (text != nullptr && sscanf(text, (std::string(kAges) + kTimes).c_str(), &c.warm, &c.cold, &c.rare, &c.warm_ns,
                                &c.cold_ns, &c.rare_ns, &c.far_ns) != 7)
    fatal("server.conf: %s=%s: three ages and four times in ns are allowed", key.text(), text);
  return c;
}
const Costs &function_costs() {
  static const Costs read = costs("host.function");
  return read;
}
const Costs &operator_costs() {
  static const Costs read = costs("host.operator");
  return read;
}
const Ages &ages() {
  static const Ages read = [] {
    Ages a{};
    const char *text = figures("host.ages");
    if (text != nullptr && sscanf(text, kAges, &a.launch, &a.library, &a.device_wait) != 3)
      fatal("server.conf: host.ages=%s: the ages of a launch, a library call and a device-wide wait are allowed", text);
    return a;
  }();
  return read;
}

struct ThreadState; // CPython's, all three opaque
struct Frame;
struct Object;
using Evaluate = Object *(*)(ThreadState *, Frame *, int);

struct Python {
  Evaluate evaluate;
  Object *(*code_of_frame)(Frame *);            // since 3.12
  Object *(*attribute)(Object *, const char *); // this and the one before: a new reference
  const char *(*text)(Object *);
  void (*drop)(Object *);
} python;

bool has_text(Object *object, const char *name, const char *wanted) {
  Object *value = python.attribute(object, name);
  const bool found = value != nullptr && strcmp(python.text(value), wanted) == 0;
  if (value != nullptr)
    python.drop(value);
  return found;
}

constexpr uint64_t kNever = UINT64_MAX;

// When a thread last ran each piece of code: a hash table by its address.
class Runs {
public:
  struct Run {
    uint64_t ago;  // when this code ran last; kNever: it did not
    uint8_t *note; // what is remembered of this code, 0 at first
  };

  Run run(const void *code, uint64_t now) {
    if (2 * used_ >= slots_.size())
      grow();
    Slot &slot = find(code);
    const bool first = slot.code == nullptr;
    used_ += first;
    slot.code = code;
    const uint64_t last = std::exchange(slot.last, now);
    return {first ? kNever : now - last, &slot.note};
  }

private:
  struct Slot {
    const void *code = nullptr;
    uint64_t last = 0;
    uint8_t note = 0;
  };

  Slot &find(const void *code) {
    size_t at = reinterpret_cast<uintptr_t>(code) * 0x9E3779B97F4A7C15ULL >> 32;
    for (;; ++at)
      if (Slot &slot = slots_[at & (slots_.size() - 1)]; slot.code == code || slot.code == nullptr)
        return slot;
  }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 1024 : 2 * slots_.size()));
    for (const Slot &slot : old)
      if (slot.code != nullptr)
        find(slot.code) = slot;
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

thread_local int64_t spent_ns = 0;   // not taken yet
thread_local bool runs_gone = false; // Python runs while a thread's objects are destroyed, too
struct ThreadRuns {
  Runs functions, operators;
  uint64_t now = 0; // what the thread has fetched so far
  ~ThreadRuns() { runs_gone = true; }
};
thread_local ThreadRuns runs;
thread_local bool importing = false;

// That the thread runs code now: fetched, unless it was warm.
Runs::Run fetch(Runs &of, const void *code, const Costs &cost) {
  const Runs::Run run = of.run(code, runs.now);
  runs.now += run.ago > cost.warm;
  return run;
}

Object *code_of(Frame *frame) {        // borrowed: the frame holds it
  if (python.code_of_frame == nullptr) // 3.11 has no function for it; its layout is final
    return reinterpret_cast<Object *const *>(frame)[4];
  Object *code = python.code_of_frame(frame);
  python.drop(code);
  return code;
}

// What is remembered of a function. Importing a module costs nothing, nor does what happens in it. Functions of the
// hook cost nothing: of some neither does what they call (kHooks), of others that costs what it costs (kBetween).
enum : uint8_t { kCounts, kImports, kHooks, kBetween };

// Whether a function is how Python imports a module.
bool imports(Object *code) {
  return has_text(code, "co_name", "_find_and_load") && has_text(code, "co_filename", "<frozen importlib._bootstrap>");
}

// Whether the hook put a function between the program and torch, so that the program would not have called it.
bool is_hooks(Object *code) { return has_text(code, "co_name", "eidolon_uncounted"); }
bool is_between(Object *code) { return has_text(code, "co_name", "eidolon_between"); }

uint8_t kind_of(Object *code) {
  return imports(code) ? kImports : is_hooks(code) ? kHooks : is_between(code) ? kBetween : kCounts;
}

Object *enter(ThreadState *state, Frame *frame, int exception) {
  if (runs_gone || importing)
    return python.evaluate(state, frame, exception);
  Object *code = code_of(frame);
  const Costs &cost = function_costs();
  const Runs::Run run = fetch(runs.functions, code, cost);
  if (run.ago == kNever)
    *run.note = kind_of(code);
  if (*run.note == kHooks || *run.note == kBetween)
    runs.now -= run.ago > cost.warm;
  importing = *run.note == kImports || *run.note == kHooks;
  if (*run.note == kCounts)
    spent_ns += cost.of(run.ago);
  Object *result = python.evaluate(state, frame, exception);
  importing = false;
  return result;
}

template <typename F> bool find(const char *name, F *function) {
  void *symbol = dlsym(RTLD_DEFAULT, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != nullptr;
}

} // namespace

void count_operator(const void *op) {
  if (runs_gone || importing)
    return;
  const Costs &cost = operator_costs();
  spent_ns += cost.of(fetch(runs.operators, op, cost).ago);
}

static void age(uint64_t by) {
  if (!runs_gone)
    runs.now += by;
}

void count_launch() { age(ages().launch); }

void count_library_call() { age(ages().library); }

void count_device_wait() { age(ages().device_wait); }

int64_t take_interpreter_ns() { return std::exchange(spent_ns, 0); }

extern "C" int eidolon_follow_python(void) {
  struct State; // CPython's interpreter
  State *(*current)(void);
  Evaluate (*get)(State *);
  void (*set)(State *, Evaluate);
  const unsigned long *version;
  constexpr unsigned long k311 = 0x030B0000, k312 = 0x030C0000;
  if (!config().active || config().null_core || config().measured_host || python.evaluate != nullptr ||
      !find("Py_Version", &version) || *version < k311 || !find("PyInterpreterState_Get", &current) ||
      !find("_PyInterpreterState_GetEvalFrameFunc", &get) || !find("_PyInterpreterState_SetEvalFrameFunc", &set) ||
      !find("PyObject_GetAttrString", &python.attribute) || !find("PyUnicode_AsUTF8", &python.text) ||
      !find("Py_DecRef", &python.drop) ||
      (*version >= k312 && !find("PyUnstable_InterpreterFrame_GetCode", &python.code_of_frame)))
    return 0;
  State *state = current();
  python.evaluate = get(state);
  set(state, enter);
  return 1;
}

} // namespace eidolon
