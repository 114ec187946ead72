// NVRTC: run-time compilation, as PyTorch's jiterator and fusers use it.
//
// Nothing that it makes is ever run, so nothing is compiled. The image of a program names the kernels that its source
// defines. That is enough to load a module and to launch from it. There are two forms of the image, as from the real
// library: PTX with an empty entry per kernel, and a cubin, which is an ELF object whose symbol table holds the
// kernels. So a source is accepted even if the real compiler would refuse it.
//
// The lowered name of a name expression keeps the expression readable, so that kernel names in the results say what
// ran: `scale<float>` becomes _Z13scale_float_v.
#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nvrtc.h>
#include <string>
#include <vector>

#include "core.h"

using namespace eidolon;

namespace {

constexpr int kVersionMinor = EIDOLON_CUDA == 12 ? 8 : 0;
#if EIDOLON_CUDA == 12
constexpr int kArchitectures[] = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120};
#else
constexpr int kArchitectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
#endif
constexpr Elf64_Half kMachineCuda = 190;

struct Program {
  std::string source;
  std::map<std::string, std::string> lowered; // name expression -> symbol; values stay in place for the caller
  std::string ptx, cubin;
  bool compiled = false;
};

std::string mangle(const std::string &name) { return "_Z" + std::to_string(name.size()) + name + "v"; }

std::string lower(const std::string &expression) {
  std::string name;
  for (char c : expression) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_')
      name += c;
    else if (!name.empty() && name.back() != '_')
      name += '_';
  }
  return mangle(name.empty() ? "kernel" : name);
}

bool identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Returns where the "(...)" that starts at or after `at` ends, or npos if none follows at once.
size_t past_parentheses(const std::string &text, size_t at) {
  int depth = 0;
  for (; at < text.size(); at++) {
    if (text[at] == '(')
      depth++;
    else if (text[at] == ')' && --depth == 0)
      return at + 1;
    else if (depth == 0 && !std::isspace(static_cast<unsigned char>(text[at])))
      return std::string::npos;
  }
  return std::string::npos;
}

// The names of the `__global__` functions of a source. Each is the last word before the parameter list.
std::vector<std::string> kernels_of(const std::string &source) {
  constexpr char kGlobal[] = "__global__";
  std::vector<std::string> names;
  for (size_t at = source.find(kGlobal); at != std::string::npos; at = source.find(kGlobal, at)) {
    at += sizeof kGlobal - 1;
    std::string word;
    while (at < source.size() && source[at] != ';' && source[at] != '{') {
      if (identifier(source[at])) {
        size_t begin = at;
        while (at < source.size() && identifier(source[at]))
          at++;
        word = source.substr(begin, at - begin);
        if (word == "__launch_bounds__" || word == "__attribute__" || word == "__maxnreg__") {
          size_t after = past_parentheses(source, at);
          at = after == std::string::npos ? at : after;
          word.clear();
        }
      } else if (source[at] == '(') {
        break;
      } else {
        at++;
      }
    }
    if (!word.empty())
      names.push_back(word);
  }
  return names;
}

std::string make_ptx(const std::vector<std::string> &symbols, int architecture) {
  std::string text = "//\n// Made by eidolon: entries without code\n//\n.version 8.0\n.target sm_" +
                     std::to_string(architecture) + "\n.address_size 64\n";
  for (const std::string &symbol : symbols)
    text += ".visible .entry " + symbol + "()\n{\n\tret;\n}\n";
  return text;
}

// Makes an ELF object with a string table and a symbol table of global functions, each in an empty section.
std::string make_cubin(const std::vector<std::string> &symbols, int architecture) {
  std::string names(1, '\0');
  auto intern = [&names](const std::string &name) {
    auto offset = static_cast<Elf64_Word>(names.size());
    names += name;
    names += '\0';
    return offset;
  };
  std::vector<Elf64_Sym> table(1);
  std::vector<Elf64_Shdr> sections(3); // null, strings, symbols, then one per kernel
  sections[1].sh_name = intern(".strtab");
  sections[1].sh_type = SHT_STRTAB;
  sections[2].sh_name = intern(".symtab");
  sections[2].sh_type = SHT_SYMTAB;
  for (const std::string &symbol : symbols) {
    Elf64_Sym entry = {};
    entry.st_name = intern(symbol);
    entry.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    entry.st_shndx = static_cast<Elf64_Section>(sections.size());
    table.push_back(entry);
    Elf64_Shdr section = {};
    section.sh_name = intern(".text." + symbol);
    section.sh_type = SHT_PROGBITS;
    section.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    sections.push_back(section);
  }
  size_t padded = (names.size() + 7) / 8 * 8, table_bytes = table.size() * sizeof(Elf64_Sym);
  sections[1].sh_offset = sizeof(Elf64_Ehdr);
  sections[1].sh_size = names.size();
  sections[1].sh_addralign = 1;
  sections[2].sh_offset = sizeof(Elf64_Ehdr) + padded;
  sections[2].sh_size = table_bytes;
  sections[2].sh_link = 1; // its strings
  sections[2].sh_info = 1; // first global symbol
  sections[2].sh_addralign = 8;
  sections[2].sh_entsize = sizeof(Elf64_Sym);

  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = kMachineCuda;
  header.e_version = EV_CURRENT;
  header.e_flags = static_cast<Elf64_Word>(architecture);
  header.e_ehsize = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = 1;
  header.e_shoff = sizeof header + padded + table_bytes;

  std::string image(reinterpret_cast<const char *>(&header), sizeof header);
  image += names;
  image.resize(sizeof header + padded, '\0');
  image.append(reinterpret_cast<const char *>(table.data()), table_bytes);
  image.append(reinterpret_cast<const char *>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
  return image;
}

// The number in --gpu-architecture=sm_90, -arch=compute_90a and the like. Without the option it is that of the emulated
// device.
int architecture_of(int count, const char *const *options) {
  const Gpu &gpu = config().gpu;
  int number = gpu.cc_major ? gpu.cc_major * 10 + gpu.cc_minor : 75;
  for (int i = 0; i < count; i++) {
    const char *at = options[i] ? std::strstr(options[i], "arch") : nullptr;
    const char *underscore = at ? std::strpbrk(at, "_") : nullptr;
    if (underscore && std::isdigit(static_cast<unsigned char>(underscore[1])))
      number = std::atoi(underscore + 1);
  }
  return number;
}

Program *program_of(nvrtcProgram handle) { return reinterpret_cast<Program *>(handle); }

nvrtcResult text_size(const std::string &text, size_t *out) {
  if (!out)
    return NVRTC_ERROR_INVALID_INPUT;
  *out = text.size();
  return NVRTC_SUCCESS;
}
nvrtcResult text_copy(const std::string &text, char *out) {
  if (!out)
    return NVRTC_ERROR_INVALID_INPUT;
  std::copy(text.begin(), text.end(), out); // the terminator, where there is one, is part of the text
  return NVRTC_SUCCESS;
}

} // namespace

extern "C" {

EID_API nvrtcResult nvrtcVersion(int *major, int *minor) {
  if (!major || !minor)
    return NVRTC_ERROR_INVALID_INPUT;
  *major = EIDOLON_CUDA;
  *minor = kVersionMinor;
  return NVRTC_SUCCESS;
}
EID_API nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
  if (!count)
    return NVRTC_ERROR_INVALID_INPUT;
  *count = static_cast<int>(sizeof kArchitectures / sizeof *kArchitectures);
  return NVRTC_SUCCESS;
}
EID_API nvrtcResult nvrtcGetSupportedArchs(int *out) {
  if (!out)
    return NVRTC_ERROR_INVALID_INPUT;
  std::memcpy(out, kArchitectures, sizeof kArchitectures);
  return NVRTC_SUCCESS;
}

EID_API const char *nvrtcGetErrorString(nvrtcResult result) {
  switch (result) {
  case NVRTC_SUCCESS:
    return "NVRTC_SUCCESS";
  case NVRTC_ERROR_INVALID_INPUT:
    return "NVRTC_ERROR_INVALID_INPUT";
  case NVRTC_ERROR_INVALID_PROGRAM:
    return "NVRTC_ERROR_INVALID_PROGRAM";
  case NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION:
    return "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
  case NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
    return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
  case NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID:
    return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
  case NVRTC_ERROR_INTERNAL_ERROR:
    return "NVRTC_ERROR_INTERNAL_ERROR (not modelled by eidolon)";
  default:
    return "NVRTC error";
  }
}

EID_API nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *, int, const char *const *,
                                       const char *const *) {
  if (!out || !source)
    return NVRTC_ERROR_INVALID_INPUT;
  auto *program = new Program;
  program->source = source;
  *out = reinterpret_cast<nvrtcProgram>(program);
  return NVRTC_SUCCESS;
}
EID_API nvrtcResult nvrtcDestroyProgram(nvrtcProgram *handle) {
  if (!handle || !*handle)
    return NVRTC_ERROR_INVALID_PROGRAM;
  delete program_of(*handle);
  *handle = nullptr;
  return NVRTC_SUCCESS;
}

EID_API nvrtcResult nvrtcAddNameExpression(nvrtcProgram handle, const char *expression) {
  if (!handle || !expression)
    return NVRTC_ERROR_INVALID_INPUT;
  Program *program = program_of(handle);
  if (program->compiled)
    return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
  program->lowered.emplace(expression, lower(expression));
  return NVRTC_SUCCESS;
}
EID_API nvrtcResult nvrtcGetLoweredName(nvrtcProgram handle, const char *expression, const char **out) {
  if (!handle || !expression || !out)
    return NVRTC_ERROR_INVALID_INPUT;
  Program *program = program_of(handle);
  if (!program->compiled)
    return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  auto found = program->lowered.find(expression);
  if (found == program->lowered.end())
    return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
  *out = found->second.c_str();
  return NVRTC_SUCCESS;
}

EID_API nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char *const *options) {
  if (!handle || (count > 0 && !options))
    return NVRTC_ERROR_INVALID_INPUT;
  Program *program = program_of(handle);
  std::vector<std::string> symbols;
  for (const std::string &name : kernels_of(program->source)) {
    symbols.push_back(name); // its symbol is its name, as after extern "C"
    symbols.push_back(mangle(name));
  }
  for (const auto &[expression, symbol] : program->lowered)
    symbols.push_back(symbol);
  int architecture = architecture_of(count, options);
  program->ptx = make_ptx(symbols, architecture) + '\0'; // PTX sizes count the terminator
  program->cubin = make_cubin(symbols, architecture);
  program->compiled = true;
  return NVRTC_SUCCESS;
}

EID_API nvrtcResult nvrtcGetPTXSize(nvrtcProgram handle, size_t *out) {
  return handle ? text_size(program_of(handle)->ptx, out) : NVRTC_ERROR_INVALID_PROGRAM;
}
EID_API nvrtcResult nvrtcGetPTX(nvrtcProgram handle, char *out) {
  return handle ? text_copy(program_of(handle)->ptx, out) : NVRTC_ERROR_INVALID_PROGRAM;
}
EID_API nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, size_t *out) {
  return handle ? text_size(program_of(handle)->cubin, out) : NVRTC_ERROR_INVALID_PROGRAM;
}
EID_API nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char *out) {
  return handle ? text_copy(program_of(handle)->cubin, out) : NVRTC_ERROR_INVALID_PROGRAM;
}
// The log is empty.
EID_API nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, size_t *out) {
  return handle ? text_size(std::string(1, '\0'), out) : NVRTC_ERROR_INVALID_PROGRAM;
}
EID_API nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char *out) {
  return handle ? text_copy(std::string(1, '\0'), out) : NVRTC_ERROR_INVALID_PROGRAM;
}
} // extern "C"
