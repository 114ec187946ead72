// What the core's own files share. One file, one concept:
//
//   config    server.conf and the environment
//   ring      the shared-memory file: records, definitions, replies, inbox
//   rank      this process as a rank: threads, contexts, fork, exit
//   addresses  where device memory lies
//   memory    device memory and its accounts; pools: in stream order; virtual_memory: mapped at addresses
//   values    which device bytes are known, and work on them that waits for a payload; intervals: the table of them;
//             shared_values: what other processes know of them
//   stream    streams and the default stream's ordering rules
//   event     events: recordings and waits
//   callback  host functions in stream order
//   copy      copies and sets
//   collective  collectives and the turns of a communicator
//   progress  what is known to have ended
//   watcher   background threads that poll events, and how they are woken
//   graph     capture, graphs and their replay
//   kernel    kernel names and launches
//   interpreter  Python and operators between calls, what they cost the host
//   clock     the C functions that the Python hook calls
//   host_memory  a budget for what the ranks take of the machine's own memory
//   reaping   how ranks ended that this process was the parent of
//   preload   loading our libraries in place of NVIDIA's
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core.h"

namespace eidolon {

// ---- ring ---------------------------------------------------------------------------------------------------------

// The calling thread within its rank.
struct Thread {
  int index = -1; // also its reply slot
  bool main = false;
  bool foreground = false;
  int64_t cpu_mark_ns = 0; // thread CPU time at the end of its last record (measured host cost only)
  int64_t unpaid_ns = 0;   // cost of clock reads that the core does not know of yet
};
Thread &this_thread();

inline constexpr int kMaxThreads = 128; // slots above belong to host callbacks

bool ring_create();           // makes the ring file of this process; fatal on failure
void ring_abandon_in_child(); // after fork: the parent's ring is not ours
void ring_close();            // orderly exit
RingHeader *ring_header();    // nullptr: no ring
ServerPage *server_page();    // nullptr: null core or no agent
uint64_t ring_emit(const Event &event, uint8_t flags, int slot);
Reply ring_wait(int slot, uint64_t seq, bool foreground); // the answer to a blocking record
bool ring_answered(int slot, uint64_t seq);
void ring_await_answer(int slot, uint64_t seq, int64_t limit_us); // sleeps until it is there, at most for so long
void ring_payload(uint64_t seq, const void *data, size_t bytes);  // publishes payload bytes
void ring_drain_inbox();                                          // applies arrived payloads
bool ring_wait_inbox(int timeout_ms);                             // sleeps until a payload arrives
uint64_t ring_next_seq(); // sequence number of the next record (a hint; exact only under the ring's lock)
int callback_slot_take(); // a reply slot for a host callback; waits if all are taken
void callback_slot_give(int slot);

// Adds the real time until it goes out of scope to a sum in the ring's header.
class RealWait {
public:
  explicit RealWait(std::atomic<uint64_t> &sum);
  ~RealWait();
  RealWait(const RealWait &) = delete;
  RealWait &operator=(const RealWait &) = delete;

private:
  std::atomic<uint64_t> &sum_;
  int64_t began_ns_;
};

// ---- rank ---------------------------------------------------------------------------------------------------------

// The kernel's state of a thread: 'S' sleeps, 'D' waits for a disk, 'R' runs or waits for a processor; 0: it is gone.
char thread_state(int tid);
int64_t take_interpreter_ns(); // what the calling thread spent between our calls since this was last called
// How old the calling thread's functions and operators are (interpreter.cpp).
void count_launch();       // it launched, copied or set: what it ran before is older now
void count_library_call(); // it called a library or a collective, which ages what it ran before by more
void count_device_wait();  // it waited for a whole device: what it ran before is cold
// While one lives, the calling thread is inside one of our calls, and its rank does not count as idle.
class InsideCall {
public:
  InsideCall();
  ~InsideCall();
};
void release_accounts(); // orderly exit: gives this rank's device memory back

// ---- memory -------------------------------------------------------------------------------------------------------

Status account(int device, int64_t bytes, signatures::MemoryName what); // charges (or frees) device memory of this rank
bool memory_range_of(const void *pointer, uintptr_t *begin, uintptr_t *end); // allocation that contains pointer

// ---- values -------------------------------------------------------------------------------------------------------

// Memory that other processes may map, and memory of another process under the name that it has there: what is known of
// either is known to all (shared_values.h). The name is one for the whole server.
void value_share(const char *name, void *pointer, size_t bytes);
void value_join(const char *name, void *pointer, size_t bytes);
void value_leave_all();                            // the process ends
void value_forget(uintptr_t begin, uintptr_t end); // the memory was freed: its bytes are unknown, its pages given back
// Repeats an element of 1, 2 or 4 bytes.
void fill_bytes(void *to, size_t bytes, unsigned value, size_t element_bytes);
void value_fill(void *pointer, size_t bytes, unsigned value, size_t element_bytes);
void value_copy(void *to, const void *from, size_t bytes);
// Reads in stream order into host memory: at once, or once the payload that the bytes depend on has arrived.
void value_read_ordered(const void *pointer, size_t bytes, void *out);
void value_count_reads(); // counts what such reads found since the last call; the host has waited for their stream
void value_receive(uint64_t seq, void *to, size_t bytes);         // a payload for `seq` will arrive
void value_send(uint64_t seq, const void *from, size_t bytes);    // publishes bytes as payload of `seq`
void value_arrived(uint64_t seq, const void *data, size_t bytes); // from the inbox
bool value_pending(const void *pointer, size_t bytes);            // some bytes still depend on a payload
bool value_nothing_known(const void *pointer, size_t bytes);      // and none will be by what is on its way

// ---- watchers -----------------------------------------------------------------------------------------------------

struct Watcher;                       // a background thread that polls events; kept for ever
Watcher *this_watcher();              // the calling thread, which is one from now on
void watcher_polls(Watcher *watcher); // it has left its wait: it reads real clocks again
void watcher_saw(Watcher *watcher);   // it saw an end, and acts on it until it waits again
// Whether it still acts. A watcher that was never seen to wait does not once it sleeps, nor one of which `silence` is
// all that was heard: it sleeps where it cannot be seen.
bool watcher_acts(Watcher *watcher, bool silence);
bool watcher_gone(const Watcher *watcher);
void watcher_wake(Watcher *watcher);   // it is to look at once; now and then a call is lost
void watcher_let_go(Watcher *watcher); // nobody waits for it any longer
// Sleeps until a watcher has begun to wait since `watchers_bell` was read; false if the time ran out.
uint32_t watchers_bell();
bool watchers_wait(uint32_t heard, int64_t limit_us);

// ---- timeouts -----------------------------------------------------------------------------------------------------

int64_t last_steady_read_ns(); // what the calling thread's last read of the steady clock gave
// A background thread asks about an event, with the mutex of its stream's log held. True if the event is the end of a
// collective whose timeout may be over: it has not ended then, whatever is known.
bool timeout_may_be_over(const Stream *stream, uint64_t key);

// ---- streams ------------------------------------------------------------------------------------------------------

struct Node;
struct Capture;

// An entry of a stream's log (progress.cpp): a recording on it, or that it waited for one of another stream.
struct Recording {
  uint64_t key;             // grows along the log
  uint64_t launches;        // of the device so far
  Stream *waited = nullptr; // for whose recording `waited_key` the stream waited; nullptr: a recording of its own
  uint64_t waited_key = 0;
};

// The end of what a program's call of NCCL put on a stream (timeout.cpp).
struct CollectiveEnd {
  uint64_t key;              // of the recording behind it
  uint64_t first_seq, after; // records of its collectives: [first_seq, after)
  int64_t enqueued_ns;       // the steady clock as the thread that enqueued it last read it
};

struct Stream {
  uint64_t magic;
  uint32_t id;
  int device;
  unsigned flags;
  int priority;
  bool legacy = false;         // the default stream that orders itself with all blocking streams
  uint64_t last_seq = 0;       // last record of work on it, 0 none
  uint64_t joined_default = 0; // last_seq of the default stream when this one last waited for it
  uint64_t default_joined = 0; // last_seq of this stream when the default stream last waited for it
  std::shared_ptr<Capture> capture = {};
  std::vector<Node *> tail = {}; // nodes that the next captured one depends on
  // progress.cpp
  std::deque<Recording> recorded = {}; // what is not known to have ended, oldest first
  uint64_t ended_key = 0;              // recordings up to this key have ended
  int64_t probe_after_ns = 0;          // background threads do not ask about it before this (CLOCK_MONOTONIC)
  bool has_recordings = false;
  uint64_t collective_seq = 0;         // the first collective since the last such end has this number or a later one
  std::deque<CollectiveEnd> ends = {}; // of collectives, oldest first; those that ended long ago are left out
  bool after_collective = false;       // its next recording is the end of a collective
  bool watched = true;              // false once it is known that no background thread looks at its collectives' ends
  Watcher *watcher = nullptr;       // the thread that looks, once it has looked
  std::deque<uint64_t> unseen = {}; // ends of collectives that this thread has not seen, oldest first
};

struct CudaEvent {
  uint64_t magic;
  unsigned flags;
  int device;
  uint64_t key = 0; // 0: never recorded
  Stream *stream = nullptr;
  std::shared_ptr<Capture> capture = {}; // recorded inside this capture
  std::vector<Node *> captured = {};
};

uint64_t next_event_key();
Stream *make_stream(int device, unsigned flags, int priority); // internal lanes as well; no record
// Emits a record of work on a stream, ordered with the default stream as CUDA's rules want.
uint64_t emit_work(const Event &event);
void order_with_default(Stream *stream); // the default stream's rule, before work on `stream` is issued
void run_callbacks_before(uint64_t seq); // waits until host callbacks issued before `seq` have run

// ---- progress -----------------------------------------------------------------------------------------------------

void progress_launched(int device);
void progress_recorded(Stream *stream, uint64_t key);
void progress_waited(Stream *stream, Stream *other, uint64_t key); // `stream` waits for a recording of `other`
void progress_collective(Stream *stream); // a collective is about to be issued; waits for background threads
uint64_t progress_newest(Stream *stream); // key of the last entry of its log, 0 none
std::vector<std::pair<Stream *, uint64_t>> progress_newest_of(int device);
void progress_ended(Stream *stream, uint64_t key); // and all before it on the stream
bool progress_has_ended(const Stream *stream, uint64_t key);
bool progress_probe(Stream *stream, uint64_t key, uint16_t call); // for background threads
bool foreground_thread();

// ---- graphs -------------------------------------------------------------------------------------------------------

// One captured operation: what to do when it is replayed on a lane.
using Replay = std::function<void(Stream *lane, uint8_t flags)>;
// Adds a node to the stream's capture; false if the stream does not capture.
bool capture_node(Stream *stream, NodeType type, Replay replay);
// A stream that waits for an event recorded in a capture joins it.
Status capture_join(Stream *stream, CudaEvent *event);
void capture_event_record(Stream *stream, CudaEvent *event);
bool in_capture(const Stream *stream);
void capture_invalidate(Capture &capture); // a call that a capture does not allow was made
// Keeps what an operation does to values (data nullptr: unknown) for the node that this thread captures next.
void capture_effect(void *pointer, size_t bytes, const void *data);

} // namespace eidolon
