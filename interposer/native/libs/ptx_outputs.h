// Finds out through which parameters a kernel writes, from its PTX.
//
// A C++ kernel's name has the types of its parameters, and those to non-const are its outputs. A kernel with a C name
// (Triton, CuPy, NVRTC) says nothing there, but its code does: a store goes to an address in a register, and the
// registers that this address is computed from lead back to the parameters. The PTX is the image itself, or stands in a
// cubin that has line numbers, as all of Triton's have (section .nv_debug_ptx_txt).
//
// Only plain data flow is followed. A pointer that was itself loaded from memory and a tensor map lead to no parameter.
#pragma once
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace eidolon::ptx {

inline constexpr std::string_view kLineEnds("\n\0", 2); // those of a debug section are zeros

inline std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r{}");
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\r{}") + 1 - begin);
}

// Calls `found` for each instruction, without comments, labels and its guard (@%p1).
template <class Found> void each_instruction(std::string_view text, Found found) {
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find_first_of(kLineEnds, line), text.size());
    std::string_view rest = text.substr(line, end - line);
    rest = rest.substr(0, rest.find("//"));
    for (; !rest.empty(); rest.remove_prefix(std::min(rest.find(';'), rest.size() - 1) + 1)) {
      std::string_view instruction = trimmed(rest.substr(0, rest.find(';')));
      if (instruction.starts_with('@'))
        instruction = trimmed(instruction.substr(std::min(instruction.find_first_of(" \t"), instruction.size())));
      if (!instruction.empty() && std::isalpha(static_cast<unsigned char>(instruction.front())) != 0)
        found(instruction);
    }
    line = end + 1;
  }
}

// The names in a piece of an instruction: registers (%rd1), and the parameter that is loaded (kernel_param_0).
inline std::vector<std::string_view> names_in(std::string_view text) {
  const auto inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
  };
  std::vector<std::string_view> names;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t begin = i;
    while (i < text.size() && inside(text[i]))
      ++i;
    if (i > begin)
      names.push_back(text.substr(begin, i - begin));
  }
  return names;
}

// An entry: its parameters that can be addresses, by their names, with their places in the list; and its body.
struct Entry {
  size_t count = 0; // of all parameters
  std::map<std::string_view, size_t> addresses{};
  std::string_view body{};
};
inline Entry entry_named(std::string_view text, std::string_view kernel) {
  constexpr std::string_view kEntry = ".entry";
  for (size_t at = text.find(kEntry); at != text.npos; at = text.find(kEntry, at + 1)) {
    const size_t name = at + kEntry.size();
    const size_t open = text.find_first_of("({", name), close = text.find(')', name);
    if (open == text.npos || text[open] != '(' || close == text.npos ||
        trimmed(text.substr(name, open - name)) != kernel)
      continue;
    Entry entry;
    for (size_t from = open + 1; from < close; ++entry.count) {
      const size_t end = std::min(text.find(',', from), close);
      const std::string_view parameter = text.substr(from, end - from); // .param .u64 .ptr .global .align 1 name
      const auto has = [&](std::string_view type) { return parameter.find(type) != parameter.npos; };
      if (const auto names = names_in(parameter); !names.empty() && (has(".u64") || has(".b64") || has(".s64")))
        entry.addresses.emplace(names.back(), entry.count);
      from = end + 1;
    }
    entry.body = text.substr(close + 1);
    entry.body = entry.body.substr(0, entry.body.find(kEntry));
    return entry;
  }
  return {};
}

// For each parameter, whether the kernel stores to an address that is computed from it; empty if the text has no such
// kernel.
inline std::vector<bool> outputs(std::string_view text, std::string_view kernel) {
  const Entry entry = entry_named(text, kernel);
  std::vector<bool> written(entry.count);
  std::map<std::string_view, std::set<size_t>> comes_from; // register -> parameters
  for (bool changed = true; changed;) {                    // again for registers that a loop hands to its next turn
    changed = false;
    const auto flow = [&](std::string_view to, const std::set<size_t> &from) {
      std::set<size_t> &all = comes_from[to];
      const size_t before = all.size();
      all.insert(from.begin(), from.end());
      changed = changed || all.size() != before;
    };
    each_instruction(entry.body, [&](std::string_view instruction) {
      const std::string_view code = instruction.substr(0, instruction.find_first_of(" \t"));
      const auto is = [&](std::string_view start) { return code.starts_with(start); };
      const size_t open = std::min(instruction.find('['), instruction.size());
      const std::vector<std::string_view> memory = names_in(instruction.substr(open));
      if (is("ld.param.")) {
        if (const auto found = memory.empty() ? entry.addresses.end() : entry.addresses.find(memory[0]);
            found != entry.addresses.end())
          for (const std::string_view name : names_in(instruction.substr(code.size(), open - code.size())))
            flow(name, {found->second});
      } else if (is("st.") || is("red.") || is("atom.") || is("cp.")) {
        const bool elsewhere =
            code.find(".global") == code.npos &&
            (code.find(".shared") != code.npos || code.find(".local") != code.npos || code.find(".param") != code.npos);
        const bool to_shared = is("cp.") && code.find(".shared") < code.find(".global");
        if (!elsewhere && !to_shared && !memory.empty())
          for (const size_t parameter : comes_from[memory[0]])
            written[parameter] = true;
      } else if (!is("ld.")) { // what is loaded from memory has no origin
        const std::vector<std::string_view> names = names_in(instruction.substr(code.size()));
        for (size_t i = 1; i < names.size(); ++i)
          flow(names[0], comes_from[names[i]]);
      }
    });
  }
  return written;
}

} // namespace eidolon::ptx
