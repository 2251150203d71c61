// What crosses from Python: plain structures, mirrored in library.py. Sizes are counts of numbers; a null pointer is none.
#pragma once

#include <cstdint>

struct NormSpec {
  const float* weights;
  float eps;
};

// `weights` [out][in] in the model's type.
struct LinearSpec {
  const void* weights;
  const float* bias;
};

struct RopeSpec {
  const float* frequencies;
  int64_t half;
  float magnitude;
};

// `gate_up` holds the gate's rows, then the up projection's. A window or cap of 0 is none.
struct LayerSpec {
  NormSpec attention_in, attention_out, mlp_in, mlp_out, query, key;
  LinearSpec qkv, out, gate_up, down;
  int64_t rope, window;
  float scale, cap;
  int32_t activation;
};

// `embedding` [vocab][dim] and `kv` [layer][block][kv_head][token][k|v][dim] stay the caller's, for as long as the model lives.
struct ModelSpec {
  int64_t num_threads, dim, num_heads, num_kv_heads, head_dim, inner_dim, vocab_size;
  const void* embedding;
  float embedding_scale, logit_cap;
  NormSpec final_norm;
  const RopeSpec* ropes;
  int64_t num_ropes;
  void* kv;
  int64_t num_blocks, block_tokens;
};

struct ChunkSpec {
  int64_t start, count, first_table_entry;
};

// `tokens` of all chunks, one after another.
struct StepSpec {
  const int32_t* tokens;
  const ChunkSpec* chunks;
  int64_t num_chunks;
  const int32_t* tables;
  int64_t num_table_entries;
};
