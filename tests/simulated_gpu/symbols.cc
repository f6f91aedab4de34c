// This program's own symbol table: names of kernels, and where statically declared shared memory
// lies.
//
// `__shared__` is `static thread_local`, so each such array is a thread-local object that is named
// within a C++ function (its mangled name begins with _ZZ), and nothing else of a test program is:
// this folder has none. Where the program is stripped, kernels have no names and static shared
// memory is not refilled.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

namespace simulated
{

struct shared_object {
    uint64_t offset, bytes; // from the start of the thread-local block
    std::string name;
};

struct symbol_table {
    std::map<uint64_t, std::string> functions; // by value
    std::vector<shared_object> shared;
    uint64_t base; // where the program was loaded
};

static int note_program(struct dl_phdr_info *info, size_t, void *user)
{
    *static_cast<struct dl_phdr_info *>(user) = *info;
    return 1; /* the first one is the program */
}

static struct dl_phdr_info get_program()
{
    struct dl_phdr_info info = {};
    dl_iterate_phdr(note_program, &info);
    return info;
}

static void note_symbols(symbol_table *table, const char *file, const ElfW(Shdr) & section,
                         const char *names)
{
    const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(file + section.sh_offset);
    for (size_t i = 0; i < section.sh_size / sizeof *symbols; i++) {
        const char *name = names + symbols[i].st_name;
        if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC)
            table->functions[symbols[i].st_value] = name;
        else if (ELF64_ST_TYPE(symbols[i].st_info) == STT_TLS && strncmp(name, "_ZZ", 3) == 0)
            table->shared.push_back(shared_object{symbols[i].st_value, symbols[i].st_size, name});
    }
}

static symbol_table *read_symbols()
{
    symbol_table *table = new symbol_table();
    table->base = get_program().dlpi_addr;
    int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0)
        return table;
    size_t bytes = static_cast<size_t>(status.st_size);
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (memory == MAP_FAILED)
        return table;
    const char *file = static_cast<const char *>(memory);
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(file);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(file + header->e_shoff);
    for (size_t i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB)
            note_symbols(table, file, sections[i], file + sections[sections[i].sh_link].sh_offset);
    munmap(memory, bytes);
    return table;
}

static symbol_table *get_symbols()
{
    static symbol_table *table = read_symbols();
    return table;
}

// The mangled name of a function; NULL where it has none.
static const std::string *find_function(const void *address)
{
    const symbol_table *table = get_symbols();
    auto found = table->functions.find(reinterpret_cast<uint64_t>(address) - table->base);
    return found == table->functions.end() ? NULL : &found->second;
}

const char *symbol_name(const void *address)
{
    static std::mutex mutex;
    static std::map<const void *, std::string> *names = new std::map<const void *, std::string>();
    std::lock_guard<std::mutex> guard(mutex);
    auto known = names->find(address);
    if (known != names->end())
        return known->second.c_str();
    const std::string *mangled = find_function(address);
    char text[32];
    snprintf(text, sizeof text, "%p", address);
    std::string name = text;
    if (mangled) {
        int status = 0;
        char *plain = abi::__cxa_demangle(mangled->c_str(), NULL, NULL, &status);
        name = plain ? plain : *mangled;
        free(plain);
    }
    return names->emplace(address, name).first->second.c_str();
}

size_t static_shared_bytes(const void *kernel)
{
    const std::string *mangled = find_function(kernel); /* _Z6kernelPf has _ZZ6kernelPfE4name */
    if (!mangled || mangled->size() < 2)
        return 0;
    std::string prefix = "_ZZ" + mangled->substr(2) + "E";
    size_t bytes = 0;
    for (const shared_object &object : get_symbols()->shared)
        if (object.name.compare(0, prefix.size(), prefix) == 0)
            bytes += object.bytes;
    return bytes;
}

static __thread char *thread_block; // where this thread's thread-local objects begin

void fill_static_shared()
{
    if (!thread_block)
        thread_block = static_cast<char *>(get_program().dlpi_tls_data);
    if (!thread_block)
        return;
    for (const shared_object &object : get_symbols()->shared)
        memset(thread_block + object.offset, 0xff, object.bytes);
}

} // namespace simulated
