// Shadow memory; see shadow.h. The rules are FastTrack's: compare epochs first, and keep a full vector of readers only for
// locations that several threads read.
#include "shadow.h"
#include "report.h"

namespace weft_rt {

// Blocks of N cells, taken and given back by number.
template <u32 N> struct CellPool {
  struct Entry {
    Cell cells[N];
  };
  static const u32 PER_CHUNK = 1024;
  List<Entry*> chunks;
  List<u32> unused;
  u32 count;

  Cell* operator[](u32 i) { return chunks[i / PER_CHUNK][i % PER_CHUNK].cells; }
  u32 take() {
    if (unused.count) return unused.pop();
    if (count == chunks.count * PER_CHUNK) chunks.push((Entry*)malloc(PER_CHUNK * sizeof(Entry)));
    return count++;
  }
  void release() {
    for (Entry* chunk : chunks) free(chunk);
    chunks.release();
    unused.release();
    count = 0;
  }
};

struct OtherReader {
  Epoch epoch;
  u32 line;
};
struct Readers {
  u32 unit;
  u32 width;
  u32* clock;  // per index in the unit; 0: has not read
  u32* line;
  List<OtherReader> others;  // of other units, one per unit
};

static CellPool<4> word_cells;   // a 16-byte cell split into 4-byte cells
static CellPool<16> byte_cells;  // or into bytes
static List<Readers*> readers;
static List<u32> free_readers;

// In a split cell, `write` is one of these and `read` the number of its parts.
static const Epoch WORDS_MARK = make_epoch(0, INDEX_SPLIT, 1), BYTES_MARK = make_epoch(0, INDEX_SPLIT, 2);

struct Parts {
  Cell* cells;
  u32 granule;  // bytes per cell
};

static bool is_split(const Cell& c) { return c.write == WORDS_MARK || c.write == BYTES_MARK; }
static Parts parts_of(const Cell& c) { return c.write == WORDS_MARK ? Parts{word_cells[(u32)c.read], 4} : Parts{byte_cells[(u32)c.read], 1}; }
static void drop_parts(const Cell& c) { (c.write == WORDS_MARK ? word_cells.unused : byte_cells.unused).push((u32)c.read); }
static bool has_readers(const Cell& c) { return epoch_index(c.read) == INDEX_SHARED_READERS; }

// ---- pools --------------------------------------------------------------------------------------------------------

static u32 take_readers(u32 unit) {
  u32 i;
  if (free_readers.count) {
    i = free_readers.pop();
  } else {
    Readers* r = (Readers*)calloc(1, sizeof(Readers));
    r->width = clocks.width;
    r->clock = (u32*)malloc(clocks.width * sizeof(u32));
    r->line = (u32*)malloc(clocks.width * sizeof(u32));
    readers.push(r);
    i = readers.count - 1;
  }
  readers[i]->unit = unit;
  readers[i]->others.clear();
  memset(readers[i]->clock, 0, clocks.width * sizeof(u32));
  return i;
}

static void drop_read(Cell& c) {
  if (has_readers(c)) free_readers.push(epoch_clock(c.read));
  c.read = 0;
}

void release_shadow_pools() {
  for (Readers* r : readers) {
    free(r->clock);
    free(r->line);
    r->others.release();
    free(r);
  }
  word_cells.release();
  byte_cells.release();
  readers.clear();
  free_readers.clear();
}

// ---- life ---------------------------------------------------------------------------------------------------------

Shadow* make_shadow(u64 first, u64 bytes, bool initialised) {
  if (!machine.config.check_races) return nullptr;
  Shadow* s = (Shadow*)calloc(1, sizeof(Shadow));
  s->first = first & ~15ull;
  s->cells_count = (first - s->first + bytes + 15) / 16;
  s->initialised = initialised;
  s->cells = (Cell*)calloc(s->cells_count + 1, sizeof(Cell));
  return s;
}

static void clear_cell(Cell& c) {
  if (is_split(c)) {
    const Parts parts = parts_of(c);
    for (u32 i = 0; i < 16 / parts.granule; i++) drop_read(parts.cells[i]);
    drop_parts(c);
  } else {
    drop_read(c);
  }
  c = Cell{};
}

void reset_shadow(Shadow* s) {
  if (!s) return;
  for (u64 i = 0; i < s->cells_count; i++)
    if (s->cells[i].write | s->cells[i].read) clear_cell(s->cells[i]);
}

void free_shadow(Shadow* s) {
  if (!s) return;
  free(s->cells);
  free(s);
}

// ---- order --------------------------------------------------------------------------------------------------------

bool knows(const Accessor& by, Epoch e) {
  const Fiber* f = by.fiber;
  const u32 index = epoch_index(e), clock = epoch_clock(e);
  if (UNLIKELY(index >= INDEX_SPLIT)) return index == INDEX_HOST;
  if (epoch_unit(e) != f->block->unit->id) {
    if (UNLIKELY(machine.grid_count > 1) && is_second(f) && !grid_of(e) && find_unit(f->base->foreign[KNOWN], FIRST_GRID)) return true;
    const Knowledge* other = find_unit(f->base->foreign[KNOWN], epoch_unit(e));
    return other && other->clock[index] >= clock;
  }
  if (index == f->index) return true;
  if (by.copy && index == epoch_index(by.epoch)) return true;
  if (machine.uses_cp_async && index == cp_async_index(f) && clock <= f->cp_async_done) return true;
  return f->base->clock[index] >= clock;
}

// Whether a generic write is visible to the async proxy: a fence.proxy.async lies between.
static bool is_fenced(const Accessor& by, Epoch e) {
  const Fiber* f = by.fiber;
  const u32 index = epoch_index(e), clock = epoch_clock(e), threads = machine.unit_threads;
  if (index >= threads && index < threads + COPY_SLOTS) return true;
  if (grid_of(e) != f->block->unit->grid->number) return true;  // the end of a kernel is a fence
  if (epoch_unit(e) != f->block->unit->id) {
    const Knowledge* other = find_unit(f->base->foreign[PROXY_FENCED], epoch_unit(e));
    if (other && other->clock[index] >= clock) return true;
    other = find_unit(f->base->foreign[KNOWN], epoch_unit(e));
    return other && clock_of(other, PROXY_FENCED, index) >= clock;
  }
  if (index == f->index) return clock <= f->fenced_clock[PROXY_FENCED];
  return clock_of(f->base, PROXY_FENCED, index) >= clock;
}

// ---- reports ------------------------------------------------------------------------------------------------------

static bool is_of_other_grid(const Accessor& by, Epoch e) { return machine.grid_count > 1 && grid_of(e) != by.fiber->block->unit->grid->number; }

static const char* describe_party(Epoch e) {
  const u32 index = epoch_index(e), threads = machine.unit_threads;
  if (index == INDEX_HOST) return "the host";
  for (Unit* unit : machine.resident)
    if (unit->id == epoch_unit(e)) {
      if (index < threads) return describe_fiber(&unit->fibers[index]);
      if (index < threads + COPY_SLOTS) return "an asynchronous bulk copy";
      return format_text("cp_async of %s", describe_fiber(&unit->fibers[index - threads - COPY_SLOTS]));
    }
  return format_text("a thread of block %u", epoch_unit(e) - 1 - machine.grids[grid_of(e)].first_unit);
}

// A thread of the second grid and one of the first; the other one came first.
static COLD void report_overlap(u64 address, const Accessor& by, u32 line, bool write, Epoch other, u32 other_line, bool other_writes) {
  const bool second_now = is_second(by.fiber);
  const u32 late = second_now ? line : other_line, early = second_now ? other_line : line;
  if (is_repeated("overlaps-kernel-before", (int)late, (int)early, 1)) return;
  const bool late_writes = second_now ? write : other_writes, early_writes = second_now ? other_writes : write;
  const Grid &first = machine.grids[0], &second = machine.grids[1];
  const char* place;
  {
    const InGrid there(&machine.grids[1]);
    place = describe_address(address);
  }
  report_between_grids("overlaps-kernel-before", (int)late, (int)early,
                       "griddep_wait() in front of the access, in this thread or in one that a barrier puts in front; griddep_launch() of the kernel before orders nothing",
                       "%s of %s by %s of %s at line %u is not behind griddep_wait(), and %s, the kernel before, %s there at line %u", late_writes ? "write" : "read", place,
                       second_now ? describe_fiber(by.fiber) : describe_party(other), second.name, late, first.name, early_writes ? "writes" : "reads", early);
}

static COLD void report_race(u64 address, const Accessor& by, u32 line, bool write, Epoch other, u32 other_line, bool other_writes) {
  const u32 here = line & ~STRONG_LINE, there = other_line & ~STRONG_LINE;
  if (is_of_other_grid(by, other)) {
    report_overlap(address, by, here, write, other, there, other_writes);
    return;
  }
  if (epoch_index(other) == INDEX_MBARRIER) {
    REPORT("plain-access-to-mbarrier", (int)here, (int)there, "keep barriers and data apart", "%s of %s by %s: an mbarrier lives there",
           write ? "write" : "read", describe_address(address), describe_fiber(by.fiber));
    return;
  }
  REPORT("data-race", (int)here, (int)there, "order them: a barrier between, or release and acquire of one flag",
         "data race on %s: %s by %s%s at line %u is not ordered after the %s by %s at line %u", describe_address(address), write ? "write" : "read",
         by.copy ? "a bulk copy issued by " : "", describe_fiber(by.fiber), here, other_writes ? "write" : "read", describe_party(other), there);
}

static COLD void report_unfenced(u64 address, const Accessor& by, u32 line, Epoch other, u32 other_line, bool other_writes) {
  REPORT("missing-proxy-fence", (int)(line & ~STRONG_LINE), (int)(other_line & ~STRONG_LINE),
         other_writes ? "fence_proxy_async() by the writing thread, before the barrier that orders the two"
                      : "fence_proxy_async() by the thread that issues the copy, after the barrier or the wait that orders the two",
         "bulk copy issued by %s at line %u touches %s, %s at line %u by %s without a fence_proxy_async between", describe_fiber(by.fiber),
         line & ~STRONG_LINE, describe_address(address), other_writes ? "written" : "read", other_line & ~STRONG_LINE, describe_party(other));
}

static COLD void report_uninitialised(u64 address, const Accessor& by, u32 line) {
  REPORT("uninitialised-read", (int)(line & ~STRONG_LINE), 0, "write it first, or read only what was written", "read of %s by %s%s: nobody wrote it",
         describe_address(address), by.copy ? "a bulk copy issued by " : "", describe_fiber(by.fiber));
}

// ---- one cell -----------------------------------------------------------------------------------------------------

static inline bool both_strong(u32 a, u32 b) { return a & b & STRONG_LINE; }

// Whether a read is over, or the bytes of a copy have come, because bytes have come that were sent after that.
static bool was_read(const Accessor& by, Epoch e) {
  const Knowledge* reads = by.fiber->reads;
  return reads && !by.copy && epoch_index(e) < INDEX_SPLIT && epoch_unit(e) == by.fiber->block->unit->id && reads->clock[epoch_index(e)] >= epoch_clock(e);
}

static inline bool is_copy(Epoch e) {
  const u32 threads = machine.unit_threads;
  return epoch_index(e) >= threads && epoch_index(e) < threads + COPY_SLOTS;
}

static ALWAYS_INLINE void check_last_write(Cell& c, const Accessor& by, u32 line, u64 address, bool write) {
  if (c.write == by.epoch) return;
  if (UNLIKELY(!knows(by, c.write) && !(write && is_copy(c.write) && was_read(by, c.write)))) {
    if (!both_strong(c.write_line, line) || is_of_other_grid(by, c.write)) report_race(address, by, line, write, c.write, c.write_line, true);
  } else if (UNLIKELY(by.copy && !is_fenced(by, c.write))) {
    report_unfenced(address, by, line, c.write, c.write_line, true);
  }
}

static void note_reader(Readers* r, const Accessor& by, u32 line) {
  const u32 unit = epoch_unit(by.epoch);
  if (unit == r->unit) {
    r->clock[epoch_index(by.epoch)] = epoch_clock(by.epoch);
    r->line[epoch_index(by.epoch)] = line;
    return;
  }
  for (OtherReader& other : r->others)
    if (epoch_unit(other.epoch) == unit) {
      other = {by.epoch, line};
      return;
    }
  r->others.push({by.epoch, line});
}

static ALWAYS_INLINE void read_cell(Shadow* s, Cell& c, const Accessor& by, u32 line, u64 address) {
  if (c.write)
    check_last_write(c, by, line, address, false);
  else if (UNLIKELY(!s->initialised))
    report_uninitialised(address, by, line);
  if (c.read == by.epoch) return;
  if (UNLIKELY(has_readers(c))) {
    note_reader(readers[epoch_clock(c.read)], by, line);
    return;
  }
  if (c.read && !knows(by, c.read)) {
    const u32 i = take_readers(epoch_unit(c.read));
    Accessor before = by;
    before.epoch = c.read;
    note_reader(readers[i], before, c.read_line);
    note_reader(readers[i], by, line);
    c.read = make_epoch(0, INDEX_SHARED_READERS, i);
    return;
  }
  c.read = by.epoch;
  c.read_line = line;
}

// A write after a read: true when the two are in order, also across proxies.
static ALWAYS_INLINE bool check_read(const Accessor& by, u32 line, u64 address, Epoch read, u32 read_line) {
  if (UNLIKELY(!knows(by, read) && !was_read(by, read))) {
    if (both_strong(read_line, line) && !is_of_other_grid(by, read)) return true;
    report_race(address, by, line, true, read, read_line, false);
    return false;
  }
  if (UNLIKELY(by.copy && !is_fenced(by, read))) {
    report_unfenced(address, by, line, read, read_line, false);
    return false;
  }
  return true;
}

static COLD void check_readers(Cell& c, const Accessor& by, u32 line, u64 address) {
  Readers* r = readers[epoch_clock(c.read)];
  for (u32 i = 0; i < r->width; i++)
    if (r->clock[i] && !check_read(by, line, address, make_epoch(r->unit, i, r->clock[i]), r->line[i])) return;
  for (OtherReader& other : r->others)
    if (!check_read(by, line, address, other.epoch, other.line)) return;
}

static ALWAYS_INLINE void write_cell(Cell& c, const Accessor& by, u32 line, u64 address) {
  if (c.write) check_last_write(c, by, line, address, true);
  if (c.read) {
    if (UNLIKELY(has_readers(c)))
      check_readers(c, by, line, address);
    else if (c.read != by.epoch)
      check_read(by, line, address, c.read, c.read_line);
    drop_read(c);
  }
  c.write = by.epoch;
  c.write_line = line;
}

// ---- ranges -------------------------------------------------------------------------------------------------------

static u32 copy_of_readers(u32 from) {
  u32 to = take_readers(readers[from]->unit);
  memcpy(readers[to]->clock, readers[from]->clock, clocks.width * sizeof(u32));
  memcpy(readers[to]->line, readers[from]->line, clocks.width * sizeof(u32));
  for (OtherReader& other : readers[from]->others) readers[to]->others.push(other);
  return to;
}

static Cell copy_of(const Cell& c) {
  Cell copy = c;
  if (has_readers(c)) copy.read = make_epoch(0, INDEX_SHARED_READERS, copy_of_readers(epoch_clock(c.read)));
  return copy;
}

// Splits a cell (further, if need be) and returns its parts.
static Parts split_cell(Cell& c, u32 granule) {
  if (is_split(c) && parts_of(c).granule <= granule) return parts_of(c);
  const u32 number = granule == 4 ? word_cells.take() : byte_cells.take();
  const Parts parts = granule == 4 ? Parts{word_cells[number], 4} : Parts{byte_cells[number], 1};
  const Parts old = is_split(c) ? parts_of(c) : Parts{&c, 16};
  for (u32 i = 0; i < 16 / granule; i++) {
    const Cell& from = old.cells[i * granule / old.granule];
    parts.cells[i] = i * granule % old.granule ? copy_of(from) : from;
  }
  if (is_split(c)) drop_parts(c);
  c = Cell{granule == 4 ? WORDS_MARK : BYTES_MARK, number, 0, 0};
  return parts;
}

static void access_part(Shadow* s, Cell& c, u64 address, u32 from, u32 to, bool write, const Accessor& by, u32 line) {
  const Parts parts = split_cell(c, (from | to) % 4 ? 1 : 4);
  for (u32 at = from; at < to; at += parts.granule) {
    Cell& part = parts.cells[at / parts.granule];
    if (write)
      write_cell(part, by, line, address + at);
    else
      read_cell(s, part, by, line, address + at);
  }
}

void shadow_access(Shadow* s, u64 address, u32 bytes, bool write, const Accessor& by, u32 line) {
  u64 at = address & ~15ull;
  Cell* c = &s->cells[(at - s->first) / 16];
  for (; at < address + bytes; at += 16, c++) {
    const u32 from = at < address ? (u32)(address - at) : 0;
    const u32 to = (u32)min_of((u64)16, address + bytes - at);
    if (LIKELY(from == 0 && to == 16 && !is_split(*c))) {
      if (write)
        write_cell(*c, by, line, at);
      else
        read_cell(s, *c, by, line, at);
    } else if (write && c->write == by.epoch && !c->read) {
      continue;  // all 16 bytes are this thread's already
    } else {
      access_part(s, *c, at, from, to, write, by, line);
    }
  }
}

// Overwrites the record of a range without checking it.
void shadow_mark(Shadow* s, u64 address, u32 bytes, Epoch write, u32 line) {
  if (!s) return;
  for (u64 at = address; at < address + bytes;) {
    Cell& c = s->cells[(at - s->first) / 16];
    const u32 from = (u32)(at & 15), to = (u32)min_of((u64)16, address + bytes - (at & ~15ull));
    const Parts parts = split_cell(c, (from | to) % 4 ? 1 : 4);
    for (u32 k = from; k < to; k += parts.granule) {
      Cell& part = parts.cells[k / parts.granule];
      drop_read(part);
      part.write = write;
      part.write_line = line;
    }
    at += to - from;
  }
}

// Bytes of a range that nobody wrote, and the address of the first of them.
u64 shadow_unwritten(Shadow* s, u64 address, u64 bytes, u64* first_unwritten) {
  u64 count = 0;
  for (u64 at = address; at < address + bytes;) {
    const Cell& c = s->cells[(at - s->first) / 16];
    const u64 end = min_of((at & ~15ull) + 16, address + bytes);
    if (!is_split(c) && c.write) {
      at = end;
      continue;
    }
    for (; at < end; at++) {
      if (is_split(c)) {
        const Parts parts = parts_of(c);
        if (parts.cells[at % 16 / parts.granule].write) continue;
      }
      if (!count++) *first_unwritten = at;
    }
  }
  return count;
}

}  // namespace weft_rt
