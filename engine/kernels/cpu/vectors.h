// The vectors of one instruction set, and the few operations that differ from set to set.
//
// Everything is summed in an order that is written down, and no product is contracted into a sum but by `fma`: what a row
// comes to must not depend on how the compiler unrolled the loop around it.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16, TILE_ROWS = 8, TILE_VECTORS = 3;
#elif defined(__AVX2__)
#include <immintrin.h>
constexpr int LANES = 8, TILE_ROWS = 3, TILE_VECTORS = 3;
#else
constexpr int LANES = 4, TILE_ROWS = 3, TILE_VECTORS = 3;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t Pairs __attribute__((vector_size(4 * LANES)));

template <class V>
inline V load(const void* from) {
  V v;
  memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
inline void store(void* to, V v) {
  memcpy(to, &v, sizeof v);
}

// Subtracting zero keeps the sign of a zero, which adding would not.
inline Floats all(float x) { return x - Floats{}; }
inline Words all(uint32_t x) { return x - Words{}; }

inline Ints lane_numbers() {
  Ints numbers;
  for (int lane = 0; lane < LANES; lane++) numbers[lane] = lane;
  return numbers;
}

inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// A NaN in `a` stays, so that it is seen in the logits.
inline Floats larger(Floats a, Floats b) { return a < b ? b : a; }

inline float sum_lanes(Floats v) {
  for (int half = LANES / 2; half; half /= 2)
    for (int lane = 0; lane < half; lane++) v[lane] += v[lane + half];
  return v[0];
}

inline float max_lanes(Floats v) {
  float most = v[0];
  for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
  return most;
}

// The elements of two vectors in turn, those of their first halves and those of their second.
template <class V, int... I>
inline std::pair<V, V> interleave(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int SIZE = sizeof...(I);
  return {__builtin_shufflevector(a, b, (I / 2 + (I & 1) * SIZE)...),
          __builtin_shufflevector(a, b, (I / 2 + SIZE / 2 + (I & 1) * SIZE)...)};
}

// Numbers are stored in words of 32 bits: a float, or a pair of bfloat16, the earlier one in the low half.
//
// They are the right side of every product. The left side, what a step computes, is of type `Left`: bfloat16 where the processor
// multiplies pairs of them, else float32, which is nearer to the truth and costs nothing. A word is multiplied in `TURNS` turns.
struct Float32 {
  typedef float Number;
  typedef Float32 Left;
  typedef Floats Factor;
  static constexpr int PER_WORD = 1, TURNS = 1;

  static Floats widen(const Number* from) { return load<Floats>(from); }
  static float widen_one(Number x) { return x; }
  static void narrow(Number* to, Floats v) { store(to, v); }
  static Number narrow_one(float x) { return x; }
  static Factor left(const float* from, int) { return all(*from); }
  static Factor right(Words words, int) { return (Floats)words; }
  static Floats dot(Factor left, Factor right, Floats sum) { return fma(left, right, sum); }
  // Returns 2 * LANES dimensions of as many tokens that follow one another as are multiplied at once, in some order, and
  static std::pair<Factor, Factor> columns(const Number* token, const Number*) {
    return {load<Floats>(token), load<Floats>(token + LANES)};
  }
  // puts what they came to in order.
  static std::pair<Floats, Floats> in_order(Floats first, Floats second) { return {first, second}; }
};

struct Bfloat16 {
  typedef uint16_t Number;
  static constexpr int PER_WORD = 2;
#if defined(__AVX512BF16__)
  typedef Bfloat16 Left;
  typedef Words Factor;
  static constexpr int TURNS = 1;

  static Factor left(const Number* from, int) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return all(word);
  }
  static Factor right(Words words, int) { return words; }
  static Floats dot(Factor left, Factor right, Floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
  }
  static std::pair<Factor, Factor> columns(const Number* token, const Number* next) {
    auto [low, high] = interleave(load<Pairs>(token), load<Pairs>(next), std::make_integer_sequence<int, 2 * LANES>());
    return {(Words)low, (Words)high};
  }
  static std::pair<Floats, Floats> in_order(Floats first, Floats second) { return {first, second}; }
#else
  typedef Float32 Left;
  typedef Floats Factor;
  static constexpr int TURNS = 2;

  static Factor left(const float* from, int turn) { return all(from[turn]); }
  static Factor right(Words words, int turn) { return (Floats)(turn ? words & 0xffff0000u : words << 16); }
  static Floats dot(Factor left, Factor right, Floats sum) { return fma(left, right, sum); }
  // Even dimensions, then odd ones.
  static std::pair<Factor, Factor> columns(const Number* token, const Number*) {
    return {right(load<Words>(token), 0), right(load<Words>(token), 1)};
  }
  static std::pair<Floats, Floats> in_order(Floats first, Floats second) {
    return interleave(first, second, std::make_integer_sequence<int, LANES>());
  }
#endif

  static Floats widen(const Number* from) { return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16); }

  static float widen_one(Number x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
  }

  // To the nearest, ties to even; a NaN stays one.
  static void narrow(Number* to, Floats v) {
#if defined(__AVX512BF16__)
    store(to, _mm512_cvtneps_pbh(v));
#else
    Words bits = (Words)v;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    store(to, __builtin_convertvector(v == v ? rounded : all(0x7fc0u), Halves));
#endif
  }

  static Number narrow_one(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
  }
};

// Transposes LANES rows of LANES words: as many perfect shuffles of the rows as a lane's number has bits.
inline void transpose(Words (&rows)[LANES]) {
  for (int stage = 1; stage < LANES; stage *= 2) {
    Words shuffled[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      auto [low, high] = interleave(rows[i], rows[i + LANES / 2], std::make_integer_sequence<int, LANES>());
      shuffled[2 * i] = low, shuffled[2 * i + 1] = high;
    }
    memcpy(&rows, &shuffled, sizeof shuffled);
  }
}
