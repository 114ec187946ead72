#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <system_error>

namespace eidolon::agent {
namespace {

std::mutex making; // of places: held by those who make guards, never by the handler
std::atomic<Guard::Place *> first{nullptr};
struct sigaction before;
const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

Guard::Place *place_of(uintptr_t address) {
  for (Guard::Place *place = first.load(); place != nullptr; place = place->next) {
    const uintptr_t begin = place->begin.load();
    if (begin != 0 && address - begin < place->bytes.load())
      return place;
  }
  return nullptr;
}

// Calls only what may be called in a handler.
void replace_page(int number, siginfo_t *info, void *) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Guard::Place *place = info->si_code > 0 ? place_of(address) : nullptr; // below: somebody sent the signal
  void *page = reinterpret_cast<void *>(address & ~(page_bytes - 1));
  if (place != nullptr &&
      mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
    place->lost.store(true);
  } else {
    sigaction(SIGBUS, &before, nullptr);
    if (info->si_code <= 0)
      raise(number); // else the access happens again, and raises it
  }
  errno = error;
}

void install() {
  struct sigaction ours{};
  ours.sa_sigaction = replace_page;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (sigaction(SIGBUS, &ours, &before) != 0)
    throw std::system_error(errno, std::generic_category(), "sigaction");
}

} // namespace

Guard::Guard(uintptr_t begin, size_t bytes) {
  const std::lock_guard hold(making);
  static const bool once = (install(), true);
  (void)once;
  place_ = first.load();
  while (place_ != nullptr && place_->begin.load() != 0)
    place_ = place_->next;
  const bool fresh = place_ == nullptr;
  if (fresh) {
    place_ = new Place;
    place_->next = first.load();
  }
  place_->lost.store(false);
  place_->bytes.store(bytes);
  place_->begin.store(begin);
  if (fresh)
    first.store(place_);
}

void Guard::release() {
  if (place_ == nullptr)
    return;
  lost_ = place_->lost.load();
  place_->begin.store(0);
  place_ = nullptr;
}

} // namespace eidolon::agent
