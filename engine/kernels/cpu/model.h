// A decoder's layers over packed weights and a paged KV cache: a step is begun, goes through layers, and gives logits.
//
// What goes by the layers (the residual stream) is float32; what is multiplied and what is stored is of the model's type.
#pragma once

#include "abi.h"
#include "attention.h"
#include "rows.h"

inline std::vector<float> copy(const float* from, int64_t count) {
  return from ? std::vector<float>(from, from + count) : std::vector<float>();
}

// A normalisation and the weights it is made of.
class OwnNorm {
 public:
  OwnNorm(const NormSpec& spec, int64_t size) : weights_(copy(spec.weights, size)), eps_(spec.eps) {}
  Norm get() const { return {weights_.empty() ? nullptr : weights_.data(), eps_}; }

 private:
  std::vector<float> weights_;
  float eps_;
};

template <class T>
struct Layer {
  OwnNorm attention_in, attention_out, mlp_in, mlp_out, query, key;
  Linear<T> qkv, out;
  Linear<T, 2> gate_up;
  Linear<T> down;
  Scoring scoring;
  int64_t rope;
  Activation activation;
};

template <class T>
class Decoder {
  typedef typename T::Number Number;
  typedef typename T::Left Left;

 public:
  explicit Decoder(const ModelSpec& spec)
      : spec_(spec), team_(spec.num_threads), stores_(team_), final_norm_(spec.final_norm, spec.dim), hidden_(spec.dim), branch_(spec.dim),
        qkv_(num_qkv()), normed_(spec.dim), queries_(num_query()), attended_(num_query()), inner_(spec.inner_dim) {
    for (int64_t rope = 0; rope < spec.num_ropes; rope++) {
      const RopeSpec& from = spec.ropes[rope];
      ropes_.push_back({copy(from.frequencies, from.half), from.magnitude, {}});
    }
    for (int member = 0; member < team_.size(); member++)
      attention_.emplace_back(spec.num_heads, spec.num_kv_heads, spec.head_dim);
  }

  void add_layer(const LayerSpec& from) {
    int64_t dim = spec_.dim, inner = spec_.inner_dim;
    auto* gate_up = static_cast<const Number*>(from.gate_up.weights);
    const float* bias = from.gate_up.bias;
    layers_.push_back({
        {from.attention_in, dim}, {from.attention_out, dim}, {from.mlp_in, dim}, {from.mlp_out, dim},
        {from.query, spec_.head_dim}, {from.key, spec_.head_dim},
        pack<T, 1>(team_, stores_, {from.qkv.weights}, {from.qkv.bias}, num_qkv(), dim),
        pack<T, 1>(team_, stores_, {from.out.weights}, {from.out.bias}, dim, num_query()),
        pack<T, 2>(team_, stores_, {gate_up, gate_up + inner * dim}, {bias, bias ? bias + inner : nullptr}, inner, dim),
        pack<T, 1>(team_, stores_, {from.down.weights}, {from.down.bias}, dim, inner),
        {from.scale, from.cap, from.window}, from.rope, static_cast<Activation>(from.activation),
    });
  }

  void set_head(const void* weights) { head_ = pack<T, 1>(team_, stores_, {weights}, {nullptr}, spec_.vocab_size, spec_.dim); }

  void begin(const StepSpec& step) {
    tables_.assign(step.tables, step.tables + step.num_table_entries);
    places_.clear();
    chunks_.clear();
    for (int64_t i = 0; i < step.num_chunks; i++) {
      const ChunkSpec& chunk = step.chunks[i];
      chunks_.push_back({(int64_t)places_.size(), chunk.start, chunk.count, tables_.data() + chunk.first_table_entry});
      for (int64_t at = 0; at < chunk.count; at++) places_.push_back({i, chunk.start + at});
    }
    plan_attention();
    int64_t num_rows = places_.size();
    for (auto* rows : {&hidden_, &branch_, &qkv_}) rows->resize(num_rows);
    for (auto* rows : {&normed_, &queries_, &attended_, &inner_}) rows->resize(num_rows);
    for (Rope& rope : ropes_) rope.angles.resize(num_rows * 2 * rope.half());
    team_.run([&](Team::Member me) { me.share(num_rows, [&](int64_t row) { embed(step.tokens[row], row), turn(row); }); });
  }

  void run_layers(int64_t first, int64_t end) {
    team_.run([&](Team::Member me) {
      for (int64_t layer = first; layer < end; layer++) run_layer(me, layers_[layer], pool(layer));
    });
  }

  void logits(const int32_t* rows, int64_t count, float* out) {
    normed_.resize(count);
    team_.run([&](Team::Member me) {
      me.share(count, [&](int64_t i) { normalise<Left>(final_norm_.get(), hidden_[rows[i]], spec_.dim, normed_[i]); });
      project(me, stores_, normed_, head_, [&](int64_t row, int num, int64_t panel, auto& sums) {
        int64_t first = panel * PANEL<T>, columns = std::min<int64_t>(PANEL<T>, spec_.vocab_size - first);
        for (int r = 0; r < num; r++) {
          float* to = out + (row + r) * spec_.vocab_size + first;
          for (int c = 0; c < PANEL<T>; c += LANES) {
            Floats logit = load<Floats>(sums[0] + r * PANEL<T> + c);
            if (spec_.logit_cap) store(sums[0] + r * PANEL<T> + c, soft_cap(logit, spec_.logit_cap));
          }
          memcpy(to, sums[0] + r * PANEL<T>, columns * sizeof(float));
        }
      });
    });
  }

 private:
  // A kind of rotation, and the step's angles as [row][cosines, then sines].
  struct Rope {
    std::vector<float> frequencies;
    float magnitude;
    std::vector<float> angles;

    int64_t half() const { return frequencies.size(); }
  };

  // Where a row's token stands: in which chunk, at which position of its sequence.
  struct Place {
    int64_t chunk, position;
  };

  int64_t num_query() const { return spec_.num_heads * spec_.head_dim; }
  int64_t num_qkv() const { return (spec_.num_heads + 2 * spec_.num_kv_heads) * spec_.head_dim; }

  Pool<T> pool(int64_t layer) const {
    int64_t size = spec_.num_blocks * spec_.num_kv_heads * spec_.block_tokens * 2 * spec_.head_dim;
    return {static_cast<Number*>(spec_.kv) + layer * size, spec_.num_kv_heads, spec_.block_tokens, spec_.head_dim};
  }

  // The longest tasks first, so that no thread is left with one when the others are done.
  void plan_attention() {
    attention_tasks_.clear();
    int64_t at_once = attention_[0].tokens_at_once();
    for (const Chunk& chunk : chunks_)
      for (int64_t first = 0; first < chunk.count; first += at_once)
        for (int64_t head = 0; head < spec_.num_kv_heads; head++)
          attention_tasks_.push_back({&chunk, head, first, std::min(at_once, chunk.count - first)});
    auto work = [](const AttentionTask& task) { return task.count * (task.chunk->start + task.first + task.count); };
    std::stable_sort(attention_tasks_.begin(), attention_tasks_.end(),
                     [&](const AttentionTask& a, const AttentionTask& b) { return work(a) > work(b); });
  }

  void embed(int32_t token, int64_t row) {
    const Number* from = static_cast<const Number*>(spec_.embedding) + token * spec_.dim;
    for (int64_t i = 0; i < spec_.dim; i++) hidden_[row][i] = T::widen_one(from[i]) * spec_.embedding_scale;
  }

  void turn(int64_t row) {
    for (Rope& rope : ropes_) {
      float* angles = rope.angles.data() + row * 2 * rope.half();
      for (int64_t i = 0; i < rope.half(); i++) {
        float angle = places_[row].position * rope.frequencies[i];
        angles[i] = std::cos(angle) * rope.magnitude;
        angles[i + rope.half()] = std::sin(angle) * rope.magnitude;
      }
    }
  }

  void run_layer(Team::Member me, const Layer<T>& layer, const Pool<T>& pool) {
    normalise_all(me, layer.attention_in);
    project(me, stores_, normed_, layer.qkv, [&](int64_t row, int num, int64_t panel, auto& sums) {
      place(qkv_, row, num, panel, [&](const float*, int at) { return load<Floats>(sums[0] + at); });
    });
    me.share(qkv_.count, [&](int64_t row) { rotate_and_store(layer, pool, row); });
    me.each(attention_tasks_.size(), [&](int64_t task) {
      int64_t next = task + team_.size();
      const AttentionTask* then = next < (int64_t)attention_tasks_.size() ? &attention_tasks_[next] : nullptr;
      attention_[me.number].attend(attention_tasks_[task], then, pool, layer.scoring, queries_, attended_);
    });
    add(me, layer.out, attended_, layer.attention_out);
    normalise_all(me, layer.mlp_in);
    project(me, stores_, normed_, layer.gate_up, [&](int64_t row, int num, int64_t panel, auto& sums) {
      place(inner_, row, num, panel, [&](const typename Left::Number*, int at) {
        return activate(layer.activation, load<Floats>(sums[0] + at)) * load<Floats>(sums[1] + at);
      });
    });
    add(me, layer.down, inner_, layer.mlp_out);
  }

  void normalise_all(Team::Member me, const OwnNorm& norm) {
    me.share(hidden_.count, [&](int64_t row) { normalise<Left>(norm.get(), hidden_[row], spec_.dim, normed_[row]); });
  }

  // Adds what `linear` makes of `x`, normalised where there is a norm for it, to what goes by.
  void add(Team::Member me, const Linear<T>& linear, const Rows<Left>& x, const OwnNorm& norm) {
    Rows<Float32>& to = norm.get() ? branch_ : hidden_;
    project(me, stores_, x, linear, [&](int64_t row, int num, int64_t panel, auto& sums) {
      place(to, row, num, panel, [&](const float* there, int at) {
        Floats sum = load<Floats>(sums[0] + at);
        return norm.get() ? sum : load<Floats>(there) + sum;
      });
    });
    if (!norm.get()) return;
    me.share(hidden_.count, [&](int64_t row) {
      normalise<Float32>(norm.get(), branch_[row], spec_.dim, branch_[row]);
      for (int64_t i = 0; i < spec_.dim; i++) hidden_[row][i] += branch_[row][i];
    });
  }

  // Writes `value(what is there, place in the tile)` where a tile of a panel's columns belongs.
  template <class R, class Value>
  static void place(Rows<R>& to, int64_t row, int num, int64_t panel, const Value& value) {
    int64_t first = panel * PANEL<T>, width = std::min<int64_t>(PANEL<T>, to.stride - first);
    for (int r = 0; r < num; r++)
      for (int64_t c = 0; c < width; c += LANES) {
        auto* there = to[row + r] + first + c;
        R::narrow(there, value(there, r * PANEL<T> + c));
      }
  }

  void rotate_and_store(const Layer<T>& layer, const Pool<T>& pool, int64_t row) {
    const Rope& rope = ropes_[layer.rope];
    const float* angles = rope.angles.data() + row * 2 * rope.half();
    int64_t size = spec_.head_dim;
    auto [number, position] = places_[row];
    const Chunk& chunk = chunks_[number];
    auto prepare = [&](float* head, const OwnNorm& norm) {
      if (norm.get()) normalise<Float32>(norm.get(), head, size, head);
      rotate(head, rope.half(), angles, angles + rope.half());
    };
    float* from = qkv_[row];
    for (int64_t head = 0; head < spec_.num_heads; head++, from += size) {
      prepare(from, layer.query);
      narrow<Left>(from, size, queries_[row] + head * size);
    }
    for (int64_t head = 0; head < spec_.num_kv_heads; head++, from += size) {
      Number* to = pool.at(chunk, head, position);
      prepare(from, layer.key);
      narrow<T>(from, size, to);
      narrow<T>(from + spec_.num_kv_heads * size, size, to + size);
      if (position + 1 == chunk.end()) clear_rest(chunk, to);
    }
  }

  // Zeroes what follows the chunk's newest token in a block that the chunk has begun: an earlier owner left it there.
  void clear_rest(const Chunk& chunk, Number* newest) {
    int64_t filled = chunk.end() % spec_.block_tokens, size = 2 * spec_.head_dim;
    if (filled && chunk.start <= chunk.end() - filled)
      memset(newest + size, 0, (spec_.block_tokens - filled) * size * sizeof(Number));
  }

  const ModelSpec spec_;
  Team team_;
  Stores<T> stores_;
  OwnNorm final_norm_;
  std::vector<Rope> ropes_;
  std::vector<Layer<T>> layers_;
  Linear<T> head_;

  std::vector<int32_t> tables_;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;
  std::vector<AttentionTask> attention_tasks_;
  std::vector<Attention<T>> attention_;
  Rows<Float32> hidden_, branch_, qkv_;
  Rows<Left> normed_, queries_, attended_, inner_;
};
