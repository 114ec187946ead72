// Made from proto/vocabulary.toml by `make generate`; do not edit. docs/reference-vocabulary.md shows all of it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

// clang-format off
namespace eidolon {

inline constexpr uint32_t kAbiVersion = 3; // version of the shared memory between shim and agent; docs/adding.md says when it goes up
inline constexpr uint32_t kProtocol = 2; // version of the gRPC protocol between agent and simulation core
inline constexpr uint32_t kReplySlots = 256; // threads of a rank that can wait for an answer
inline constexpr uint32_t kCallIds = 1024; // signatures of kind call have ids below this, all others have ids from it on
inline constexpr int kMaxDevices = 64; // devices of an emulated server

// What one intercepted call was.
enum class Kind : uint8_t {
  kHost = 1, // a call that only costs host time; sig: mark
  kKernel = 2, // an operation of a library or a kernel launch; sig: kernel, gemm, conv, attention, library
  kCopy = 3, // a copy; value: bytes; sig: copy
  kSet = 4, // a fill of device memory; value: bytes; sig: set
  kEventRecord = 5, // an event is recorded on the stream; value: event key: unique per recording, never used again
  kStreamWait = 6, // the stream waits for an event; value: event key
  kCollective = 7, // one member's part in a collective, a send or a receive; value: position in its communicator; for send and recv, in its pair and direction; sig: collective
  kCallback = 8, // a host function in stream order, answered in its reply slot when it is due
  kSyncStream = 9, // blocks until all work issued to the stream before it has ended
  kSyncEvent = 10, // blocks until an event has ended; value: event key
  kSyncDevice = 11, // blocks until all work of this rank on the device has ended
  kQueryStream = 12, // asks whether all work of the stream ended at or before the caller's clock; the reply's value is 1 if so
  kQueryEvent = 13, // asks the same for an event; value: event key
  kEventTime = 14, // asks when an event, which has ended, did so; the reply's value is nanoseconds of virtual time; value: event key
  kClock = 15, // asks for the rank's clock alone
  kSleep = 16, // the host lane advances; value: nanoseconds
  kMark = 17, // a mark, such as the end of a step; it covers all device work of this rank before it; sig: mark
  kCommInit = 18, // blocks until all ranks of the communicator have made it, or have split it; sig: comm, split
  kCommDestroy = 19, // one member leaves a communicator; value: communicator id: hash of its unique id and the path of splits
  kGraphLaunch = 20, // host cost of a graph launch; its nodes follow as records with the flag in_graph
  kStreamCreate = 21, // a stream was made; not read: to the core it is a call that costs host time
  kMemory = 23, // device memory of this rank changed; value: bytes that this rank now has on the device; sig: memory
  kIdle = 24, // all foreground threads sleep outside our calls
  kResume = 25, // the first record after idle
  kOutOfMemory = 26, // an allocation was refused; value: bytes asked for
  kExit = 27, // the last record of an orderly process exit; not read: the agent tells of the end itself (RankLeft)
  kUnmodelled = 28, // calls that are not modelled; value: how many; sig: unmodelled
  kUnknownRead = 29, // the host read bytes that were never computed; value: bytes; sig: read
};

// Bits of a record's flags.
enum RecordFlag : uint8_t {
  kForeground = 1, // the thread advances the clock (law 3); others only read it
  kBlocking = 2, // the thread waits in reply slot thread until the answer is there
  kGroupMore = 4, // further members of the same NCCL group follow at once, on the same thread
  kInGraph = 8, // a node of a replayed CUDA graph: it has no host cost of its own
  kAutograd = 16, // the thread is not the main thread of its process (autograd); for step marks
  kPayload = 32, // a collective so small that its bytes are moved: a member that sends publishes one payload message (empty if no byte is known), before the record or later, and a member that receives gets one, before the answer to any later record that depends on it
};

// Types of the messages between shim and agent.
enum class MessageType : uint16_t {
  kPad = 0, // fills the rest of the ring: a message never wraps
  kSignature = 1, // u32 id, then UTF-8 text: kind, name and lines of key=integer, each ended by a newline
  kPayload = 2, // u64 sequence number of the collective's record, then its bytes (both directions): all n of them; where some are unknown, zeros for those and a mask of (n + 7) / 8 bytes (bit i % 8 of byte i / 8: byte i is known); nothing where none is known
};

// What an answer, or the end of a run, means to the rank.
enum class ReplyStatus : int32_t {
  kOk = 0, // go on
  kFailed = 1, // RingHeader::fatal says why: print it, exit with another code than 0
  kStop = 2, // the run reached its end condition: exit with 0
};

// What the reader of a value that was never computed was given.
enum class Origin : uint8_t {
  kNothing = 0, // zeros: nobody stated a default (within the shim: a true value)
  kNumber = 1, // one floating-point number that the host reads: the configured loss
  kReduction = 2, // a mean or a sum of floating-point numbers
  kLoss = 3, // a loss function's result
  kNorm = 4, // a norm, a maximum, a minimum or a deviation: 1
  kFinite = 5, // a check: all are finite, none is infinite
  kRouting = 6, // the tokens that a router sent to each expert
};

// Calling it in a constant expression is an error, and its name is the message: the word is not declared.
void this_word_is_not_in_proto_vocabulary_toml();

// One of a list of words. Made from a string literal, which is looked up when it is compiled.
template <const auto &List> class Word {
public:
  consteval Word(const char *text) : index_(find(text)) {}
  constexpr size_t index() const { return index_; }
  constexpr const char *text() const { return List[index_]; }
  friend constexpr bool operator==(Word, Word) = default;

private:
  static consteval size_t find(std::string_view text) {
    for (size_t i = 0; i < std::size(List); ++i)
      if (text == List[i])
        return i;
    this_word_is_not_in_proto_vocabulary_toml();
    return 0;
  }
  size_t index_;
};
constexpr const char *text_of(const char *text) { return text; }
template <const auto &List> constexpr const char *text_of(Word<List> word) { return word.text(); }

// By bit; to be compared without regard to case.
inline constexpr const char *kNcclAlgorithms[] = {"tree", "ring", "nvls", "nvlstree", "pat", "hierarchical"};

// By bit; to be compared without regard to case.
inline constexpr const char *kNcclProtocols[] = {"LL", "LL128", "Simple"};

struct Attribute {
  const char *key;
  int64_t value;
};

// One struct a kind of signature: its members are the kind's attributes, and all of them have to be given.
// Name is what a signature of the kind can be named: one of a list of words, or any text.
namespace signatures {

// An API call, for its cost on the host.
struct Call {
  using Name = const char *;
  static constexpr const char *kKind = "call";
  std::array<Attribute, 0> attributes() const { return {}; }
};

// An operator of the framework; other signatures refer to it by their attribute op.
inline constexpr const char *kOpAttributes[] = {
  "present",
  "bytes",
  "written",
  "tensors",
  "tensors_numel",
  "tensors_bytes",
  "in0_numel",
  "in1_numel",
  "in2_numel",
  "in3_numel",
  "in4_numel",
  "in5_numel",
  "in0_itemsize",
  "in1_itemsize",
  "in2_itemsize",
  "in3_itemsize",
  "in4_itemsize",
  "in5_itemsize",
  "in0_dtype",
  "in1_dtype",
  "in2_dtype",
  "in3_dtype",
  "in4_dtype",
  "in5_dtype",
  "in0_layout",
  "in1_layout",
  "in2_layout",
  "in3_layout",
  "in4_layout",
  "in5_layout",
  "in0_dims",
  "in1_dims",
  "in2_dims",
  "in3_dims",
  "in4_dims",
  "in5_dims",
  "in0_d0",
  "in0_d1",
  "in0_d2",
  "in0_d3",
  "in0_d4",
  "in1_d0",
  "in1_d1",
  "in1_d2",
  "in1_d3",
  "in1_d4",
  "in2_d0",
  "in2_d1",
  "in2_d2",
  "in2_d3",
  "in2_d4",
  "in3_d0",
  "in3_d1",
  "in3_d2",
  "in3_d3",
  "in3_d4",
  "in4_d0",
  "in4_d1",
  "in4_d2",
  "in4_d3",
  "in4_d4",
  "in5_d0",
  "in5_d1",
  "in5_d2",
  "in5_d3",
  "in5_d4",
  "is_causal",
  "custom_mask_type",
};
struct Op {
  static constexpr const char *kKind = "op";
  using Key = Word<kOpAttributes>;
};

// A kernel launch.
struct Kernel {
  using Name = const char *;
  static constexpr const char *kKind = "kernel";
  int64_t gx; // grid, in blocks
  int64_t gy; // grid
  int64_t gz; // grid
  int64_t bx; // block, in threads
  int64_t by; // block
  int64_t bz; // block
  int64_t smem; // dynamic shared memory; bytes
  int64_t n; // elements, from the arguments of elementwise kernels; -1 if not known
  int64_t op; // signature of the operator that launches it, 0 if none
  std::array<Attribute, 9> attributes() const { return {{{"gx", gx}, {"gy", gy}, {"gz", gz}, {"bx", bx}, {"by", by}, {"bz", bz}, {"smem", smem}, {"n", n}, {"op", op}}}; }
};

// A matrix product, or a batch of them, in column-major order as cuBLAS sees it.
struct Gemm {
  using Name = const char *;
  static constexpr const char *kKind = "gemm";
  int64_t m; // rows of the result
  int64_t n; // columns of the result
  int64_t k; // length of the sums
  int64_t batch; // how many products
  int64_t ta; // 1: the first operand is transposed
  int64_t tb; // 1: the second operand is transposed
  int64_t atype; // cudaDataType of the operands
  int64_t ctype; // cudaDataType of the result
  int64_t computetype; // cublasComputeType_t
  int64_t epilogue; // cublasLtEpilogue_t, 0 if none
  int64_t op; // signature of the operator that launches it, 0 if none
  std::array<Attribute, 11> attributes() const { return {{{"m", m}, {"n", n}, {"k", k}, {"batch", batch}, {"ta", ta}, {"tb", tb}, {"atype", atype}, {"ctype", ctype}, {"computetype", computetype}, {"epilogue", epilogue}, {"op", op}}}; }
};

inline constexpr const char *kConvNames[] = {"forward", "dgrad", "wgrad"};
using ConvName = Word<kConvNames>;

// A convolution, or a gradient of one; a third spatial dimension is folded into the first.
struct Conv {
  using Name = ConvName;
  static constexpr const char *kKind = "conv";
  int64_t n; // images
  int64_t c; // input channels
  int64_t h; // input height
  int64_t w; // input width
  int64_t k; // output channels
  int64_t r; // height of the filter
  int64_t s; // width of the filter
  int64_t oh; // output height
  int64_t ow; // output width
  int64_t stride_h; // stride
  int64_t stride_w; // stride
  int64_t pad_h; // padding
  int64_t pad_w; // padding
  int64_t dil_h; // dilation
  int64_t dil_w; // dilation
  int64_t groups; // groups of channels
  int64_t dtype; // cudnnDataType_t of the input
  int64_t op; // signature of the operator that launches it, 0 if none
  std::array<Attribute, 18> attributes() const { return {{{"n", n}, {"c", c}, {"h", h}, {"w", w}, {"k", k}, {"r", r}, {"s", s}, {"oh", oh}, {"ow", ow}, {"stride_h", stride_h}, {"stride_w", stride_w}, {"pad_h", pad_h}, {"pad_w", pad_w}, {"dil_h", dil_h}, {"dil_w", dil_w}, {"groups", groups}, {"dtype", dtype}, {"op", op}}}; }
};

inline constexpr const char *kAttentionNames[] = {"forward", "backward"};
using AttentionName = Word<kAttentionNames>;

// Fused attention of a library.
struct Attention {
  using Name = AttentionName;
  static constexpr const char *kKind = "attention";
  int64_t b; // batch
  int64_t h; // heads of the queries
  int64_t sq; // length of the queries
  int64_t skv; // length of keys and values
  int64_t d; // width of a head of queries and keys
  int64_t dv; // width of a head of values
  int64_t causal; // 1: a causal mask
  int64_t kvh; // heads of keys and values
  int64_t dtype; // cudnnDataType_t
  int64_t bias; // 1: a matrix is added to the scores
  int64_t op; // signature of the operator that launches it, 0 if none
  std::array<Attribute, 11> attributes() const { return {{{"b", b}, {"h", h}, {"sq", sq}, {"skv", skv}, {"d", d}, {"dv", dv}, {"causal", causal}, {"kvh", kvh}, {"dtype", dtype}, {"bias", bias}, {"op", op}}}; }
};

// Any other call of a library that works on the device.
struct Library {
  using Name = const char *;
  static constexpr const char *kKind = "library";
  int64_t bytes; // device memory read and written, 0 if not known; bytes
  int64_t flops; // arithmetic, 0 if not known
  int64_t op; // signature of the operator that launches it, 0 if none
  std::array<Attribute, 3> attributes() const { return {{{"bytes", bytes}, {"flops", flops}, {"op", op}}}; }
};

inline constexpr const char *kCopyNames[] = {"h2h", "h2d", "d2h", "d2d", "p2p"};
using CopyName = Word<kCopyNames>;

// A copy.
struct Copy {
  using Name = CopyName;
  static constexpr const char *kKind = "copy";
  int64_t pinned; // 1: the host's side is page-locked
  int64_t pages; // 1: whole pages within a device, which go a faster way
  std::array<Attribute, 2> attributes() const { return {{{"pinned", pinned}, {"pages", pages}}}; }
};

inline constexpr const char *kSetNames[] = {"set"};
using SetName = Word<kSetNames>;

// A fill of device memory.
struct Set {
  using Name = SetName;
  static constexpr const char *kKind = "set";
  std::array<Attribute, 0> attributes() const { return {}; }
};

// A communicator that this rank makes.
struct Comm {
  using Name = const char *;
  static constexpr const char *kKind = "comm";
  int64_t id; // hash of the name
  int64_t rank; // this member's place in it
  int64_t size; // members
  int64_t device; // ordinal of the member's device within its server
  int64_t algorithms; // bits of nccl_algorithms that NCCL_ALGO allows, 0: any
  int64_t protocols; // bits of nccl_protocols that NCCL_PROTO allows, 0: any
  int64_t nvls; // 0: NCCL_NVLS_ENABLE forbids reductions in the switch
  int64_t version; // NCCL's version, as ncclGetVersion has it
  std::array<Attribute, 8> attributes() const { return {{{"id", id}, {"rank", rank}, {"size", size}, {"device", device}, {"algorithms", algorithms}, {"protocols", protocols}, {"nvls", nvls}, {"version", version}}}; }
};

// One member's part in splitting a communicator.
struct Split {
  using Name = const char *;
  static constexpr const char *kKind = "split";
  int64_t parent; // id of the parent
  int64_t position; // which split of the parent this is
  int64_t color; // members of one color get one communicator; negative: none
  int64_t key; // order within the color
  int64_t rank; // place in the parent
  int64_t size; // members of the parent
  int64_t device; // ordinal of the member's device within its server
  std::array<Attribute, 7> attributes() const { return {{{"parent", parent}, {"position", position}, {"color", color}, {"key", key}, {"rank", rank}, {"size", size}, {"device", device}}}; }
};

// The members of a group of symmetric memory, by its definition alone.
struct Symmetric {
  using Name = const char *;
  static constexpr const char *kKind = "symmetric";
  int64_t id; // hash of the name
  std::array<Attribute, 1> attributes() const { return {{{"id", id}}}; }
};

inline constexpr const char *kCollectiveNames[] = {"barrier", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send", "recv"};
using CollectiveName = Word<kCollectiveNames>;

// A collective, a send or a receive.
struct Collective {
  using Name = CollectiveName;
  static constexpr const char *kKind = "collective";
  int64_t comm; // id of the communicator
  int64_t count; // elements, as NCCL's function counts them
  int64_t dtype; // ncclDataType_t
  int64_t bytes; // one rank's larger buffer; bytes
  int64_t root; // root, -1 if none
  int64_t peer; // the other end of a send or a receive, -1 if none
  int64_t redop; // ncclRedOp_t, ncclNumOps for a custom one, -1 if none
  int64_t scale; // bits of a double: the factor of a custom reduction, -1 if there is none or nobody knows it
  int64_t shots; // how often a kernel of symmetric memory reaches into its peers' memory (1: it reads all of it; 2: it reads its part of each, and the sums are spread); 0: NCCL does it
  std::array<Attribute, 9> attributes() const { return {{{"comm", comm}, {"count", count}, {"dtype", dtype}, {"bytes", bytes}, {"root", root}, {"peer", peer}, {"redop", redop}, {"scale", scale}, {"shots", shots}}}; }
};

// A mark, or (with records of kind host) a number that the program reports.
struct Mark {
  using Name = const char *;
  static constexpr const char *kKind = "mark";
  int64_t value; // the number reported; 0 for marks
  std::array<Attribute, 1> attributes() const { return {{{"value", value}}}; }
};

inline constexpr const char *kMemoryNames[] = {"context", "malloc", "pool", "vmm"};
using MemoryName = Word<kMemoryNames>;

// Which allocator changed a rank's memory.
struct Memory {
  using Name = MemoryName;
  static constexpr const char *kKind = "memory";
  std::array<Attribute, 0> attributes() const { return {}; }
};

// A function that is not modelled.
struct Unmodelled {
  using Name = const char *;
  static constexpr const char *kKind = "unmodelled";
  std::array<Attribute, 0> attributes() const { return {}; }
};

inline constexpr const char *kTimeoutNames[] = {"nccl", "kept", "over"};
using TimeoutName = Word<kTimeoutNames>;

// A timeout of the program's process groups, by its definition alone; or (with a record of kind host) what torch says of a collective that has lasted so long.
struct Timeout {
  using Name = TimeoutName;
  static constexpr const char *kKind = "timeout";
  int64_t ms; // the timeout of a group; 0 where torch says that a collective is kept, or that its timeout is over; ms
  std::array<Attribute, 1> attributes() const { return {{{"ms", ms}}}; }
};

// A read of values that were never computed.
struct Read {
  using Name = const char *;
  static constexpr const char *kKind = "read";
  int64_t op; // signature of the operator that reads, 0 if none
  int64_t default_; // what was given instead: a number of origins
  std::array<Attribute, 2> attributes() const { return {{{"op", op}, {"default", default_}}}; }
};

} // namespace signatures

// Keys of server.conf, and what is said of each of them.
inline constexpr const char *kConfKeys[] = {
  "server",
  "mode",
  "host_cost",
  "host.function",
  "host.operator",
  "host.ages",
  "devices",
  "gpu.name",
  "gpu.cc",
  "gpu.sm_count",
  "gpu.memory_bytes",
  "gpu.context_bytes",
  "gpu.clock_khz",
  "gpu.memory_clock_khz",
  "gpu.memory_bus_bits",
  "gpu.l2_bytes",
  "gpu.smem_per_block",
  "gpu.smem_per_block_optin",
  "gpu.smem_per_sm",
  "gpu.reserved_smem_per_block",
  "gpu.regs_per_sm",
  "gpu.max_threads_per_sm",
  "gpu.max_blocks_per_sm",
  "gpu.nvlinks",
  "gpu.power_limit_mw",
  "payload_limit",
  "nccl.kernel_bytes",
  "nccl.comm_bytes",
  "nccl.peer_bytes",
  "known_limit",
  "values.loss",
  "values.routing",
  "reply_timeout_ms",
  "ring.records",
  "ring.defs_bytes",
  "ring.inbox_bytes",
  "host_memory.bytes",
  "host_memory.dir",
  "host_memory.patience_ms",
  "cublas.handle_bytes",
  "cudnn.handle_bytes",
};
using ConfKey = Word<kConfKeys>;
struct ConfEntry {
  const char *otherwise; // value of an absent key; nullptr: none
  int64_t max;           // of a number; 0: any
  const char *words[2];  // that are allowed; nullptr: any text
};
inline constexpr ConfEntry kConfEntries[] = {
  {"0", 0, {nullptr, nullptr}},
  {"core", 0, {"core", "null"}},
  {"table", 0, {"table", "measured"}},
  {nullptr, 0, {nullptr, nullptr}},
  {nullptr, 0, {nullptr, nullptr}},
  {nullptr, 0, {nullptr, nullptr}},
  {"1", 64, {nullptr, nullptr}},
  {"NVIDIA H100 80GB HBM3", 0, {nullptr, nullptr}},
  {"9.0", 0, {nullptr, nullptr}},
  {"132", 0, {nullptr, nullptr}},
  {"85017493504", 0, {nullptr, nullptr}},
  {"576716800", 0, {nullptr, nullptr}},
  {"1980000", 0, {nullptr, nullptr}},
  {"2619000", 0, {nullptr, nullptr}},
  {"5120", 0, {nullptr, nullptr}},
  {"52428800", 0, {nullptr, nullptr}},
  {"49152", 0, {nullptr, nullptr}},
  {"232448", 0, {nullptr, nullptr}},
  {"233472", 0, {nullptr, nullptr}},
  {"1024", 0, {nullptr, nullptr}},
  {"65536", 0, {nullptr, nullptr}},
  {"2048", 0, {nullptr, nullptr}},
  {"32", 0, {nullptr, nullptr}},
  {"18", 0, {nullptr, nullptr}},
  {"700000", 0, {nullptr, nullptr}},
  {"65536", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
  {"1048576", 0, {nullptr, nullptr}},
  {nullptr, 0, {nullptr, nullptr}},
  {nullptr, 0, {nullptr, nullptr}},
  {"60000", 0, {nullptr, nullptr}},
  {"65536", 0, {nullptr, nullptr}},
  {"4194304", 0, {nullptr, nullptr}},
  {"4194304", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
  {nullptr, 0, {nullptr, nullptr}},
  {"15000", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
  {"0", 0, {nullptr, nullptr}},
};

} // namespace eidolon
