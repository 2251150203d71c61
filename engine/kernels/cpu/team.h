// The threads that compute one step together: they spin for a moment between two phases, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int member = 1; member < size; member++) threads_.emplace_back([this, member] { serve(member); });
  }

  ~Team() {
    ended_ = true;
    announce();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  // Calls `job(member)` on every thread, the caller's among them, and returns when all have returned.
  template <class Job>
  void run(const Job& job) {
    call_ = [](const void* job, int member) { (*static_cast<const Job*>(job))(member); };
    job_ = &job;
    announce();
    job(0);
    meet();
  }

  // Inside a job, called by every member: calls `work(task)` once for each of `count` tasks, and returns when all are done.
  template <class Work>
  void each(int64_t count, const Work& work) {
    for (int64_t task; (task = next_task_.fetch_add(1, std::memory_order_relaxed)) < count;) work(task);
    meet();
  }

 private:
  static constexpr int SPINS = 2000;

  void serve(int member) {
    for (uint32_t seen = 0;;) {
      await(announced_, seen);
      seen++;
      if (ended_) return;
      call_(job_, member);
      meet();
    }
  }

  void announce() {
    announced_.fetch_add(1);
    announced_.notify_all();
  }

  void meet() {
    uint32_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 < size_) return await(round_, round);
    arrived_ = 0;
    next_task_ = 0;
    round_.fetch_add(1);
    round_.notify_all();
  }

  static void await(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int spin = 0; spin < SPINS; spin++) {
      if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    value.wait(old);
  }

  const int size_;
  std::vector<std::thread> threads_;
  void (*call_)(const void*, int) = nullptr;
  const void* job_ = nullptr;
  std::atomic<bool> ended_{false};
  alignas(64) std::atomic<uint32_t> announced_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
};
