// What is done to one row at a time: normalisation, rotation, activation. Sums go in one order, lane by lane.
#pragma once

#include <cmath>

#include "functions.h"

// Root-mean-square normalisation (Zhang and Sennrich 2019); without weights there is none.
struct Norm {
  const float* weights;
  float eps;

  explicit operator bool() const { return weights; }
};

inline float sum_of_squares(const float* x, int64_t size) {
  Floats sum = {};
  for (; size >= LANES; size -= LANES, x += LANES) sum = fma(load<Floats>(x), load<Floats>(x), sum);
  if (size) {
    float rest[LANES] = {};
    memcpy(rest, x, size * sizeof *x);
    sum = fma(load<Floats>(rest), load<Floats>(rest), sum);
  }
  return sum_lanes(sum);
}

// `to` may be `x`, or of another type.
template <class T>
void normalise(const Norm& norm, const float* x, int64_t size, typename T::Number* to) {
  float scale = 1.0f / std::sqrt(sum_of_squares(x, size) / size + norm.eps);
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) T::narrow(to + i, load<Floats>(x + i) * scale * load<Floats>(norm.weights + i));
  for (; i < size; i++) to[i] = T::narrow_one(x[i] * scale * norm.weights[i]);
}

template <class T>
void narrow(const float* from, int64_t size, typename T::Number* to) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) T::narrow(to + i, load<Floats>(from + i));
  for (; i < size; i++) to[i] = T::narrow_one(from[i]);
}

// Turns the first `2 * half` numbers of a head, in halves (Su et al. 2021); `cosines` and `sines` [half].
inline void rotate(float* head, int64_t half, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < half; i++) {
    float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i] + first * sines[i];
  }
}

enum Activation : int32_t { SILU = 0, GELU = 1 };

inline Floats activate(Activation activation, Floats gate) { return activation == SILU ? silu(gate) : gelu(gate); }
