// The parts of the CPU kernels one by one, for test_cpu_kernels.py. Matrices are row by row, without padding.
#include "attention.h"
#include "rows.h"

typedef TWOSTEP_TYPE Type;
typedef Type::Number Number;
typedef Type::Left Left;

namespace {

Rows<Left> rows_of(const Number* numbers, int64_t count, int64_t size) {
  Rows<Left> rows(size);
  rows.resize(count);
  for (int64_t row = 0; row < count; row++)
    for (int64_t i = 0; i < size; i++) rows[row][i] = Left::narrow_one(Type::widen_one(numbers[row * size + i]));
  return rows;
}

int64_t only_core() {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) > 1) return -1;
  for (int core = 0;; core++)
    if (CPU_ISSET(core, &allowed)) return core;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void part_linear(const Number* x, int64_t rows, int64_t num_in, const Number* weights, const float* bias, int64_t num_out,
                 int64_t num_threads, float* out) {
  if (!may_multiply()) return;
  Team team(num_threads);
  Stores<Type> stores(team);
  Linear<Type> linear = pack<Type, 1>(team, stores, {weights}, {bias}, num_out, num_in);
  Rows<Left> from = rows_of(x, rows, num_in);
  team.run([&](Team::Member me) {
    project(me, stores, from, linear, [&](int64_t row, int count, int64_t panel, auto& sums) {
      for (int r = 0; r < count; r++)
        for (int64_t c = 0; c < PANEL<Type> && panel * PANEL<Type> + c < num_out; c++)
          out[(row + r) * num_out + panel * PANEL<Type> + c] = sums[0][r * PANEL<Type> + c];
    });
  });
}

void part_normalise(const float* x, int64_t size, const float* weights, float eps, Number* out) {
  normalise<Type>({weights, eps}, x, size, out);
}

void part_rotate(float* head, int64_t half, const float* cosines, const float* sines) { rotate(head, half, cosines, sines); }

void part_activate(int32_t activation, float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(x + i, activate(static_cast<Activation>(activation), load<Floats>(x + i)));
}

void part_soft_cap(float cap, float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(x + i, soft_cap(load<Floats>(x + i), cap));
}

// Writes for each member which core it is to keep to, -1 where it is free to move.
void part_cores(int64_t num_threads, int64_t* out) {
  Team team(num_threads);
  team.run([&](Team::Member me) { me.share(num_threads, [&](int64_t) { out[me.number] = only_core(); }); });
}

// `query` and `out` [count][head][dim]; the chunk's tokens stand at positions from `start` on.
void part_attend(Number* pool, int64_t num_kv_heads, int64_t block_tokens, int64_t head_dim, const int32_t* table, int64_t start,
                 int64_t count, int64_t num_heads, float scale, float cap, int64_t window, const Number* query, Number* out) {
  if (!may_multiply()) return;
  int64_t size = num_heads * head_dim;
  Rows<Left> from = rows_of(query, count, size), to(size);
  to.resize(count);
  Chunk chunk{0, start, count, table};
  Attention<Type> attention(num_heads, num_kv_heads, head_dim);
  for (int64_t head = 0; head < num_kv_heads; head++)
    for (int64_t first = 0; first < count; first += attention.tokens_at_once()) {
      AttentionTask task{&chunk, head, first, std::min(attention.tokens_at_once(), count - first)};
      attention.attend(task, nullptr, {pool, num_kv_heads, block_tokens, head_dim}, {scale, cap, window}, from, to);
    }
  for (int64_t row = 0; row < count; row++)
    for (int64_t i = 0; i < size; i++) out[row * size + i] = Type::narrow_one(Left::widen_one(to[row][i]));
}
}
#pragma GCC visibility pop
