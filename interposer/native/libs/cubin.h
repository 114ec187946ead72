// Reads what a device code image says of its kernels and variables. Nothing in it is ever run.
//
//   cubin    an ELF file: kernels are its function symbols; registers, stack, parameters and launch bounds stand in
//            .nv.info sections, static shared memory in .nv.shared.<kernel>, PTX in .nv_debug_ptx_txt
//   PTX      text: kernels are its .entry declarations, variables .global and .const ones
//   fat      a container of both. Its entries are compressed as a rule; then the names in it stay unknown
//            and any name is taken for a kernel of it
//
// An image comes without its length. So the sizes that it states are believed, as the driver has to believe them.
#pragma once
#include <elf.h>

#include <cctype>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels.h"
#include "ptx_outputs.h"

namespace eidolon {

struct KernelFacts {
  std::map<int, int> attributes; // KernelAttribute, only what the image says
  struct Parameter {
    size_t offset, bytes;
  };
  bool parameters_known = false;
  std::vector<Parameter> parameters;
  std::vector<bool> outputs; // per parameter: the kernel writes through it; empty where the image has no PTX
};

struct Image {
  bool open = false; // its names are not known, so any name is a kernel
  std::map<std::string, KernelFacts> kernels;
  std::map<std::string, size_t> variables; // bytes
};

namespace cubin {

inline constexpr uint16_t kMachineCuda = 190;
inline constexpr uint32_t kFatMagic = 0xBA55ED50, kFatWrapperMagic = 0x466243B1;

enum InfoAttribute : uint8_t { // of .nv.info
  kInfoMaxThreads = 0x05,
  kInfoRequiredThreads = 0x10,
  kInfoFrameSize = 0x11,
  kInfoParameter = 0x17,
  kInfoRegisters = 0x2f,
  kInfoCluster = 0x3d,
};

template <class T> T load(const char *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls `entry(attribute, payload, bytes)` for each entry of an .nv.info section that has a payload.
template <class Entry> void each_info(const char *at, size_t bytes, Entry entry) {
  constexpr uint8_t kSized = 4; // format: two bytes of length, then the payload; others carry a two-byte value
  for (size_t i = 0; i + 4 <= bytes;) {
    const auto format = static_cast<uint8_t>(at[i]), attribute = static_cast<uint8_t>(at[i + 1]);
    const size_t length = format == kSized ? load<uint16_t>(at + i + 2) : 0;
    if (i + 4 + length > bytes)
      return;
    if (format == kSized)
      entry(attribute, at + i + 4, length);
    i += 4 + length;
  }
}

class Elf {
public:
  explicit Elf(const char *image) : image_(image), header_(load<Elf64_Ehdr>(image)) {}

  bool valid() const {
    return header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_machine == kMachineCuda &&
           header_.e_shentsize == sizeof(Elf64_Shdr) && header_.e_shstrndx < header_.e_shnum;
  }
  size_t sections() const { return header_.e_shnum; }
  Elf64_Shdr section(size_t i) const { return load<Elf64_Shdr>(image_ + header_.e_shoff + i * sizeof(Elf64_Shdr)); }
  std::string_view name(const Elf64_Shdr &s) const { return text(header_.e_shstrndx, s.sh_name); }
  std::string_view text(size_t strings, size_t offset) const {
    Elf64_Shdr s = section(strings);
    if (offset >= s.sh_size)
      return {};
    const char *at = image_ + s.sh_offset + offset;
    return {at, strnlen(at, s.sh_size - offset)};
  }
  const char *data(const Elf64_Shdr &s) const { return image_ + s.sh_offset; }

private:
  const char *image_;
  Elf64_Ehdr header_;
};

inline void read_kernel_info(KernelFacts *facts, const char *at, size_t bytes) {
  facts->parameters_known = true;
  each_info(at, bytes, [facts](uint8_t attribute, const char *p, size_t n) {
    switch (attribute) {
    case kInfoMaxThreads:
    case kInfoRequiredThreads:
      if (n >= 12)
        facts->attributes[kMaxThreads] =
            static_cast<int>(load<uint32_t>(p) * load<uint32_t>(p + 4) * load<uint32_t>(p + 8));
      break;
    case kInfoCluster:
      if (n >= 12) {
        facts->attributes[kClusterWidth] = load<int>(p);
        facts->attributes[kClusterHeight] = load<int>(p + 4);
        facts->attributes[kClusterDepth] = load<int>(p + 8);
      }
      break;
    case kInfoParameter: // u32 index, u16 ordinal, u16 offset, and a u32 whose upper 14 bits are the size
      if (n >= 12) {
        const size_t ordinal = load<uint16_t>(p + 4);
        if (facts->parameters.size() <= ordinal)
          facts->parameters.resize(ordinal + 1);
        facts->parameters[ordinal] = {load<uint16_t>(p + 6), load<uint32_t>(p + 8) >> 18};
      }
      break;
    default:
      break;
    }
  });
}

inline bool read_elf(const char *bytes, Image *out) {
  Elf elf(bytes);
  if (!elf.valid())
    return false;
  std::map<uint32_t, std::string> kernel_of_symbol;
  const size_t reserved = config().gpu.reserved_smem_per_block;
  int constants = 0;
  for (size_t i = 0; i < elf.sections(); ++i) {
    Elf64_Shdr s = elf.section(i);
    if (elf.name(s) == ".nv.constant3")
      constants = static_cast<int>(s.sh_size);
    if (s.sh_type != SHT_SYMTAB)
      continue;
    for (uint32_t k = 0; k < s.sh_size / sizeof(Elf64_Sym); ++k) {
      auto symbol = load<Elf64_Sym>(elf.data(s) + k * sizeof(Elf64_Sym));
      const std::string name(elf.text(s.sh_link, symbol.st_name));
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= elf.sections() || name.empty())
        continue;
      const std::string_view home = elf.name(elf.section(symbol.st_shndx));
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && home == ".text." + name) { // device functions share a section
        out->kernels[name];
        kernel_of_symbol[k] = name;
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT &&
                 (home.starts_with(".nv.global") || home.starts_with(".nv.constant"))) {
        out->variables[name] = symbol.st_size;
      }
    }
  }
  for (size_t i = 0; i < elf.sections(); ++i) {
    Elf64_Shdr s = elf.section(i);
    const std::string_view name = elf.name(s);
    constexpr std::string_view kInfo = ".nv.info.", kShared = ".nv.shared.";
    auto kernel = [out](std::string_view of) { return out->kernels.find(std::string(of)); };
    if (name == ".nv.info") {
      each_info(elf.data(s), s.sh_size, [&](uint8_t attribute, const char *p, size_t n) {
        if ((attribute != kInfoRegisters && attribute != kInfoFrameSize) || n < 8)
          return;
        if (auto found = kernel_of_symbol.find(load<uint32_t>(p)); found != kernel_of_symbol.end())
          out->kernels[found->second].attributes[attribute == kInfoRegisters ? kRegisters : kLocalBytes] =
              load<int>(p + 4);
      });
    } else if (name.starts_with(kInfo)) {
      if (auto found = kernel(name.substr(kInfo.size())); found != out->kernels.end())
        read_kernel_info(&found->second, elf.data(s), s.sh_size);
    } else if (name.starts_with(kShared)) { // includes what the system reserves per block
      if (auto found = kernel(name.substr(kShared.size())); found != out->kernels.end())
        found->second.attributes[kStaticShared] = static_cast<int>(s.sh_size >= reserved ? s.sh_size - reserved : 0);
    } else if (name == ".nv_debug_ptx_txt") {
      for (auto &[named, facts] : out->kernels)
        facts.outputs = ptx::outputs({elf.data(s), s.sh_size}, named);
    }
  }
  if (constants > 0)
    for (auto &[name, facts] : out->kernels)
      facts.attributes[kConstBytes] = constants;
  return true;
}

// Returns the word at `at` in PTX, and where it ends.
inline std::string_view word(std::string_view text, size_t *at) {
  while (*at < text.size() && std::isspace(static_cast<unsigned char>(text[*at])) != 0)
    ++*at;
  const size_t begin = *at;
  auto inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '.';
  };
  while (*at < text.size() && inside(text[*at]))
    ++*at;
  return text.substr(begin, *at - begin);
}

// One declaration of a variable, behind .global or .const: .align 4 .b8 name[400], .u32 name, ...
inline void read_ptx_variable(std::string_view text, size_t at, Image *out) {
  size_t element = 0;
  for (std::string_view w = word(text, &at); !w.empty(); w = word(text, &at)) {
    if (w == ".align") {
      word(text, &at);
    } else if (w.front() == '.') { // a type ends in its bits; other words (.v2, .attribute) do not matter here
      const size_t digits = w.find_first_of("0123456789");
      if (digits != std::string_view::npos && std::strchr("bfsut", w[1]) != nullptr)
        element = static_cast<size_t>(std::atoi(std::string(w.substr(digits)).c_str())) / 8;
    } else {
      size_t count = 1;
      while (at < text.size() && text[at] == '[') {
        count *= static_cast<size_t>(std::atoi(std::string(text.substr(at + 1, 20)).c_str()));
        at = std::min(text.find(']', at), text.size() - 1) + 1;
      }
      out->variables[std::string(w)] = element * count;
      return;
    }
  }
}

inline bool read_ptx(const char *bytes, Image *out) {
  std::string_view text(bytes, strnlen(bytes, size_t{64} << 20));
  if (text.find(".version") == std::string_view::npos || text.find(".target") == std::string_view::npos)
    return false;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size() - 1);
    } else if (text[i] == '{') {
      depth++;
    } else if (text[i] == '}') {
      depth--;
    } else if (text[i] == '.' && depth == 0) {
      size_t at = i;
      const std::string_view directive = word(text, &at);
      if (directive == ".entry")
        out->kernels[std::string(word(text, &at))];
      else if (directive == ".global" || directive == ".const")
        read_ptx_variable(text, at, out);
      i = at - 1;
    }
  }
  for (auto &[name, facts] : out->kernels)
    facts.outputs = ptx::outputs(text, name);
  return true;
}

inline bool read_fat(const char *bytes, Image *out) {
  const size_t header = load<uint16_t>(bytes + 6);
  const auto size = static_cast<size_t>(load<uint64_t>(bytes + 8));
  constexpr uint64_t kCompressed = 0x2000 | 0x8000 | 0x1000; // LZ4, Zstandard and older
  constexpr uint16_t kPtx = 1, kElf = 2;
  out->open = true;
  for (size_t at = header; at + 64 <= header + size;) {
    const char *entry = bytes + at;
    const auto entry_header = load<uint32_t>(entry + 4);
    const auto payload = static_cast<size_t>(load<uint64_t>(entry + 8));
    if (entry_header < 64 || at + entry_header + payload > header + size)
      break;
    if ((load<uint64_t>(entry + 40) & kCompressed) == 0) {
      if (load<uint16_t>(entry) == kElf && std::memcmp(entry + entry_header, ELFMAG, SELFMAG) == 0)
        out->open = !read_elf(entry + entry_header, out) && out->open;
      else if (load<uint16_t>(entry) == kPtx)
        out->open = !read_ptx(entry + entry_header, out) && out->open;
    }
    at += entry_header + payload;
  }
  return true;
}

} // namespace cubin

// Returns false for what is no image at all.
inline bool read_image(const void *data, Image *out) {
  const auto *bytes = static_cast<const char *>(data);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) == 0)
    return cubin::read_elf(bytes, out);
  const auto magic = cubin::load<uint32_t>(bytes);
  if (magic == cubin::kFatWrapperMagic)
    return read_image(cubin::load<const void *>(bytes + 8), out);
  if (magic == cubin::kFatMagic)
    return cubin::read_fat(bytes, out);
  return cubin::read_ptx(bytes, out);
}

} // namespace eidolon
