// Matrix products with weights packed in panels of output columns. Each number is summed in order of its inner dimension, in
// one accumulator, whatever shares the tile: a row comes to the same bits in a batch of one and of a thousand.
#pragma once

#include <algorithm>
#include <type_traits>

#include "memory.h"
#include "team.h"
#include "tiles.h"

inline int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline int64_t whole(int64_t count, int64_t size) { return parts(count, size) * size; }

// c[R][V * LANES] (plus what is there, where ADD) = a[R][steps] times b[steps][V * LANES]; `b` and its stride in words, `a` and its
// stride in numbers, as many of them a step as a word holds. Meanwhile FETCH vectors from `wanted` on are brought nearer in each.
template <class T, int R, int V, bool ADD, int FETCH>
void tile(const typename T::Left::Number* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps, float* c,
          int64_t c_stride, const uint32_t* wanted) {
  Floats sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = ADD ? load<Floats>(c + r * c_stride + v * LANES) : Floats{};
  for (int64_t step = 0; step < steps; step++, a += T::PER_WORD, b += b_stride) {
    for (int f = 0; f < FETCH; f++, wanted += LANES) __builtin_prefetch(wanted);
    for (int turn = 0; turn < T::TURNS; turn++) {
      typename T::Factor columns[V];
      for (int v = 0; v < V; v++) columns[v] = T::right(load<Words>(b + v * LANES), turn);
      for (int r = 0; r < R; r++) {
        auto row = T::left(a + r * a_stride, turn);
        for (int v = 0; v < V; v++) sums[r][v] = T::dot(row, columns[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(c + r * c_stride + v * LANES, sums[r][v]);
}

template <class T>
using Tile = void (*)(const typename T::Left::Number*, int64_t, const uint32_t*, int64_t, int64_t, float*, int64_t,
                      const uint32_t*);

template <class T, int V, bool ADD, int FETCH, int... R>
Tile<T> tile_of(int rows, std::integer_sequence<int, R...>) {
  static constexpr Tile<T> tiles[] = {tile<T, R + 1, V, ADD, FETCH>...};
  return tiles[rows - 1];
}

template <class T, int V, bool ADD, int FETCH>
Tile<T> tile_of(int rows) {
  return tile_of<T, V, ADD, FETCH>(rows, std::make_integer_sequence<int, TILE_ROWS>());
}

// The same for any number of vectors, of which there are pairs where they are tiles, and up to Cut<T>::ROWS rows.
template <class T, bool ADD>
void multiply(int rows, int vectors, const typename T::Left::Number* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
              int64_t steps, float* c, int64_t c_stride) {
  if constexpr (Cut<T>::IN_TILES) {
    for (; vectors > 0; vectors -= 2, b += 2 * LANES, c += 2 * LANES)
      multiply_in_tiles<ADD, false, 0>(rows, a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
    return;
  }
  // Four are better two and two than three and one, whose sums are too few to keep the multipliers busy.
  for (; vectors == 3 || vectors > 4; vectors -= 3, b += 3 * LANES, c += 3 * LANES)
    tile_of<T, 3, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
  for (; vectors >= 2; vectors -= 2, b += 2 * LANES, c += 2 * LANES)
    tile_of<T, 2, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
  if (vectors) tile_of<T, 1, ADD, 0>(rows)(a, a_stride, b, b_stride, steps, c, c_stride, nullptr);
}

// `count` rows of `size` numbers each, padded with zeros to whole vectors and steps; there is memory for whole tiles of rows.
template <class T>
struct Rows {
  typedef typename T::Number Number;
  int64_t size, stride, count = 0, capacity = 0;
  Memory<Number> numbers;

  explicit Rows(int64_t size) : size(size), stride(whole(size, std::max(LANES, Cut<T>::STEPS * T::PER_WORD))) {}

  void resize(int64_t rows) {
    if (rows > capacity) numbers = allocate<Number>((capacity = whole(rows, Cut<T>::ROWS)) * stride);
    count = rows;
  }

  Number* operator[](int64_t row) { return numbers.get() + row * stride; }
  const Number* operator[](int64_t row) const { return numbers.get() + row * stride; }
};

// N matrices of one shape that meet the same rows: weights [N][out][in] as [panel][matrix][step][column] in words, and biases, if there
// are any. The panels that are one member's share lie one after another, and behind them those of its next product.
template <class T, int N = 1>
struct Linear {
  int64_t num_out = 0, steps = 0;
  std::vector<const uint32_t*> panels;
  Memory<float> bias;

  int64_t words() const { return N * steps * PANEL<T>; }
};

// Where a member keeps a panel in the type of what it is multiplied by: many rows meet it so.
template <class T>
class Widened {
 public:
  static constexpr bool IS_NEEDED = !std::is_same_v<T, typename T::Left>;

  void make_room(int64_t words) {
    if (IS_NEEDED && words > room_) numbers_ = allocate<uint32_t>((room_ = words) * T::TURNS);
  }

  // Returns [step][number of its word][PANEL] for `steps` of [PANEL] words.
  const uint32_t* widen(const uint32_t* words, int64_t steps) {
    uint32_t* to = numbers_.get();
    for (int64_t step = 0; step < steps; step++, words += PANEL<T>)
      for (int turn = 0; turn < T::TURNS; turn++, to += PANEL<T>)
        for (int c = 0; c < PANEL<T>; c += LANES) store(to + c, T::right(load<Words>(words + c), turn));
    return numbers_.get();
  }

 private:
  int64_t room_ = 0;
  Memory<uint32_t> numbers_;
};

// What the members need to multiply: one of each for every one of them.
template <class T>
struct Stores {
  std::vector<Arena> weights;
  std::vector<Widened<T>> widened;

  explicit Stores(const Team& team) : weights(team.size()), widened(team.size()) {}
};

// Lays `width` rows of `num_in` numbers out as [step][column], in words.
template <class T>
void pack_panel(const typename T::Number* numbers, int64_t width, int64_t num_in, uint32_t* to) {
  for (int64_t column = 0; column < width; column++)
    for (int64_t i = 0; i < num_in; i += T::PER_WORD) {
      int64_t present = std::min<int64_t>(T::PER_WORD, num_in - i);
      memcpy(to + i / T::PER_WORD * PANEL<T> + column, numbers + column * num_in + i, present * sizeof *numbers);
    }
}

// Packs rows [0, num_out) of each of `weights` [num_out][num_in].
template <class T, int N>
Linear<T, N> pack(Team& team, Stores<T>& stores, const void* const (&weights)[N], const float* const (&biases)[N],
                  int64_t num_out, int64_t num_in) {
  Linear<T, N> linear;
  linear.num_out = num_out, linear.steps = whole(parts(num_in, T::PER_WORD), Cut<T>::STEPS);
  int64_t num_panels = parts(num_out, PANEL<T>);
  std::vector<uint32_t*> panels;
  for (int member = 0; member < team.size(); member++) {
    int64_t count = team.share_begin(num_panels, member + 1) - team.share_begin(num_panels, member);
    uint32_t* first = stores.weights[member].take(count * linear.words());
    for (int64_t panel = 0; panel < count; panel++) panels.push_back(first + panel * linear.words());
    stores.widened[member].make_room(linear.words());
  }
  linear.panels.assign(panels.begin(), panels.end());
  if (std::any_of(biases, biases + N, [](const float* bias) { return bias; }))
    linear.bias = allocate<float>(num_panels * N * PANEL<T>);
  team.run([&](Team::Member me) {
    me.share(num_panels, [&](int64_t panel) {
      int64_t first = panel * PANEL<T>, width = std::min<int64_t>(PANEL<T>, num_out - first);
      for (int i = 0; i < N; i++) {
        if (biases[i]) memcpy(linear.bias.get() + (panel * N + i) * PANEL<T>, biases[i] + first, width * sizeof(float));
        auto* numbers = static_cast<const typename T::Number*>(weights[i]) + first * num_in;
        pack_panel<T>(numbers, width, num_in, panels[panel] + i * linear.steps * PANEL<T>);
      }
    });
  });
  return linear;
}

// How many rows one task takes: enough of them that a panel is worth its way, few enough that they stay in a core's cache, and
// about as many as the other tasks take.
template <class T>
int64_t rows_at_once(int64_t rows, int64_t steps) {
  int64_t most = std::max<int64_t>(8 * Cut<T>::ROWS, Cut<T>::CACHED / steps);
  return whole(parts(rows, parts(rows, most)), Cut<T>::ROWS);
}

// One panel of N matrices, by which `num_tiles` tiles of rows are multiplied, the first one first.
template <class T, int N>
class PanelProduct {
  typedef typename T::Left Left;
  typedef typename Left::Number LeftNumber;

 public:
  PanelProduct(const Linear<T, N>& linear, int64_t panel, int64_t num_tiles, Widened<T>& widened)
      : words_(linear.panels[panel]), steps_(linear.steps), num_tiles_(num_tiles) {
    if (Widened<T>::IS_NEEDED && num_tiles > FEW_TILES) wide_ = widened.widen(words_, N * steps_);
  }

  void multiply(int matrix, int64_t tile, int rows, const LeftNumber* x, int64_t stride, float* sums) const {
    int64_t at = matrix * steps_ * PANEL<T>;
    if (num_tiles_ == 1)
      run<T, false, Cut<T>::VECTORS * Cut<T>::STEPS>(rows, x, stride, words_ + at, steps_, sums, words_ + at + AHEAD);
    else if (wide_)
      run_and_fetch<Left>(at, tile, rows, x, stride, wide_ + at * T::TURNS, steps_ * T::TURNS, sums);
    else
      run_and_fetch<T>(at, tile, rows, x, stride, words_ + at, steps_, sums);
  }

 private:
  // So many take no longer when each widens what it multiplies by: to write a wide panel down takes as long as one of them.
  static constexpr int64_t FEW_TILES = 8;
  static constexpr int64_t AHEAD = 2048;  // words: 8 KiB

  static constexpr int WHOLE = Cut<T>::VECTORS * Cut<T>::STEPS;

  // The first tiles bring the panel after this one, behind their own work: LINES in each Cut<T>::STEPS, the fewer the more tiles there are.
  template <class U, int LINES = (WHOLE + 1) / 2>
  void run_and_fetch(int64_t at, int64_t tile, int rows, const LeftNumber* x, int64_t stride, const uint32_t* panel, int64_t steps,
                     float* sums) const {
    if constexpr (LINES > 1)
      if (LINES / 2 * num_tiles_ >= WHOLE) return run_and_fetch<U, LINES / 2>(at, tile, rows, x, stride, panel, steps, sums);
    int64_t fetched = tile * (steps / Cut<T>::STEPS) * LINES * LANES;
    const uint32_t* wanted = words_ + N * steps_ * PANEL<T> + at + fetched;
    if (fetched < steps_ * PANEL<T>)
      run<U, true, LINES>(rows, x, stride, panel, steps, sums, wanted);
    else
      run<U, true, 0>(rows, x, stride, panel, steps, sums, wanted);
  }

  template <class U, bool MANY, int FETCH>
  static void run(int rows, const LeftNumber* x, int64_t stride, const uint32_t* panel, int64_t steps, float* sums,
                  const uint32_t* wanted) {
    if constexpr (Cut<T>::IN_TILES)
      multiply_in_tiles<false, MANY, FETCH>(rows, x, stride, panel, PANEL<T>, steps, sums, PANEL<T>, wanted);
    else
      tile_of<U, Cut<T>::VECTORS, false, FETCH>(rows)(x, stride, panel, PANEL<T>, steps, sums, PANEL<T>, wanted);
  }

  const uint32_t *words_, *wide_ = nullptr;
  int64_t steps_, num_tiles_;
};

// Called by each member: multiplies `x` by a linear layer, panel by panel. `finish(first row, rows, panel, sums)` gets the tiles
// [matrix][row][PANEL] as they come.
template <class T, int N, class Finish>
void project(const Team::Member& me, Stores<T>& stores, const Rows<typename T::Left>& x, const Linear<T, N>& linear,
             const Finish& finish) {
  if (!x.count) return;
  Multiplier<T> multiplier;
  int64_t at_once = rows_at_once<T>(x.count, linear.steps), num_panels = linear.panels.size();
  auto work = [&](int64_t task) {
    int64_t panel = task % num_panels, first = task / num_panels * at_once, end = std::min(x.count, first + at_once);
    int64_t num_tiles = parts(end - first, Cut<T>::ROWS);
    PanelProduct<T, N> product(linear, panel, num_tiles, stores.widened[me.number]);
    for (int64_t tile = 0; tile < num_tiles; tile++) {
      int64_t row = first + tile * Cut<T>::ROWS;
      int count = std::min<int64_t>(Cut<T>::ROWS, end - row);
      alignas(64) float sums[N][Cut<T>::ROWS * PANEL<T>];
      for (int i = 0; i < N; i++) {
        product.multiply(i, tile, count, x[row], x.stride, sums[i]);
        if (!linear.bias) continue;
        const float* bias = linear.bias.get() + (panel * N + i) * PANEL<T>;
        for (int at = 0; at < count * PANEL<T>; at += LANES)
          store(sums[i] + at, load<Floats>(sums[i] + at) + load<Floats>(bias + at % PANEL<T>));
      }
      finish(row, count, panel, sums);
    }
  };
  // Few rows wait for memory, which comes fastest in one stream for each thread.
  x.count <= at_once ? me.share(num_panels, work) : me.each(parts(x.count, at_once) * num_panels, work);
}
