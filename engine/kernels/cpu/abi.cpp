// The functions that Python calls. A model is used by one thread at a time.
#include <new>

#include "model.h"

// Which numbers a model consists of: Bfloat16 or Float32. A library for each compiles in half the time of one for both.
#ifndef TWOSTEP_TYPE
#define TWOSTEP_TYPE Float32
#endif

typedef Decoder<TWOSTEP_TYPE> Model;

namespace {

// Returns 0, or -1 when memory does not suffice.
template <class Act>
int32_t unless_out_of_memory(const Act& act) {
  try {
    act();
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Returns whether the system lets this process use the instructions: to be asked first.
int32_t twostep_may_multiply() { return may_multiply(); }

// Returns null when memory does not suffice.
Model* twostep_create(const ModelSpec* spec) {
  Model* model = nullptr;
  unless_out_of_memory([&] { model = new Model(*spec); });
  return model;
}

void twostep_free(Model* model) { delete model; }

// Weights are copied as they are packed: the caller may drop its own.
int32_t twostep_add_layer(Model* model, const LayerSpec* layer) {
  return unless_out_of_memory([&] { model->add_layer(*layer); });
}

int32_t twostep_set_head(Model* model, const void* weights) {
  return unless_out_of_memory([&] { model->set_head(weights); });
}

int32_t twostep_begin(Model* model, const StepSpec* step) {
  return unless_out_of_memory([&] { model->begin(*step); });
}

void twostep_run_layers(Model* model, int64_t first, int64_t end) { model->run_layers(first, end); }

// Writes the logits of `count` rows of the step, [count][vocab].
void twostep_logits(Model* model, const int32_t* rows, int64_t count, float* out) { model->logits(rows, count, out); }
}
#pragma GCC visibility pop
