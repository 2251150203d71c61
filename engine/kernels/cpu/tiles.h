// How products by weights are cut, and those that Intel's AMX multiplies: tiles of 16 rows of 64 bytes, eight of them on each core.
#pragma once

#include "vectors.h"
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// So many ROWS meet a panel of so many VECTORS of columns at once; the inner dimension is taken in whole STEPS of a word. So many
// words of rows stay in a core's cache beside a panel.
template <class T>
struct Cut {
  static constexpr bool IN_TILES = false;
  static constexpr int ROWS = TILE_ROWS, VECTORS = TILE_VECTORS, STEPS = 1;
  static constexpr int64_t CACHED = 96 << 10;
};

template <class T>
constexpr int PANEL = Cut<T>::VECTORS* LANES;

// Returns whether this process may use what it was compiled for: tiles are granted to those that ask.
inline bool may_multiply() {
#if defined(__AMX_BF16__)
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  static const bool granted = !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
  return granted;
#else
  return true;
#endif
}

// While it lives, its thread can multiply numbers of T.
template <class T>
struct Multiplier {
  Multiplier() {}
};

// As `tile` (matrix.h), for up to Cut<T>::ROWS rows and two vectors of columns; there is memory for whole tiles of all of them. Where
// MANY tiles of rows meet the columns one after another, the rows pass by the nearest cache, lest these leave it; what is fetched
// is brought to the next.
template <bool ADD, bool MANY, int FETCH, class N>
void multiply_in_tiles(int rows, const N* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps, float* c,
                       int64_t c_stride, const uint32_t* wanted);

#if defined(__AMX_BF16__)
constexpr int EDGE = 16;

// What the instruction to shape tiles reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {EDGE, EDGE, EDGE, EDGE, EDGE, EDGE, EDGE, EDGE};
};
inline constexpr TileShapes SHAPES{};

template <>
struct Cut<Bfloat16> {
  static constexpr bool IN_TILES = true;
  static constexpr int ROWS = 2 * EDGE, VECTORS = 2, STEPS = EDGE;
  static constexpr int64_t CACHED = 256 << 10;  // cores with tiles have 2 MiB
};

template <>
class Multiplier<Bfloat16> {
 public:
  Multiplier() { _tile_loadconfig(&SHAPES); }

  // What is left in tiles would be saved with the thread whenever another gets its core.
  ~Multiplier() { _tile_release(); }

  Multiplier(const Multiplier&) = delete;
};

// The same for M tiles of rows. Even and odd numbers of EDGE steps are summed apart by the instruction, then both with what is
// there: whatever M is.
template <int M, bool ADD, bool MANY, int FETCH>
void multiply_tiles(const uint16_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps, float* c, int64_t c_stride,
                    const uint32_t* wanted) {
  const int64_t a_bytes = a_stride * sizeof *a, b_bytes = b_stride * sizeof *b, c_bytes = c_stride * sizeof *c;
  float* below = c + EDGE * c_stride;
  // The vectors of one quarter of EDGE steps: only so many lines can be on their way at once.
  auto bring = [&](int quarter) {
    for (int f = FETCH * quarter / 4; f < FETCH * (quarter + 1) / 4; f++, wanted += LANES) __builtin_prefetch(wanted, 0, MANY ? 2 : 3);
  };
  // What the compiler knows of these instructions does not include what they read.
  asm volatile("" ::: "memory");
  if (ADD) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + LANES, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  if (M == 2 && ADD) {
    _tile_loadd(2, below, c_bytes);
    _tile_loadd(3, below + LANES, c_bytes);
  } else {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; step += EDGE, a += 2 * EDGE, b += EDGE * b_stride) {
    // All are loaded before the first is used: where another thread shares the core, products that wait for one load each wait longer.
    bring(0);
    if (MANY) _tile_stream_loadd(4, a, a_bytes);
    else _tile_loadd(4, a, a_bytes);
    bring(1);
    _tile_loadd(6, b, b_bytes);
    bring(2);
    _tile_loadd(7, b + LANES, b_bytes);
    bring(3);
    if (M == 2 && MANY) _tile_stream_loadd(5, a + EDGE * a_stride, a_bytes);
    if (M == 2 && !MANY) _tile_loadd(5, a + EDGE * a_stride, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (M == 2) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + LANES, c_bytes);
  if (M == 2) {
    _tile_stored(2, below, c_bytes);
    _tile_stored(3, below + LANES, c_bytes);
  }
}

template <bool ADD, bool MANY, int FETCH, class N>
void multiply_in_tiles(int rows, const N* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, int64_t steps, float* c,
                       int64_t c_stride, const uint32_t* wanted) {
  auto multiply = rows > EDGE ? multiply_tiles<2, ADD, MANY, FETCH> : multiply_tiles<1, ADD, MANY, FETCH>;
  multiply(a, a_stride, b, b_stride, steps, c, c_stride, wanted);
}
#endif
