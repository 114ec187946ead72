// Engine: classes of equal links and flows, which are divided when they turn out not to be equal any more.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace eidolon {

std::uint32_t Engine::twin(std::uint32_t link) {
  if (link >= link_latency_.size()) {
    throw std::invalid_argument("link " + std::to_string(link) + " does not exist");
  }
  const Level present = network_.capacity(link);
  const auto at = std::find_if(ports_.begin(), ports_.end(), [&](const Port &port) { return port.link == link; });
  const std::uint32_t number = network_.add_link_of(at == ports_.end() ? present : at->capacity);
  link_latency_.push_back(link_latency_[link]);
  network_.set_capacity(number, present);
  if (at != ports_.end()) {
    const Port port{number, at->capacity, at->owners};
    for (const Device &owner : port.owners) {
      ports_of_[owner].push_back(static_cast<std::uint32_t>(ports_.size()));
    }
    ports_.push_back(port);
  }
  return number;
}

void Engine::refine(std::uint32_t number, const std::vector<FlowSpec> &flows,
                    const std::vector<std::uint32_t> &origin) {
  if (settings_.optimistic) {
    throw std::invalid_argument("flows are not divided in an engine that goes back in time");
  }
  if (number >= patterns_.size() || !patterns_[number].classes) {
    throw std::invalid_argument("pattern " + std::to_string(number) + " has no flows with counts");
  }
  Pattern fresh = pattern_of(flows);
  const Batch &before = patterns_[number].batches.front();
  if (origin.size() != flows.size() || !fresh.classes) {
    throw std::invalid_argument("every part of a flow has counts, and a flow that it stems from");
  }
  const Batch &after = fresh.batches.front();
  std::vector<std::vector<Network::Part>> parts(before.routes.size());
  for (std::size_t i = 0; i < origin.size(); ++i) {
    if (origin[i] >= parts.size() || after.bytes[i] != before.bytes[origin[i]] ||
        after.weights[i] != before.weights[origin[i]]) {
      throw std::invalid_argument("a part has the bytes and the weight of the flow that it stems from");
    }
    parts[origin[i]].push_back({after.routes[i], after.weights[i], tag_of(0, i)});
  }
  if (std::any_of(parts.begin(), parts.end(), [](const auto &of_flow) { return of_flow.empty(); })) {
    throw std::invalid_argument("a flow has no parts");
  }
  for (std::uint64_t slot = 0; slot < collectives_.size(); ++slot) {
    Collective &collective = collectives_[slot];
    if (!collective.live || !collective.defined || collective.pattern != number || collective.end != kNever) {
      continue;
    }
    if (collective.batches == 0) {
      collective.left = fresh.flows;
      continue;
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<Network::Part> own = parts[i];
      for (Network::Part &part : own) {
        part.tag |= slot;
      }
      if (network_.divide(before.routes[i], tag_of(slot, i), own)) {
        collective.left += own.size() - 1;
      }
    }
  }
  patterns_[number] = std::move(fresh);
}

} // namespace eidolon
