// Matrix products with weights packed in panels of output columns. Each number is summed in order of its inner dimension, in
// one accumulator, whatever shares the tile: a row comes to the same bits in a batch of one and of a thousand.
#pragma once

#include <algorithm>

#include "memory.h"
#include "team.h"
#include "vectors.h"

constexpr int PANEL = TILE_VECTORS * LANES;

inline int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline int64_t whole(int64_t count, int64_t size) { return parts(count, size) * size; }

// c[R][V * LANES] (plus what is there, where ADD) = a[R][steps] times b[steps][V * LANES]; strides in words. Meanwhile FETCH
// vectors from `wanted` on are brought nearer in each step.
template <class T, int R, int V, bool ADD, int FETCH>
void tile(const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps, float* c, int64_t c_stride,
          const uint32_t* wanted) {
  Floats sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = ADD ? load<Floats>(c + r * c_stride + v * LANES) : Floats{};
  for (int64_t step = 0; step < steps; step++, b += b_stride) {
    Words columns[V];
    for (int v = 0; v < V; v++) columns[v] = load<Words>(b + v * LANES);
    for (int f = 0; f < FETCH; f++, wanted += LANES) __builtin_prefetch(wanted);
    for (int r = 0; r < R; r++) {
      Words row = all(a[r * a_stride + step]);
      for (int v = 0; v < V; v++) sums[r][v] = T::dot(row, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(c + r * c_stride + v * LANES, sums[r][v]);
}

typedef void (*Tile)(const uint32_t*, int64_t, const uint32_t*, int64_t, int64_t, float*, int64_t, const uint32_t*);

template <class T, int V, bool ADD, int FETCH, int... R>
Tile tile_of(int rows, std::integer_sequence<int, R...>) {
  static constexpr Tile tiles[] = {tile<T, R + 1, V, ADD, FETCH>...};
  return tiles[rows - 1];
}

template <class T, int V, bool ADD, int FETCH>
Tile tile_of(int rows) {
  return tile_of<T, V, ADD, FETCH>(rows, std::make_integer_sequence<int, TILE_ROWS>());
}

// The same for any number of vectors, and up to TILE_ROWS rows.
template <class T, bool ADD>
void multiply(int rows, int vectors, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps,
              float* c, int64_t c_stride) {
  // Four are better two and two than three and one, whose sums are too few to keep the multipliers busy.
  for (; vectors == 3 || vectors > 4; vectors -= 3, b += 3 * LANES, c += 3 * LANES)
    tile_of<T, 3, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
  for (; vectors >= 2; vectors -= 2, b += 2 * LANES, c += 2 * LANES)
    tile_of<T, 2, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
  if (vectors) tile_of<T, 1, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
}

// `count` rows of `size` numbers each, padded with zeros to whole vectors.
template <class T>
struct Rows {
  typedef typename T::Number Number;
  int64_t size, stride, count = 0, capacity = 0;
  Memory<Number> numbers;

  explicit Rows(int64_t size) : size(size), stride(whole(size, LANES)) {}

  void resize(int64_t rows) {
    if (rows > capacity) numbers = allocate<Number>((capacity = rows) * stride);
    count = rows;
  }

  Number* operator[](int64_t row) { return numbers.get() + row * stride; }
  const Number* operator[](int64_t row) const { return numbers.get() + row * stride; }
  const uint32_t* words(int64_t row) const { return reinterpret_cast<const uint32_t*>(numbers.get() + row * stride); }
};

// A linear layer: its weights [out][in] as [panel][step][column] in words, and its bias, which may be none.
template <class T>
struct Linear {
  int64_t num_in = 0, num_out = 0, steps = 0;
  uint32_t* packed = nullptr;
  Memory<float> bias;

  int64_t panels() const { return parts(num_out, PANEL); }
  const uint32_t* panel(int64_t index) const { return packed + index * steps * PANEL; }

  // Multiplies the `tile`th tile of rows by a panel. A lone tile streams through memory, a little ahead of itself. Where there
  // are more, they bring the panel that this thread is likely to take next, each a third of it, behind their own work.
  void multiply(int rows, int64_t index, const uint32_t* x, int64_t stride, float* sums, int64_t tile, bool is_alone) const {
    constexpr int AHEAD = 2048;  // words: 8 KiB
    const uint32_t* weights = panel(index);
    if (is_alone) return tile_of<T, TILE_VECTORS, false, TILE_VECTORS>(rows)(x, stride, weights, PANEL, steps, sums, PANEL, weights + AHEAD);
    const uint32_t* wanted = panel(index + 1) + tile * steps * LANES;
    auto product = tile < TILE_VECTORS ? tile_of<T, TILE_VECTORS, false, 1>(rows) : tile_of<T, TILE_VECTORS, false, 0>(rows);
    product(x, stride, weights, PANEL, steps, sums, PANEL, wanted);
  }
};

// Packs rows [0, num_out) of `weights` [num_out][num_in].
template <class T>
Linear<T> pack(Team& team, Arena& arena, const void* weights, const float* bias, int64_t num_out, int64_t num_in) {
  Linear<T> linear;
  linear.num_in = num_in, linear.num_out = num_out, linear.steps = parts(num_in, T::PER_WORD);
  linear.packed = arena.take(linear.panels() * linear.steps * PANEL);
  linear.bias = allocate<float>(linear.panels() * PANEL);
  if (bias) memcpy(linear.bias.get(), bias, num_out * sizeof(float));
  auto* numbers = static_cast<const typename T::Number*>(weights);
  team.run([&](int) {
    team.each(linear.panels(), [&](int64_t panel) {
      for (int64_t column = 0; column < PANEL && panel * PANEL + column < num_out; column++) {
        const auto* row = numbers + (panel * PANEL + column) * num_in;
        uint32_t* to = linear.packed + panel * linear.steps * PANEL + column;
        for (int64_t step = 0; step < linear.steps; step++) {
          uint32_t word = 0;
          int64_t left = num_in - step * T::PER_WORD;
          memcpy(&word, row + step * T::PER_WORD, (left < T::PER_WORD ? left : T::PER_WORD) * sizeof *row);
          to[step * PANEL] = word;
        }
      }
    });
  });
  return linear;
}

// How many rows one task takes: enough of them that a panel is worth its way, few enough that they stay in a core's cache.
inline int64_t rows_at_once(int64_t steps) {
  constexpr int64_t CACHED = 96 << 10;  // words
  int64_t rows = CACHED / steps / TILE_ROWS * TILE_ROWS;
  return rows < 8 * TILE_ROWS ? 8 * TILE_ROWS : rows;
}

// Called by each member: multiplies `x`, rows of numbers as in `Rows`, by `layers`, all of one shape, panel by panel. `finish(first row, rows,
// panel, sums)` gets the tiles [layer][row][PANEL] as they come.
template <class T, int N, class Finish>
void project(Team& team, const Rows<T>& x, const Linear<T>* const (&layers)[N], const Finish& finish) {
  int64_t rows = x.count, stride = x.stride / T::PER_WORD;
  int64_t steps = layers[0]->steps, at_once = rows_at_once(steps), panels = layers[0]->panels();
  team.each(parts(rows, at_once) * panels, [&](int64_t task) {
    int64_t panel = task % panels, first = task / panels * at_once, end = std::min(rows, first + at_once);
    for (int64_t row = first; row < end; row += TILE_ROWS) {
      int count = std::min<int64_t>(TILE_ROWS, end - row);
      alignas(64) float sums[N][TILE_ROWS * PANEL];
      for (int i = 0; i < N; i++) {
        layers[i]->multiply(count, panel, x.words(row), stride, sums[i], (row - first) / TILE_ROWS, end - first <= TILE_ROWS);
        const float* bias = layers[i]->bias.get() + panel * PANEL;
        for (int at = 0; at < count * PANEL; at += LANES)
          store(sums[i] + at, load<Floats>(sums[i] + at) + load<Floats>(bias + at % PANEL));
      }
      finish(row, count, panel, sums);
    }
  });
}
