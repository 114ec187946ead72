// What this rank knows to have ended, so that queries seldom need the core.
//
// Recordings on one stream end in the order in which they were made. Each answer (a synchronise that returned, a query
// that said yes) therefore tells of all earlier recordings of its stream, and what ended at or before the clock of one
// answer has ended for every later one. A foreground query that is settled so still costs its host time, told to the
// core without waiting for an answer.
//
// Background threads (NCCL's watchdog) poll the events of all outstanding collectives, holding locks that the main
// thread needs. They affect no timeline, so "not yet" is always a right answer for them: a stream is asked about at
// most every 20 ms, and then searched by halving for its newest recording that has ended. How long that takes is up to
// the core; for four times as long it is not asked again, or a watchdog with a hundred collectives to look at would
// hold its lock most of the time.
#include <time.h>

#include <algorithm>

#include "internal.h"

namespace eidolon {
namespace {

constexpr int64_t kProbeNs = 20'000'000, kRests = 4;

struct Progress {
  std::mutex mutex;
  std::vector<Stream *> streams[64]; // with recordings, per device
};
Progress *progress() {
  static Progress *all = new Progress;
  return all;
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void note(Stream *stream, uint64_t key) { // caller holds the mutex
  stream->ended_key = std::max(stream->ended_key, key);
  while (!stream->recorded.empty() && stream->recorded.front() <= key)
    stream->recorded.pop_front();
}

} // namespace

void progress_recorded(Stream *stream, uint64_t key) {
  Progress *p = progress();
  std::lock_guard hold(p->mutex);
  if (!stream->has_recordings) {
    stream->has_recordings = true;
    p->streams[stream->device].push_back(stream);
  }
  stream->recorded.push_back(key);
}

uint64_t progress_newest(Stream *stream) {
  std::lock_guard hold(progress()->mutex);
  return stream->recorded.empty() ? stream->ended_key : stream->recorded.back();
}

std::vector<std::pair<Stream *, uint64_t>> progress_newest_of(int device) {
  Progress *p = progress();
  std::lock_guard hold(p->mutex);
  std::vector<std::pair<Stream *, uint64_t>> out;
  for (Stream *stream : p->streams[device])
    if (!stream->recorded.empty())
      out.emplace_back(stream, stream->recorded.back());
  return out;
}

void progress_ended(Stream *stream, uint64_t key) {
  std::lock_guard hold(progress()->mutex);
  note(stream, key);
}

bool progress_has_ended(const Stream *stream, uint64_t key) {
  std::lock_guard hold(progress()->mutex);
  return key <= stream->ended_key;
}

bool progress_probe(Stream *stream, uint64_t key, uint16_t call) {
  std::vector<uint64_t> open;
  const int64_t begin = now_ns();
  {
    std::lock_guard hold(progress()->mutex);
    if (key <= stream->ended_key)
      return true;
    if (begin < stream->probe_after_ns)
      return false;
    stream->probe_after_ns = begin + kProbeNs;
    open.assign(stream->recorded.begin(), stream->recorded.end());
  }
  size_t ended = 0, unsure = open.size(); // open[0, ended) have ended; open[unsure, ...) have not
  for (size_t probe = open.size(); ended < unsure; probe = ended + (unsure - ended + 1) / 2) {
    const uint64_t asked = open[probe - 1];
    if (ask({.kind = Kind::kQueryEvent, .call = call, .stream = stream, .value = asked}).value != 0)
      ended = probe;
    else
      unsure = probe - 1;
  }
  std::lock_guard hold(progress()->mutex);
  const int64_t over = now_ns();
  stream->probe_after_ns = over + std::max(kProbeNs, kRests * (over - begin));
  if (ended > 0)
    note(stream, open[ended - 1]);
  return key <= stream->ended_key;
}

} // namespace eidolon
