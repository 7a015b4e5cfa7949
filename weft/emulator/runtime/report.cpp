// Findings and the words in them; see report.h.
#include "report.h"

namespace weft_rt {

struct Finding {
  const char* kind;
  int line, other_line, note_line;  // note_line: of the note in force, for lines inside the library
  u32 count;
  u32 grid, other_grid;  // whose lines these are
  const char* block;
  const char* thread;
  const char* message;
  const char* hint;
};

static List<Finding> findings;
static List<char*> kept_text;
static Text serialised;

COLD const char* format_list(const char* format, va_list list) {
  Text text = {};
  text.add_list(format, list);
  text.c_str();
  kept_text.push(text.characters.items);
  return text.characters.items;
}

COLD const char* format_text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  const char* text = format_list(format, list);
  va_end(list);
  return text;
}

void clear_findings() {
  for (char* text : kept_text) free(text);
  kept_text.clear();
  findings.clear();
}
u32 finding_count() { return findings.count; }

static Finding* find_finding(const char* kind, int line, int other_line, u32 grid) {
  for (Finding& f : findings)
    if (!strcmp(f.kind, kind) && f.line == line && f.other_line == other_line && f.grid == grid) return &f;
  return nullptr;
}

COLD bool is_repeated(const char* kind, int line, int other_line, u32 grid) {
  Finding* known = find_finding(kind, line, other_line, grid);
  if (known) known->count++;
  return known || findings.count >= machine.config.max_findings;
}

static void add_finding(const char* kind, int line, int other_line, const char* hint, const char* format, va_list list, u32 grid, u32 other_grid) {
  const Block* b = machine.current ? machine.current->block : machine.current_block;
  const char* block = b ? format_text("%u,%u,%u", b->x, b->y, b->z) : "";
  const char* thread = machine.current ? describe_fiber(machine.current) : "";
  const WeftNote* note = machine.current && machine.grid->number == grid ? machine.current->note : nullptr;
  findings.push(Finding{kind, line, other_line, note ? note->line : 0, 1, grid, other_grid, block, thread, format_list(format, list), hint ? hint : ""});
}

COLD void report(const char* kind, int line, int other_line, const char* hint, const char* format, ...) {
  va_list list;
  va_start(list, format);
  add_finding(kind, line, other_line, hint, format, list, machine.grid->number, machine.grid->number);
  va_end(list);
}

COLD void report_between_grids(const char* kind, int second_line, int first_line, const char* hint, const char* format, ...) {
  va_list list;
  va_start(list, format);
  add_finding(kind, second_line, first_line, hint, format, list, 1, 0);
  va_end(list);
}

COLD void fatal(const char* kind, int line, int other_line, const char* hint, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const u32 grid = machine.grid->number;
  if (!find_finding(kind, line, other_line, grid)) add_finding(kind, line, other_line, hint, format, list, grid, grid);
  va_end(list);
  machine.aborted = true;
  leave_to_main();
}

COLD const char* describe_fiber(const Fiber* f) {
  const Grid* grid = f->block->unit->grid;
  const char* block = grid->unit_count * grid->unit_blocks > 1 ? format_text(" of block (%u,%u,%u)", f->block->x, f->block->y, f->block->z) : "";
  u64 t = f->thread_index;
  const char* role = f->role ? format_text(" [%s]", f->role) : "";
  const char* note = f->note ? format_text(" at \"%s\"", f->note->text) : "";
  return format_text("thread (%u,%u,%u)%s, warp %u lane %u%s%s", (u32)t, (u32)(t >> 32) & 0xffff, (u32)(t >> 48), block, f->warp->index, f->lane,
                     role, note);
}

static const char* describe_shared(const Block* b, u64 offset) {
  for (const Name& name : const_cast<Block*>(b)->names) {
    u64 inside = (u64)b->shared + offset - name.first;
    if (inside < name.bytes) return format_text("shared '%s' + %llu", name.text, (unsigned long long)inside);
  }
  return format_text("shared memory + %llu", (unsigned long long)offset);
}

COLD const char* describe_address(u64 address) {
  for (Unit* unit : machine.resident)
    for (u32 i = 0; i < unit->block_count; i++) {
      Block* b = unit->blocks[i];
      u64 offset = address - (u64)b->shared;
      if (offset < machine.grid->shared_capacity_bytes) return describe_shared(b, offset);
    }
  for (const Buffer& buffer : machine.grid->buffers)
    if (address - buffer.first < buffer.bytes) return format_text("'%s' + %llu", buffer.name, (unsigned long long)(address - buffer.first));
  return format_text("address 0x%llx", (unsigned long long)address);
}

COLD const char* describe_mbarrier(const Mbarrier* m) {
  return format_text("mbarrier at %s (init at line %d with count %u; phase %u, %u arrivals pending, tx-count %lld, %u bytes in flight)",
                     describe_shared(m->block, m->offset), m->init_line, m->expected, m->phase, m->pending, (long long)m->tx_bytes,
                     m->bytes_in_flight);
}

const char* wait_name(Wait wait) {
  switch (wait) {
    case Wait::NONE: return "nothing";
    case Wait::BARRIER: return "a block or named barrier";
    case Wait::COLLECTIVE: return "a warp collective";
    case Wait::MBARRIER: return "an mbarrier";
    case Wait::BULK_GROUP: return "bulk_wait";
    case Wait::REGISTERS: return "setmaxnreg_inc";
    case Wait::CLUSTER: return "cluster_wait";
    case Wait::POLL: return "a value in global memory";
    case Wait::NEXT_GRID: return "griddep_launch";
    case Wait::PREVIOUS_GRID: return "griddep_wait";
  }
  return "?";
}

static void serialise() {
  serialised.characters.clear();
  for (const Finding& f : findings)
    serialised.add("%s\x1f%d\x1f%d\x1f%d\x1f%u\x1f%u\x1f%u\x1f", f.kind, f.line, f.other_line, f.note_line, f.count, f.grid, f.other_grid)
        .add("%s\x1f%s\x1f", f.block, f.thread)
        .add("%s\x1f", f.message)
        .add("%s\x1e", f.hint);
}

}  // namespace weft_rt

EXPORT const char* weft_rt_findings() {
  weft_rt::serialise();
  return weft_rt::serialised.c_str();
}
