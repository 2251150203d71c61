// Elementary functions on vectors, in float32. A NaN comes out as a NaN.
#pragma once

#include "vectors.h"

// The sum of the polynomial with these factors, from the highest power down.
template <int N>
inline Floats polynomial(Floats x, const float (&factors)[N]) {
  Floats sum = all(factors[0]);
  for (int i = 1; i < N; i++) sum = fma(sum, x, all(factors[i]));
  return sum;
}

// Error below 2 units in the last place in [-87, 88], which larger and smaller arguments are moved to. (Cephes' polynomial.)
inline Floats exponential(Floats x) {
  x = x < -87.0f ? all(-87.0f) : x;
  x = x > 88.0f ? all(88.0f) : x;
  const Floats shift = all(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to a whole number
  Floats shifted = fma(x, all(1.44269504f), shift);
  Floats whole = shifted - shift;
  Floats rest = fma(whole, all(-0.693359375f), x);
  rest = fma(whole, all(2.12194440e-4f), rest);
  Floats sum = polynomial(rest, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f});
  sum = fma(sum, rest * rest, rest) + 1.0f;
  Ints power = (Ints)shifted - (Ints)shift;
  return sum * (Floats)((power + 127) << 23);
}

// Near 0 by a polynomial (Cephes'): the other form would lose there what it subtracts.
inline Floats tanh_of(Floats x) {
  Floats square = x * x;
  Floats near = polynomial(square, {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f});
  Floats far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return square < 0.390625f ? fma(near * square, x, x) : far;
}

inline Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

// By the tanh approximation.
inline Floats gelu(Floats x) {
  Floats inner = 0.7978845608f * fma(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanh_of(inner));
}

// Bends `x` smoothly into (-cap, cap).
inline Floats soft_cap(Floats x, float cap) { return cap * tanh_of(x / cap); }
