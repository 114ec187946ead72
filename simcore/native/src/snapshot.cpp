// Engine: its whole state as bytes, and back.
#include <stdexcept>
#include <utility>

#include "archive.h"
#include "engine.h"

namespace eidolon {

namespace {
constexpr std::uint64_t kFormat = 0x4549444f4c4f4e05; // "EIDOLON", 5
} // namespace

template <typename Archive> void Engine::archive(Archive &ar) {
  std::uint64_t format = kFormat;
  ar(format);
  if (format != kFormat) {
    throw std::invalid_argument("not a snapshot of this version of the engine");
  }
  ar(settings_, network_, link_latency_, tables_, ranks_, index_of_, ports_, ports_of_, patterns_, collectives_,
     free_collectives_, agenda_, journal_, coupled_, bounds_, resting_, dirty_, is_dirty_, jumps_, now_, horizon_,
     late_, late_ranks_, late_presses_, wanted_, wanted_unbounded_, is_busy_, busy_ranks_, is_acting_, acting_ranks_,
     ended_ranks_, asking_, is_asking_, unswept_, collectives_made_, rollbacks_, rollback_depth_ns_,
     rollback_depth_max_ns_);
}

std::string Engine::snapshot() {
  Writer writer;
  archive(writer);
  return writer.take();
}

void Engine::restore(std::string_view bytes) {
  Engine fresh{settings_};
  Reader reader(bytes);
  fresh.archive(reader);
  if (!reader.exhausted()) {
    throw std::invalid_argument("snapshot is damaged: it is longer than the engine");
  }
  *this = std::move(fresh);
}

} // namespace eidolon
