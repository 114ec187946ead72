// The Python side of the agent's ring: module `_ring`, used by eidolon_interposer's ring.py, mapping.py, serverdir.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "guard.h"
#include "ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace eidolon::agent {
namespace {

std::string_view view_of(const nb::bytes &bytes) { return {bytes.c_str(), bytes.size()}; }

// A ring that keeps its memory mapped.
class MappedRing : public Ring {
public:
  using Memory = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  MappedRing(Memory memory, const Layout &layout, const nb::bytes &kinds, nb::callable parse)
      : Ring(reinterpret_cast<char *>(memory.data()), layout, view_of(kinds),
             [parse = std::move(parse)](const std::string &body) {
               const auto signature = nb::cast<nb::bytes>(parse(nb::bytes(body.data(), body.size())));
               return std::string(view_of(signature));
             }),
        memory_(std::move(memory)) {}

  void close() {
    release();
    memory_ = {};
  }

private:
  Memory memory_;
};

} // namespace

NB_MODULE(_ring, m) {
  nb::set_leak_warnings(false); // gRPC's threads may hold a ring when the process ends
  nb::register_exception_translator(
      [](const std::exception_ptr &thrown, void *) {
        try {
          std::rethrow_exception(thrown);
        } catch (const RingError &error) {
          const nb::object type = nb::module_::import_("eidolon_interposer.messages").attr("RingError");
          PyErr_SetString(type.ptr(), error.what());
        }
      },
      nullptr);

  nb::class_<Batch>(m, "Batch")
      .def_ro("first_seq", &Batch::first_seq)
      .def_ro("count", &Batch::count)
      .def_prop_ro("size", [](const Batch &batch) { return batch.bytes.size(); });

  m.def(
      "pack",
      [](const std::vector<const Batch *> &batches) {
        const std::string message = pack(batches);
        return nb::bytes(message.data(), message.size());
      },
      "batches"_a);

  nb::class_<MappedRing>(m, "Ring")
      .def(
          "__init__",
          [](MappedRing *self, MappedRing::Memory memory, uint64_t records_offset, uint64_t record_capacity,
             uint64_t defs_offset, uint64_t defs_capacity, uint64_t inbox_offset, uint64_t inbox_capacity,
             const nb::bytes &kinds, nb::callable parse_signature) {
            const Layout layout{records_offset, record_capacity, defs_offset,
                                defs_capacity,  inbox_offset,    inbox_capacity};
            new (self) MappedRing(std::move(memory), layout, kinds, std::move(parse_signature));
          },
          nb::arg("memory").noconvert(), nb::kw_only(), "records_offset"_a, "record_capacity"_a, "defs_offset"_a,
          "defs_capacity"_a, "inbox_offset"_a, "inbox_capacity"_a, "kinds"_a, "parse_signature"_a)
      .def_prop_ro("head", &Ring::head)
      .def_prop_ro("tail", &Ring::tail)
      .def_prop_ro("messages", &Ring::messages)
      .def_prop_ro("settled", &Ring::settled)
      .def("has_news", &Ring::has_news)
      .def("awaits_answer", &Ring::awaits_answer)
      .def("batch", &Ring::batch, "limit_bytes"_a, "session"_a)
      .def("sent", &Ring::sent, nb::arg("batch").none() = nb::none())
      .def("taken", &Ring::taken)
      .def("reply", &Ring::reply, "thread"_a, "seq"_a, "clock_ns"_a, "value"_a, "status"_a = 0)
      .def("nudge", &Ring::nudge)
      .def("deliver", [](MappedRing &ring, uint64_t seq, const nb::bytes &data,
                         uint64_t number) { return ring.deliver(seq, view_of(data), number); })
      .def("publish_clock", &Ring::publish_clock)
      .def("overdue", &Ring::overdue, "seq"_a, "waited_ns"_a)
      .def("unmap", &MappedRing::close);

  nb::class_<Guard>(m, "Guard")
      .def(nb::init<uintptr_t, size_t>(), "begin"_a, "size"_a)
      .def_prop_ro("lost", &Guard::lost)
      .def("release", &Guard::release);

  m.def(
      "wait_for_news",
      [](uintptr_t page, const std::vector<const MappedRing *> &rings, uint32_t seen, int64_t poll_ns,
         int64_t limit_ns) {
        const std::vector<const Ring *> plain(rings.begin(), rings.end());
        const nb::gil_scoped_release without_lock;
        return wait_for_news(*reinterpret_cast<ServerPage *>(page), plain, seen, poll_ns, limit_ns);
      },
      "page"_a, "rings"_a, "seen"_a, "poll_ns"_a, "limit_ns"_a);
}

} // namespace eidolon::agent
