// Memory for weights and for what a step needs between its layers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <vector>

struct Release {
  void operator()(void* memory) const { free(memory); }
};
template <class N>
using Memory = std::unique_ptr<N[], Release>;

// Zeroed, and aligned to a cache line.
template <class N>
Memory<N> allocate(size_t count) {
  size_t bytes = (count * sizeof(N) + 64) / 64 * 64;
  void* memory = aligned_alloc(64, bytes);
  if (!memory) throw std::bad_alloc();
  memset(memory, 0, bytes);
  return Memory<N>(static_cast<N*>(memory));
}

// Pages from the system, zeroed: huge ones where it grants them. A stream that crosses small ones stops at each of them.
class Pages {
 public:
  explicit Pages(size_t bytes) : size_(bytes + HUGE) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(begin(), bytes, MADV_HUGEPAGE);
#endif
  }

  Pages(Pages&& other) noexcept : memory_(other.memory_), size_(other.size_) { other.memory_ = MAP_FAILED; }

  ~Pages() {
    if (memory_ != MAP_FAILED) munmap(memory_, size_);
  }

  void* begin() const {
    uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    return reinterpret_cast<void*>((address + HUGE - 1) / HUGE * HUGE);
  }

 private:
  static constexpr size_t HUGE = 2 << 20;

  void* memory_;
  size_t size_;
};

// Hands out pieces of pages that live as long as it does.
class Arena {
 public:
  // Returns zeroed words, aligned to a cache line.
  uint32_t* take(size_t count) {
    count = (count + 15) / 16 * 16;
    if (count > left_) {
      left_ = count > CHUNK ? count : CHUNK;
      pages_.emplace_back(left_ * sizeof(uint32_t));
      next_ = static_cast<uint32_t*>(pages_.back().begin());
    }
    uint32_t* piece = next_;
    next_ += count, left_ -= count;
    return piece;
  }

 private:
  static constexpr size_t CHUNK = 8 << 20;  // words: 32 MiB

  std::vector<Pages> pages_;
  uint32_t* next_ = nullptr;
  size_t left_ = 0;
};
