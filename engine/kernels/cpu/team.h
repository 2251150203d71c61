// The threads that compute one step together: they spin for a moment between two phases, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

class Team {
 public:
  explicit Team(int size) : size_(size), cores_(cores_for(size)) {
    for (int number = 1; number < size; number++) threads_.emplace_back([this, number] { serve(number); });
  }

  ~Team() {
    ended_ = true;
    announce();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  // The first of `count` tasks that are the share of member `number`, or of a member after it.
  int64_t share_begin(int64_t count, int number) const { return count * number / size_; }

  // One thread of a job. What all members call comes back when all are done.
  struct Member {
    Team& team;
    int number;

    // Calls `work(task)` once for each of `count` tasks, by whoever is free: for tasks of unequal length.
    template <class Work>
    void each(int64_t count, const Work& work) const {
      for (int64_t task; (task = team.next_task_.fetch_add(1, std::memory_order_relaxed)) < count;) work(task);
      team.meet();
    }

    // The same, each member a run of neighbours: for tasks that are short, or read memory one after another.
    template <class Work>
    void share(int64_t count, const Work& work) const {
      for (int64_t task = team.share_begin(count, number); task < team.share_begin(count, number + 1); task++) work(task);
      team.meet();
    }
  };

  // Calls `job(member)` on every thread, the caller's among them, and returns when all have returned.
  template <class Job>
  void run(const Job& job) {
    call_ = [](const void* job, Team& team, int number) { (*static_cast<const Job*>(job))(Member{team, number}); };
    job_ = &job;
    if (!cores_.empty()) leave_core_to_caller();
    announce();
    job(Member{*this, 0});
    meet();
  }

 private:
  static constexpr int SPINS = 2000;

  // Returns the cores of a team that is to have all of them, or none: members that wait for each other again and again are often
  // left on one core by the system, which sees that another is busy but not that its work is of less weight.
  static std::vector<int> cores_for(int size) {
    std::vector<int> cores;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) != size) return cores;
    for (int core = 0; core < CPU_SETSIZE; core++)
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
#endif
    return cores;
  }

  // Keeps the other members to one core each, none of them to that of the caller, who is free to move.
  void leave_core_to_caller() {
#if defined(__linux__)
    int here = sched_getcpu();
    if (here == caller_core_) return;
    caller_core_ = here;
    auto core = cores_.begin();
    for (auto& thread : threads_) {
      if (*core == here) core++;
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(*core++, &only);
      pthread_setaffinity_np(thread.native_handle(), sizeof only, &only);
    }
#endif
  }

  void serve(int number) {
    for (uint32_t seen = 0;;) {
      await(announced_, seen);
      seen++;
      if (ended_) return;
      call_(job_, *this, number);
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
  const std::vector<int> cores_;
  int caller_core_ = -1;
  std::vector<std::thread> threads_;
  void (*call_)(const void*, Team&, int) = nullptr;
  const void* job_ = nullptr;
  std::atomic<bool> ended_{false};
  alignas(64) std::atomic<uint32_t> announced_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
};
