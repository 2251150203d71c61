// Grouped-query attention over paged keys and values, for one token of a sequence or many.
//
// A row (one token's query in one head) meets its keys in blocks of POSITIONS from position 0 on, the softmax carried along
// (Milakov and Gimelshein 2018). What it sums, and in which order, follows from its own position and window: a decode and a
// chunk of any size come to the same bits. Keys that a row does not see weigh exactly nothing.
#pragma once

#include <tuple>
#include <type_traits>

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
    // Some processors take four times as long for a quotient of 64 bits.
    uint32_t number = (uint32_t)position / (uint32_t)block_tokens;
    int64_t block = chunk.table[number];
    return numbers + ((block * num_heads + head) * block_tokens + position - number * block_tokens) * stride();
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

// What a thread is to read next, a block of positions of some task, or nothing: brought nearer, some tokens at a time, while it
// works on what came before. As evenly as can be, for only so many lines can be on their way at once. Always inlined: g++ takes a
// function that does nothing else for one that does nothing.
template <class T>
class Ahead {
 public:
  Ahead(const Pool<T>& pool, const AttentionTask* task, int64_t at) : pool_(pool), task_(task), at_(at) {
    if (task) end_ = std::min(at + POSITIONS, task->chunk->start + task->first + task->count);
  }

  [[gnu::always_inline]] void bring(int64_t tokens) {
    constexpr int64_t LINE = 64 / sizeof(typename T::Number);
    for (int64_t end = std::min(at_ + tokens, end_); at_ < end; at_++, token_ += pool_.stride(), left_--) {
      if (!left_) enter_block();
      for (int64_t line = 0; line < pool_.stride(); line += LINE) __builtin_prefetch(token_ + line, 0, NEAR);
    }
  }

 private:
  static constexpr int NEAR = 2;  // the second level of caches: the first holds what is worked on

  // Blocks end where blocks of positions may begin: each is entered at its first token, or where this one's blocks do.
  void enter_block() {
    token_ = pool_.at(*task_->chunk, task_->kv_head, at_);
    left_ = pool_.block_tokens - at_ % pool_.block_tokens;
  }

  const Pool<T>& pool_;
  const AttentionTask* task_;
  const typename T::Number* token_ = nullptr;
  int64_t at_, end_ = 0, left_ = 0;
};

// Works on one task at a time; every thread has one.
template <class T>
class Attention {
  typedef typename T::Number Number;
  typedef typename T::Left Left;
  typedef typename Left::Number LeftNumber;

 public:
  Attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim)
      : group_(num_heads / num_kv_heads), head_dim_(head_dim), key_steps_(head_dim / T::PER_WORD),
        query_stride_(whole(head_dim, Cut<T>::STEPS * T::PER_WORD)), padded_dim_(whole(head_dim, 2 * LANES)),
        max_rows_(whole(std::max(group_, ROWS_AT_ONCE), Cut<T>::ROWS)) {
    queries_ = allocate<LeftNumber>(max_rows_ * query_stride_);
    keys_ = allocate<uint32_t>(whole(key_steps_, LANES) * turns<Left> * POSITIONS);
    values_ = allocate<uint32_t>(POSITIONS / Left::PER_WORD * padded_dim_);
    sums_ = allocate<float>(max_rows_ * padded_dim_);
    most_ = allocate<float>(max_rows_);
    totals_ = allocate<float>(max_rows_ * LANES);
    rest_ = allocate<Number>(LANES * 2 * head_dim);
  }

  int64_t tokens_at_once() const { return std::max<int64_t>(1, max_rows_ / group_); }

  // Reads `queries` and writes `out`, whose rows are [head][dim]. `next` is what this thread is likely to do then, or null.
  void attend(const AttentionTask& task, const AttentionTask* next, const Pool<T>& pool, const Scoring& scoring,
              const Rows<Left>& queries, Rows<Left>& out) {
    Multiplier<T> multiplier;
    const Chunk& chunk = *task.chunk;
    int64_t start = chunk.start + task.first, end = start + task.count;
    begin(task, queries);
    for (int64_t at = first_block(task, scoring); at < end; at += POSITIONS) {
      int64_t count = std::min(POSITIONS, end - at);
      bool is_last = at + POSITIONS >= end;
      Ahead<T> ahead(pool, is_last ? next : &task, is_last && next ? first_block(*next, scoring) : at + POSITIONS);
      if (is_streamed(task)) {
        stream_of(task.count * group_, std::make_integer_sequence<int, TILE_ROWS>())(*this, task, pool, scoring, at, count, ahead);
        continue;
      }
      gather(pool, task, at, count, ahead);
      for (int64_t row = 0; row < task.count * group_; row += Cut<T>::ROWS) {
        int rows = std::min<int64_t>(Cut<T>::ROWS, task.count * group_ - row);
        int64_t tile_first = start + row / group_, tile_end = start + (row + rows - 1) / group_ + 1;
        if (tile_end > at && scoring.first_seen(tile_first) < at + POSITIONS)
          meet(scoring, start, row, rows, at, std::min(count, tile_end - at));
      }
    }
    finish(task, out);
  }

 private:
  void begin(const AttentionTask& task, const Rows<Left>& queries) {
    for (int64_t row = 0; row < task.count * group_; row++) {
      int64_t token = task.chunk->first_row + task.first + row / group_, head = task.kv_head * group_ + row % group_;
      memcpy(queries_.get() + row * query_stride_, queries[token] + head * head_dim_, head_dim_ * sizeof(LeftNumber));
      most_[row] = LEAST;
    }
    memset(sums_.get(), 0, task.count * group_ * padded_dim_ * sizeof(float));
    memset(totals_.get(), 0, task.count * group_ * LANES * sizeof(float));
  }

  static constexpr int STREAM_VECTORS = 4;
  static constexpr int64_t SCORED = 4 * LANES;
  static constexpr int64_t BROUGHT = 3 * LANES / 8;  // tokens

  static int64_t first_block(const AttentionTask& task, const Scoring& scoring) {
    return scoring.first_seen(task.chunk->start + task.first) / POSITIONS * POSITIONS;
  }

  // Lays out positions [at, at + count): keys as [dim][position], values as [position][dim], in words of `Left`. What lies beyond
  // the last one is made zero: whatever the pool holds there has no part in anything.
  void gather(const Pool<T>& pool, const AttentionTask& task, int64_t at, int64_t count, Ahead<T>& ahead) {
    for (int64_t first = 0; first < count; first += LANES) {
      ahead.bring(LANES / 2);
      int64_t present = std::min<int64_t>(LANES, count - first);
      const Number* rows = pool.at(*task.chunk, task.kv_head, at + first);
      gather_keys<Left>(rows, first, present);
      gather_values(rows, first, present, ahead);
    }
    int64_t steps = parts(count, Left::PER_WORD), rest = whole(steps, Cut<T>::STEPS) - steps;
    memset(values_.get() + steps * padded_dim_, 0, rest * padded_dim_ * sizeof(uint32_t));
  }

  // Lays keys out in words of U, which is T or `Left`.
  template <class U>
  void gather_keys(const Number* rows, int64_t first, int64_t present) {
    for (int64_t step = 0; step < key_steps_; step += LANES) {
      int64_t words = std::min<int64_t>(LANES, key_steps_ - step);
      Words block[LANES];
      if (present == LANES && words == LANES) {
        for (int i = 0; i < LANES; i++) block[i] = load<Words>(rows + i * 2 * head_dim_ + step * T::PER_WORD);
      } else {
        memset(&block, 0, sizeof block);
        for (int64_t i = 0; i < present; i++)
          memcpy(&block[i], rows + i * 2 * head_dim_ + step * T::PER_WORD, words * sizeof(uint32_t));
      }
      transpose(block);
      uint32_t* to = keys_.get() + step * turns<U> * POSITIONS + first;
      for (int64_t i = 0; i < words; i++) spread<U>(block[i], to + i * turns<U> * POSITIONS, POSITIONS);
    }
  }

  void gather_values(const Number* rows, int64_t first, int64_t present, Ahead<T>& ahead) {
    constexpr int AT_ONCE = 2 * LANES;
    for (int64_t i = 0; i < present; i += Left::PER_WORD) {
      if (i % 2 == 0) ahead.bring(1);
      const Number* value = rows + (2 * i + 1) * head_dim_;
      bool has_next = i + 1 < present;
      uint32_t* to = values_.get() + (first + i) / Left::PER_WORD * padded_dim_;
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
        auto [first, second] = T::columns(token, next);
        store(to + dim, first), store(to + dim + LANES, second);
      }
    }
  }

  template <class U>
  static constexpr int turns = std::is_same_v<U, T> ? 1 : T::TURNS;

  // Writes words of T as words of U, which are as many or more: those lie `stride` apart.
  template <class U>
  static void spread(Words words, uint32_t* to, int64_t stride) {
    if constexpr (std::is_same_v<U, T>)
      store(to, words);
    else
      for (int turn = 0; turn < turns<U>; turn++) store(to + turn * stride, T::right(words, turn));
  }

  // Few rows lay out no more than they must: writing takes longer than reading what is multiplied.
  bool is_streamed(const AttentionTask& task) const {
    return !Cut<T>::IN_TILES && task.count * group_ <= TILE_ROWS && head_dim_ % (STREAM_VECTORS * LANES) == 0 && key_steps_ % LANES == 0;
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
    alignas(64) LeftNumber weights[R * POSITIONS];
    for (int64_t first = 0; first < count; first += LANES) {
      ahead.bring(BROUGHT);
      auto* rows = pool.at(*task.chunk, task.kv_head, at + first);
      self.template gather_keys<T>(rows, first, std::min<int64_t>(LANES, count - first));
    }
    for (int64_t first = 0; first < count; first += SCORED) {
      ahead.bring(BROUGHT);
      multiply<T, false>(R, parts(std::min(SCORED, count - first), LANES), self.queries_.get(), self.query_stride_,
                         self.keys_.get() + first, POSITIONS, self.key_steps_, scores + first, POSITIONS);
    }
    int64_t start = task.chunk->start + task.first;
    for (int r = 0; r < R; r++) {
      int64_t position = start + r / self.group_;
      ahead.bring(BROUGHT);
      self.weigh(scoring, r, scoring.first_seen(position) - at, position + 1 - at, parts(count, LANES), scores + r * POSITIONS,
                 weights + r * POSITIONS);
    }
    for (int64_t dim = 0; dim < self.head_dim_; dim += STREAM_VECTORS * LANES)
      for (int64_t first = 0; first < count; first += LANES) {
        ahead.bring(BROUGHT);
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
  void add(const Number* values, int64_t present, const LeftNumber* weights, float* to) {
    Floats sums[R][STREAM_VECTORS];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < STREAM_VECTORS; v++) sums[r][v] = load<Floats>(to + r * padded_dim_ + v * LANES);
    for (int64_t i = 0; i < present; i += Left::PER_WORD) {
      const Number* value = values + i * 2 * head_dim_;
      typename T::Factor columns[STREAM_VECTORS];
      for (int v = 0; v < STREAM_VECTORS; v += 2)
        std::tie(columns[v], columns[v + 1]) = T::columns(value + v * LANES, value + 2 * head_dim_ + v * LANES);
      for (int r = 0; r < R; r++) {
        auto weight = T::left(weights + r * POSITIONS + i, 0);
        for (int v = 0; v < STREAM_VECTORS; v++) sums[r][v] = T::dot(weight, columns[v], sums[r][v]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < STREAM_VECTORS; v++) store(to + r * padded_dim_ + v * LANES, sums[r][v]);
  }

  // Lets `rows` from `row` on meet positions [at, at + count); the task's first token stands at `start`.
  void meet(const Scoring& scoring, int64_t start, int64_t row, int rows, int64_t at, int64_t count) {
    alignas(64) float scores[Cut<T>::ROWS * POSITIONS];
    alignas(64) LeftNumber weights[Cut<T>::ROWS * POSITIONS];
    int64_t steps = whole(parts(count, Left::PER_WORD), Cut<T>::STEPS);
    int vectors = parts(steps * Left::PER_WORD, LANES);
    multiply<Left, false>(rows, vectors, queries_.get() + row * query_stride_, query_stride_, keys_.get(), POSITIONS,
                          query_stride_ / Left::PER_WORD, scores, POSITIONS);
    for (int r = 0; r < rows; r++) {
      int64_t position = start + (row + r) / group_;
      weigh(scoring, row + r, scoring.first_seen(position) - at, position + 1 - at, vectors, scores + r * POSITIONS,
            weights + r * POSITIONS);
    }
    multiply<Left, true>(rows, padded_dim_ / LANES, weights, POSITIONS, values_.get(), padded_dim_, steps,
                         sums_.get() + row * padded_dim_, padded_dim_);
  }

  // Turns a row's scores into weights, those in [first, end) alone, and scales what was summed before to the new maximum.
  void weigh(const Scoring& scoring, int64_t row, int64_t first, int64_t end, int vectors, float* scores, LeftNumber* weights) {
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
      Left::narrow(weights + v * LANES, weight);
    }
    store(totals_.get() + row * LANES, total);
  }

  static Ints is_seen(int vector, int64_t first, int64_t end) {
    Ints lane = lane_numbers() + vector * LANES;
    return (lane >= (int32_t)first) & (lane < (int32_t)end);
  }

  void finish(const AttentionTask& task, Rows<Left>& out) {
    for (int64_t row = 0; row < task.count * group_; row++) {
      int64_t token = task.chunk->first_row + task.first + row / group_, head = task.kv_head * group_ + row % group_;
      LeftNumber* to = out[token] + head * head_dim_;
      float* sums = sums_.get() + row * padded_dim_;
      float scale = 1.0f / sum_lanes(load<Floats>(totals_.get() + row * LANES));
      int64_t dim = 0;
      for (; dim < padded_dim_; dim += 2 * LANES) {
        auto [first, second] = T::in_order(load<Floats>(sums + dim), load<Floats>(sums + dim + LANES));
        store(sums + dim, first), store(sums + dim + LANES, second);
      }
      dim = 0;
      for (; dim + LANES <= head_dim_; dim += LANES) Left::narrow(to + dim, load<Floats>(sums + dim) * scale);
      for (; dim < head_dim_; dim++) to[dim] = Left::narrow_one(sums[dim] * scale);
    }
  }

  // Less than any score, and a number: the difference of two of them is no NaN.
  static constexpr float LEAST = -1e30f;

  const int64_t group_, head_dim_, key_steps_, query_stride_, padded_dim_, max_rows_;
  Memory<LeftNumber> queries_;
  Memory<uint32_t> keys_, values_;
  Memory<float> sums_, most_, totals_;
  Memory<Number> rest_;
};
