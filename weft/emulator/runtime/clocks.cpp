// Vector clocks; see clocks.h.
#include "clocks.h"

namespace weft_rt {

Clocks clocks;

void Clocks::start(u32 new_width) {
  forget_memos();
  release(zero);
  zero = nullptr;
  if (width != new_width) {
    while (free_list) {
      Knowledge* next = free_list->next_free;
      free(free_list);
      free_list = next;
    }
    width = new_width;
  }
  zero = copy(nullptr);
}

void Clocks::forget_memos() {
  for (JoinMemo& m : join_memo) {
    release(m.a);
    release(m.b);
    release(m.result);
    m = JoinMemo{};
  }
  for (FenceMemo& m : fence_memo) {
    release(m.from);
    release(m.result);
    m = FenceMemo{};
  }
}

Knowledge* Clocks::copy(const Knowledge* from) {
  Knowledge* k = free_list;
  if (k)
    free_list = k->next_free;
  else
    k = (Knowledge*)malloc(sizeof(Knowledge) + SECTIONS * width * sizeof(u32));
  k->references = 1;
  k->id = ++next_id;
  for (u32 s = 0; s < SECTIONS; s++) k->foreign[s] = from ? retain(from->foreign[s]) : nullptr;
  if (from)
    memcpy(k->clock, from->clock, SECTIONS * width * sizeof(u32));
  else
    memset(k->clock, 0, SECTIONS * width * sizeof(u32));
  return k;
}

void Clocks::drop(Knowledge* k) {
  for (Foreign*& foreign : k->foreign) {
    release(foreign);
    foreign = nullptr;
  }
  k->id = 0;
  k->next_free = free_list;
  free_list = k;
}

static void merge_into(Foreign*& slot, Foreign* from) {
  if (!from || slot == from) return;
  Foreign* merged = merge_foreign(slot, from);
  release(slot);
  slot = merged;
}

void Clocks::join_into(Knowledge* target, const Knowledge* from) {
  joins++;
  u32* a = target->clock;
  const u32* b = from->clock;
  for (u32 i = 0; i < SECTIONS * width; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
  for (u32 s = 0; s < SECTIONS; s++) merge_into(target->foreign[s], from->foreign[s]);
}

Knowledge* Clocks::join(Knowledge* a, Knowledge* b) {
  if (a == b) return a;
  JoinMemo& memo = join_memo[(a->id * 7 + b->id) % 32];
  if (memo.a == a && memo.b == b) return memo.result;
  Knowledge* result = copy(a);
  join_into(result, b);
  release(memo.a);
  release(memo.b);
  release(memo.result);
  memo = JoinMemo{retain(a), retain(b), result};
  return result;
}

Knowledge* Clocks::fence(Knowledge* from, Section section) {
  FenceMemo& memo = fence_memo[(from->id * SECTIONS + section) % 16];
  if (memo.from == from && memo.section == section) return memo.result;
  Knowledge* result = copy(from);
  memcpy(&clock_of(result, section, 0), &clock_of(result, KNOWN, 0), width * sizeof(u32));
  merge_into(result->foreign[section], result->foreign[KNOWN]);
  release(memo.from);
  release(memo.result);
  memo = FenceMemo{retain(from), section, result};
  return result;
}

void Accumulator::join_base(Knowledge* base) {
  if (!value)
    value = clocks.copy(base);
  else if (last_base != base)
    clocks.join_into(value, base);
  assign(last_base, base);
}

static Foreign* new_foreign(u32 capacity) {
  Foreign* f = (Foreign*)malloc(sizeof(Foreign) + capacity * sizeof(Foreign::Entry));
  f->references = 1;
  f->count = 0;
  return f;
}

void drop_foreign(Foreign* f) {
  for (u32 i = 0; i < f->count; i++) release(f->entries[i].known);
  free(f);
}

Foreign* foreign_of(u32 unit, Knowledge* known) {
  Foreign* f = new_foreign(1);
  f->entries[f->count++] = {unit, retain(known)};
  return f;
}

static Knowledge* join_snapshots(Knowledge* a, Knowledge* b) {
  if (a == b) return retain(a);
  bool a_covers = true, b_covers = true;
  for (u32 i = 0; i < SECTIONS * clocks.width; i++) {
    a_covers &= a->clock[i] >= b->clock[i];
    b_covers &= b->clock[i] >= a->clock[i];
  }
  if (a_covers) return retain(a);
  if (b_covers) return retain(b);
  return retain(clocks.join(a, b));
}

Foreign* merge_foreign(Foreign* a, Foreign* b) {
  if (!a || a == b) return retain(b);
  if (!b) return retain(a);
  Foreign* merged = new_foreign(a->count + b->count);
  for (u32 i = 0, j = 0; i < a->count || j < b->count;) {
    Foreign::Entry* x = i < a->count ? &a->entries[i] : nullptr;
    Foreign::Entry* y = j < b->count ? &b->entries[j] : nullptr;
    if (x && y && x->unit == y->unit) {
      merged->entries[merged->count++] = {x->unit, join_snapshots(x->known, y->known)};
      i++;
      j++;
    } else if (!y || (x && x->unit < y->unit)) {
      merged->entries[merged->count++] = {x->unit, retain(x->known)};
      i++;
    } else {
      merged->entries[merged->count++] = {y->unit, retain(y->known)};
      j++;
    }
  }
  return merged;
}

}  // namespace weft_rt
