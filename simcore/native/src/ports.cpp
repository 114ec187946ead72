// Engine: ports, which are the links at which devices are. While a collective is under way on a device, its ports have
// only what the work beside it leaves.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace eidolon {

void Engine::set_ports(std::uint32_t number, std::uint32_t device, const std::vector<std::uint32_t> &links) {
  const std::uint32_t index = index_of(number);
  if (std::any_of(links.begin(), links.end(), [&](std::uint32_t link) { return link >= link_latency_.size(); })) {
    throw std::invalid_argument("a port is a link that does not exist");
  }
  if (ranks_[index].left_of(device) != kReferenceRate) {
    throw std::invalid_argument("a device's ports are named before a collective is under way on it");
  }
  std::vector<std::uint32_t> &mine = ports_of_[Device{index, device}];
  for (const std::uint32_t link : links) {
    const auto at = std::find_if(ports_.begin(), ports_.end(), [&](const Port &port) { return port.link == link; });
    const auto port = static_cast<std::uint32_t>(at - ports_.begin());
    if (at == ports_.end()) {
      ports_.push_back({link, network_.capacity(link), {}});
    }
    if (std::find(mine.begin(), mine.end(), port) == mine.end()) {
      mine.push_back(port);
      ports_[port].owners.push_back({index, device});
    }
  }
}

// Gives the device's ports what the work of all their owners leaves.
void Engine::press(const Device &device) {
  const auto at = ports_of_.find(device);
  if (at == ports_of_.end()) {
    return;
  }
  for (const std::uint32_t number : at->second) {
    const Port &port = ports_[number];
    std::int64_t left = kReferenceRate;
    for (const Device &owner : port.owners) {
      left = std::min(left, ranks_[owner.rank].left_of(owner.number));
    }
    const Volume share = static_cast<Volume>(port.capacity) * static_cast<Volume>(left) >> kRateBits;
    network_.set_capacity(port.link, std::max<Level>(static_cast<Level>(share), 1));
  }
}

} // namespace eidolon
