// Grouped-query attention over paged keys and values, for one token of a sequence or many.
//
// A row (one token's query in one head) meets its keys in blocks of POSITIONS from position 0 on, the softmax carried along
// (Milakov and Gimelshein 2018). What it sums, and in which order, follows from its own position and window: a decode and a
// chunk of any size come to the same bits. Keys that a row does not see weigh exactly nothing.
#pragma once

#include "functions.h"
#include "matrix.h"

constexpr int64_t POSITIONS = 128;
constexpr int64_t ROWS_AT_ONCE = 192;

// One layer's keys and values: [block][kv_head][token][k|v][dim].
template <class T>
struct Pool {
  typename T::Number* numbers;
  int64_t num_heads, block_tokens, head_dim;

  // The key of one token; its value follows at `head_dim`.
  typename T::Number* at(int32_t block, int64_t head, int64_t token) const {
    return numbers + ((block * num_heads + head) * block_tokens + token) * 2 * head_dim;
  }
};

// A run of new tokens of one sequence: rows [first_row, first_row + count) of the step stand at positions from `start` on.
struct Chunk {
  int64_t first_row, start, count;
  const int32_t* table;

  int64_t end() const { return start + count; }
};

// What a layer makes of its scores; a window or a cap of 0 is none.
struct Scoring {
  float scale, cap;
  int64_t window;

  int64_t first_seen(int64_t position) const { return window && position >= window ? position - window + 1 : 0; }
};

// Tokens [first, first + count) of a chunk, in the heads that share one of keys and values.
struct AttentionTask {
  const Chunk* chunk;
  int64_t kv_head, first, count;
};

// Works on one task at a time; every thread has one.
template <class T>
class Attention {
  typedef typename T::Number Number;

 public:
  Attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim)
      : group_(num_heads / num_kv_heads), head_dim_(head_dim), key_steps_(head_dim / T::PER_WORD),
        padded_dim_(whole(head_dim, LANES)), max_rows_(std::max(group_, ROWS_AT_ONCE)) {
    queries_ = allocate<uint32_t>(max_rows_ * key_steps_);
    keys_ = allocate<uint32_t>(whole(key_steps_, LANES) * POSITIONS);
    values_ = allocate<uint32_t>(POSITIONS / T::PER_WORD * padded_dim_);
    sums_ = allocate<float>(max_rows_ * padded_dim_);
    most_ = allocate<float>(max_rows_);
    totals_ = allocate<float>(max_rows_ * LANES);
  }

  int64_t tokens_at_once() const { return std::max<int64_t>(1, max_rows_ / group_); }

  // Reads `queries` and writes `out`, whose rows are [head][dim].
  void attend(const AttentionTask& task, const Pool<T>& pool, const Scoring& scoring, const Rows<T>& queries, Rows<T>& out) {
    const Chunk& chunk = *task.chunk;
    int64_t start = chunk.start + task.first, end = start + task.count;
    begin(task, queries);
    for (int64_t at = scoring.first_seen(start) / POSITIONS * POSITIONS; at < end; at += POSITIONS) {
      int64_t count = std::min(POSITIONS, end - at);
      gather(pool, chunk, task.kv_head, at, count);
      for (int64_t row = 0; row < task.count * group_; row += TILE_ROWS) {
        int rows = std::min<int64_t>(TILE_ROWS, task.count * group_ - row);
        int64_t tile_first = start + row / group_, tile_end = start + (row + rows - 1) / group_ + 1;
        if (tile_end > at && scoring.first_seen(tile_first) < at + POSITIONS)
          meet(scoring, start, row, rows, at, std::min(count, tile_end - at));
      }
    }
    finish(task, out);
  }

 private:
  void begin(const AttentionTask& task, const Rows<T>& queries) {
    for (int64_t row = 0; row < task.count * group_; row++) {
      int64_t token = task.chunk->first_row + task.first + row / group_, head = task.kv_head * group_ + row % group_;
      memcpy(queries_.get() + row * key_steps_, queries[token] + head * head_dim_, head_dim_ * sizeof(Number));
      most_[row] = LEAST;
    }
    memset(sums_.get(), 0, task.count * group_ * padded_dim_ * sizeof(float));
    memset(totals_.get(), 0, task.count * group_ * LANES * sizeof(float));
  }

  // Lays out positions [at, at + count): keys as [step][position], values as [position][dim], both in words. What lies beyond
  // the last one is made zero: whatever the pool holds there has no part in anything.
  void gather(const Pool<T>& pool, const Chunk& chunk, int64_t kv_head, int64_t at, int64_t count) {
    const Number* rows[POSITIONS];
    for (int64_t i = 0; i < count; i++)
      rows[i] = pool.at(chunk.table[(at + i) / pool.block_tokens], kv_head, (at + i) % pool.block_tokens);
    for (int64_t first = 0; first < count; first += LANES) {
      int64_t present = std::min<int64_t>(LANES, count - first);
      gather_keys(rows + first, first, present);
      gather_values(rows + first, first, present);
    }
  }

  void gather_keys(const Number* const* rows, int64_t first, int64_t present) {
    for (int64_t step = 0; step < key_steps_; step += LANES) {
      int64_t words = std::min<int64_t>(LANES, key_steps_ - step);
      Words block[LANES] = {};
      for (int64_t i = 0; i < present; i++) {
        const Number* from = rows[i] + step * T::PER_WORD;
        if (words == LANES) block[i] = load<Words>(from);
        else memcpy(&block[i], from, words * 4);
      }
      transpose(block);
      for (int64_t i = 0; i < words; i++) store(keys_.get() + (step + i) * POSITIONS + first, block[i]);
    }
  }

  void gather_values(const Number* const* rows, int64_t first, int64_t present) {
    for (int64_t i = 0; i < present; i += T::PER_WORD) {
      const Number* value = rows[i] + head_dim_;
      const Number* next = T::PER_WORD > 1 && i + 1 < present ? rows[i + 1] + head_dim_ : nullptr;
      uint32_t* to = values_.get() + (first + i) / T::PER_WORD * padded_dim_;
      int64_t dim = 0;
      for (; dim + LANES <= head_dim_; dim += LANES) store(to + dim, T::join(value + dim, next ? next + dim : nullptr));
      if (dim < head_dim_) join_rest(value + dim, next ? next + dim : nullptr, to + dim);
    }
  }

  void join_rest(const Number* value, const Number* next, uint32_t* to) {
    Number rest[2][LANES] = {};
    memcpy(rest[0], value, head_dim_ % LANES * sizeof(Number));
    if (next) memcpy(rest[1], next, head_dim_ % LANES * sizeof(Number));
    store(to, T::join(rest[0], rest[1]));
  }

  // Lets `rows` from `row` on meet positions [at, at + count); the task's first token stands at `start`.
  void meet(const Scoring& scoring, int64_t start, int64_t row, int rows, int64_t at, int64_t count) {
    alignas(64) float scores[TILE_ROWS * POSITIONS];
    alignas(64) Number weights[TILE_ROWS * POSITIONS];
    int vectors = parts(count, LANES);
    multiply<T, false>(rows, vectors, queries_.get() + row * key_steps_, key_steps_, keys_.get(), POSITIONS, key_steps_, scores,
                       POSITIONS);
    for (int r = 0; r < rows; r++) {
      int64_t position = start + (row + r) / group_;
      weigh(scoring, row + r, scoring.first_seen(position) - at, position + 1 - at, vectors, scores + r * POSITIONS,
            weights + r * POSITIONS);
    }
    multiply<T, true>(rows, padded_dim_ / LANES, reinterpret_cast<uint32_t*>(weights), POSITIONS / T::PER_WORD, values_.get(),
                      padded_dim_, parts(count, T::PER_WORD), sums_.get() + row * padded_dim_, padded_dim_);
  }

  // Turns a row's scores into weights, those in [first, end) alone, and scales what was summed before to the new maximum.
  void weigh(const Scoring& scoring, int64_t row, int64_t first, int64_t end, int vectors, float* scores, Number* weights) {
    Floats most = all(most_[row]);
    for (int v = 0; v < vectors; v++) {
      Floats score = load<Floats>(scores + v * LANES) * scoring.scale;
      if (scoring.cap) score = soft_cap(score, scoring.cap);
      score = is_seen(v, first, end) ? score : all(LEAST);
      most = larger(most, score);
      store(scores + v * LANES, score);
    }
    float now = max_lanes(most);
    Floats total = load<Floats>(totals_.get() + row * LANES);
    if (now != most_[row]) {
      Floats shrink = exponential(all(most_[row] - now));
      total *= shrink;
      float* sums = sums_.get() + row * padded_dim_;
      for (int64_t dim = 0; dim < padded_dim_; dim += LANES) store(sums + dim, load<Floats>(sums + dim) * shrink);
      most_[row] = now;
    }
    for (int v = 0; v < vectors; v++) {
      Floats weight = is_seen(v, first, end) ? exponential(load<Floats>(scores + v * LANES) - now) : Floats{};
      total += weight;
      T::narrow(weights + v * LANES, weight);
    }
    store(totals_.get() + row * LANES, total);
  }

  static Ints is_seen(int vector, int64_t first, int64_t end) {
    Ints lane = lane_numbers() + vector * LANES;
    return (lane >= (int32_t)first) & (lane < (int32_t)end);
  }

  void finish(const AttentionTask& task, Rows<T>& out) {
    for (int64_t row = 0; row < task.count * group_; row++) {
      int64_t token = task.chunk->first_row + task.first + row / group_, head = task.kv_head * group_ + row % group_;
      Number* to = out[token] + head * head_dim_;
      float* sums = sums_.get() + row * padded_dim_;
      float scale = 1.0f / sum_lanes(load<Floats>(totals_.get() + row * LANES));
      int64_t dim = 0;
      for (; dim + LANES <= head_dim_; dim += LANES) T::narrow(to + dim, load<Floats>(sums + dim) * scale);
      for (; dim < head_dim_; dim++) to[dim] = T::narrow_one(sums[dim] * scale);
    }
  }

  // Less than any score, and a number: the difference of two of them is no NaN.
  static constexpr float LEAST = -1e30f;

  const int64_t group_, head_dim_, key_steps_, padded_dim_, max_rows_;
  Memory<uint32_t> queries_, keys_, values_;
  Memory<float> sums_, most_, totals_;
};
