// Grouped-query attention over paged keys and values, for one token of a sequence or many.
//
// A row (one token's query in one head) meets its keys in blocks of POSITIONS from position 0 on, the softmax carried along
// (Milakov and Gimelshein 2018). What it sums, and in which order, follows from its own position and window: a decode and a
// chunk of any size come to the same bits. Keys that a row does not see weigh exactly nothing.
#pragma once

#include <tuple>

#include "functions.h"
#include "matrix.h"

constexpr int64_t POSITIONS = 128;
constexpr int64_t ROWS_AT_ONCE = 192;

// A run of new tokens of one sequence: rows [first_row, first_row + count) of the step stand at positions from `start` on.
struct Chunk {
  int64_t first_row, start, count;
  const int32_t* table;

  int64_t end() const { return start + count; }
};

// One layer's keys and values: [block][kv_head][token][k|v][dim].
template <class T>
struct Pool {
  typename T::Number* numbers;
  int64_t num_heads, block_tokens, head_dim;

  // What one token takes in one head.
  int64_t stride() const { return 2 * head_dim; }

  // The key of the token at a position; its value follows at `head_dim`.
  typename T::Number* at(const Chunk& chunk, int64_t head, int64_t position) const {
    int64_t block = chunk.table[position / block_tokens];
    return numbers + ((block * num_heads + head) * block_tokens + position % block_tokens) * stride();
  }
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

// What a thread is to read next, a block of positions of some task, or nothing: brought nearer, piece by piece, while it works
// on what came before. Always inlined: g++ takes a function that does nothing else for one that does nothing.
template <class T>
class Ahead {
 public:
  Ahead(const Pool<T>& pool, const AttentionTask* task, int64_t at)
      : pool_(pool), task_(task), at_(at), end_(task ? task->chunk->start + task->first + task->count : 0) {}

  [[gnu::always_inline]] void bring_keys(int64_t first) { bring(first, 0); }
  [[gnu::always_inline]] void bring_values(int64_t first) { bring(first, pool_.head_dim); }

 private:
  // LANES tokens from a multiple of LANES on lie in one block, one after another.
  [[gnu::always_inline]] void bring(int64_t first, int64_t offset) {
    constexpr int64_t LINE = 64 / sizeof(typename T::Number);
    if (at_ + first >= end_) return;
    auto* from = pool_.at(*task_->chunk, task_->kv_head, at_ + first) + offset;
    for (int64_t token = 0; token < LANES; token++)
      for (int64_t dim = 0; dim < pool_.head_dim; dim += LINE) __builtin_prefetch(from + token * pool_.stride() + dim);
  }

  const Pool<T>& pool_;
  const AttentionTask* task_;
  int64_t at_, end_;
};

// Works on one task at a time; every thread has one.
template <class T>
class Attention {
  typedef typename T::Number Number;

 public:
  Attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim)
      : group_(num_heads / num_kv_heads), head_dim_(head_dim), key_steps_(head_dim / T::PER_WORD),
        padded_dim_(whole(head_dim, 2 * LANES)), max_rows_(std::max(group_, ROWS_AT_ONCE)) {
    queries_ = allocate<uint32_t>(max_rows_ * key_steps_);
    keys_ = allocate<uint32_t>(whole(key_steps_, LANES) * POSITIONS);
    values_ = allocate<uint32_t>(POSITIONS / T::PER_WORD * padded_dim_);
    sums_ = allocate<float>(max_rows_ * padded_dim_);
    most_ = allocate<float>(max_rows_);
    totals_ = allocate<float>(max_rows_ * LANES);
    rest_ = allocate<Number>(LANES * 2 * head_dim);
  }

  int64_t tokens_at_once() const { return std::max<int64_t>(1, max_rows_ / group_); }

  // Reads `queries` and writes `out`, whose rows are [head][dim]. `next` is what this thread is likely to do then, or null.
  void attend(const AttentionTask& task, const AttentionTask* next, const Pool<T>& pool, const Scoring& scoring, const Rows<T>& queries, Rows<T>& out) {
    const Chunk& chunk = *task.chunk;
    int64_t start = chunk.start + task.first, end = start + task.count;
    begin(task, queries);
    for (int64_t at = first_block(task, scoring); at < end; at += POSITIONS) {
      int64_t count = std::min(POSITIONS, end - at);
      if (is_streamed(task)) {
        bool is_last = at + POSITIONS >= end;
        Ahead<T> ahead(pool, is_last ? next : &task, is_last && next ? first_block(*next, scoring) : at + POSITIONS);
        stream_of(task.count * group_, std::make_integer_sequence<int, TILE_ROWS>())(*this, task, pool, scoring, at, count, ahead);
        continue;
      }
      gather(pool, task, at, count);
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

  static constexpr int STREAM_VECTORS = 4;

  static int64_t first_block(const AttentionTask& task, const Scoring& scoring) {
    return scoring.first_seen(task.chunk->start + task.first) / POSITIONS * POSITIONS;
  }

  // Lays out positions [at, at + count): keys as [step][position], values as [position][dim], both in words. What lies beyond
  // the last one is made zero: whatever the pool holds there has no part in anything.
  void gather(const Pool<T>& pool, const AttentionTask& task, int64_t at, int64_t count) {
    for (int64_t first = 0; first < count; first += LANES) {
      int64_t present = std::min<int64_t>(LANES, count - first);
      const Number* rows = pool.at(*task.chunk, task.kv_head, at + first);
      gather_keys(rows, first, present);
      gather_values(rows, first, present);
    }
  }

  void gather_keys(const Number* rows, int64_t first, int64_t present) {
    for (int64_t step = 0; step < key_steps_; step += LANES) {
      const Number* from = rows + step * T::PER_WORD;
      uint32_t* to = keys_.get() + step * POSITIONS + first;
      if (present == LANES && step + LANES <= key_steps_) {
        Words block[LANES];
        for (int i = 0; i < LANES; i++) block[i] = load<Words>(from + i * 2 * head_dim_);
        transpose(block);
        for (int i = 0; i < LANES; i++) store(to + i * POSITIONS, block[i]);
      } else {
        gather_some_keys(from, to, present, std::min<int64_t>(LANES, key_steps_ - step));
      }
    }
  }

  void gather_some_keys(const Number* from, uint32_t* to, int64_t present, int64_t words) {
    Words block[LANES] = {};
    for (int64_t i = 0; i < present; i++) memcpy(&block[i], from + i * 2 * head_dim_, words * sizeof(uint32_t));
    transpose(block);
    for (int64_t i = 0; i < words; i++) store(to + i * POSITIONS, block[i]);
  }

  void gather_values(const Number* rows, int64_t first, int64_t present) {
    constexpr int AT_ONCE = 2 * LANES;
    for (int64_t i = 0; i < present; i += T::PER_WORD) {
      const Number* value = rows + (2 * i + 1) * head_dim_;
      bool has_next = i + 1 < present;
      uint32_t* to = values_.get() + (first + i) / T::PER_WORD * padded_dim_;
      for (int64_t dim = 0; dim < head_dim_; dim += AT_ONCE) {
        const Number* token = value + dim;
        const Number* next = token + 2 * head_dim_;
        Number rest[2][AT_ONCE] = {};
        if (dim + AT_ONCE > head_dim_ || !has_next) {
          int64_t size = std::min<int64_t>(AT_ONCE, head_dim_ - dim) * sizeof(Number);
          memcpy(rest[0], token, size);
          if (has_next) memcpy(rest[1], next, size);
          token = rest[0], next = rest[1];
        }
        auto [low, high] = T::join(token, next);
        store(to + dim, low), store(to + dim + LANES, high);
      }
    }
  }

  // Few rows do not lay anything out: writing it would take longer than reading what is multiplied.
  bool is_streamed(const AttentionTask& task) const {
    return task.count * group_ <= TILE_ROWS && head_dim_ % (STREAM_VECTORS * LANES) == 0 && key_steps_ % LANES == 0;
  }

  typedef void (*Stream)(Attention&, const AttentionTask&, const Pool<T>&, const Scoring&, int64_t, int64_t, Ahead<T>&);

  template <int... R>
  static Stream stream_of(int64_t rows, std::integer_sequence<int, R...>) {
    static constexpr Stream streams[] = {stream<R + 1>...};
    return streams[rows - 1];
  }

  // Lets all R rows of a task meet positions [at, at + count), the same sums in the same order as `gather` and `meet`.
  template <int R>
  static void stream(Attention& self, const AttentionTask& task, const Pool<T>& pool, const Scoring& scoring, int64_t at,
                     int64_t count, Ahead<T>& ahead) {
    alignas(64) float scores[R * POSITIONS];
    alignas(64) Number weights[R * POSITIONS];
    for (int64_t first = 0; first < count; first += LANES) {
      ahead.bring_keys(first);
      self.template score<R>(self.tokens(pool, task, at, first, count), scores + first);
    }
    int64_t start = task.chunk->start + task.first;
    for (int r = 0; r < R; r++) {
      int64_t position = start + r / self.group_;
      self.weigh(scoring, r, scoring.first_seen(position) - at, position + 1 - at, parts(count, LANES), scores + r * POSITIONS,
                 weights + r * POSITIONS);
    }
    for (int64_t dim = 0; dim < self.head_dim_; dim += STREAM_VECTORS * LANES)
      for (int64_t first = 0; first < count; first += LANES) {
        if (!dim) ahead.bring_values(first);
        const Number* values = self.tokens(pool, task, at, first, count) + self.head_dim_ + dim;
        self.template add<R>(values, std::min<int64_t>(LANES, count - first), weights + first, self.sums_.get() + dim);
      }
  }

  // Returns LANES tokens, [token][k|v][dim], zeros in place of those from `count` on.
  const Number* tokens(const Pool<T>& pool, const AttentionTask& task, int64_t at, int64_t first, int64_t count) {
    const Number* found = pool.at(*task.chunk, task.kv_head, at + first);
    if (first + LANES <= count) return found;
    memset(rest_.get(), 0, LANES * pool.stride() * sizeof(Number));
    memcpy(rest_.get(), found, (count - first) * pool.stride() * sizeof(Number));
    return rest_.get();
  }

  template <int R>
  void score(const Number* keys, float* scores) {
    Floats sums[R] = {};
    for (int64_t step = 0; step < key_steps_; step += LANES) {
      Words block[LANES];
      for (int i = 0; i < LANES; i++) block[i] = load<Words>(keys + i * 2 * head_dim_ + step * T::PER_WORD);
      transpose(block);
      const uint32_t* query = queries_.get() + step;
      for (int i = 0; i < LANES; i++)
        for (int r = 0; r < R; r++) sums[r] = T::dot(all(query[r * key_steps_ + i]), block[i], sums[r]);
    }
    for (int r = 0; r < R; r++) store(scores + r * POSITIONS, sums[r]);
  }

  template <int R>
  void add(const Number* values, int64_t present, const Number* weights, float* to) {
    Floats sums[R][STREAM_VECTORS];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < STREAM_VECTORS; v++) sums[r][v] = load<Floats>(to + r * padded_dim_ + v * LANES);
    for (int64_t i = 0; i < present; i += T::PER_WORD) {
      const Number* value = values + i * 2 * head_dim_;
      Words joined[STREAM_VECTORS];
      for (int v = 0; v < STREAM_VECTORS; v += 2)
        std::tie(joined[v], joined[v + 1]) = T::join(value + v * LANES, value + 2 * head_dim_ + v * LANES);
      for (int r = 0; r < R; r++) {
        uint32_t weight;
        memcpy(&weight, weights + r * POSITIONS + i, sizeof weight);
        for (int v = 0; v < STREAM_VECTORS; v++) sums[r][v] = T::dot(all(weight), joined[v], sums[r][v]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < STREAM_VECTORS; v++) store(to + r * padded_dim_ + v * LANES, sums[r][v]);
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
    bool is_whole = first <= 0 && end >= vectors * LANES;
    Floats most = all(most_[row]);
    for (int v = 0; v < vectors; v++) {
      Floats score = load<Floats>(scores + v * LANES) * scoring.scale;
      if (scoring.cap) score = soft_cap(score, scoring.cap);
      if (!is_whole) score = is_seen(v, first, end) ? score : all(LEAST);
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
      Floats weight = exponential(load<Floats>(scores + v * LANES) - now);
      if (!is_whole) weight = is_seen(v, first, end) ? weight : Floats{};
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
  Memory<Number> rest_;
};
