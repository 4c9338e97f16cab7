// SPDX-License-Identifier: Apache-2.0
// The module "ucx": a Transport over UCP's tagged messages.
#include <fmt/format.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/module.h"
#include "group/liveness/timing.h"
#include "group/net/transport.h"
#include "group/net/transport_parts.h"
#include "group/net/ucx/devices.h"

namespace tutti::group {

namespace {

struct UcxMessage : Transport::Message {
  void* request;  // null: it failed at once, with `status`
  ucs_status_t status;
  int peer;
  bool sending;
};

UcxMessage* own(Transport::Message* message) { return static_cast<UcxMessage*>(message); }

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw UnavailableError(fmt::format("ucx: {} failed: {}", what, ucs_status_string(status)));
}

// The context and the worker of this process.
class Ucx {
 public:
  explicit Ucx(const std::string& devices) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    if (!devices.empty()) {
      const ucs_status_t status = ucp_config_modify(config, "NET_DEVICES", devices.c_str());
      if (status != UCS_OK) {
        ucp_config_release(config);
        check(status, "setting NET_DEVICES");
      }
    }
    // Over TCP, asking first whether a message is welcome costs more than copying it.
    if (devices.find(':') == devices.npos && !std::getenv("UCX_RNDV_THRESH"))
      ucp_config_modify(config, "RNDV_THRESH", "1m");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    const ucs_status_t status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    if (status != UCS_OK)
      throw UnavailableError(
          fmt::format("ucx: ucp_init failed: {}; {}", ucs_status_string(status),
                      devices.empty() ? "see ucx_info -d for what UCX finds"
                                      : fmt::format("are the interfaces {} there?", devices)));
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");
    check(ucp_worker_get_efd(worker_, &events_), "ucp_worker_get_efd");
  }
  ~Ucx() {
    if (worker_) ucp_worker_destroy(worker_);
    if (context_) ucp_cleanup(context_);
  }
  Ucx(const Ucx&) = delete;

  ucp_worker_h worker() const { return worker_; }
  int events() const { return events_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;
};

class UcxTransport : public Transport {
 public:
  UcxTransport(std::shared_ptr<Ucx> ucx, const std::vector<std::string>& addresses, int rank)
      : ucx_(std::move(ucx)), rank_(rank), peers_(addresses.size()) {
    for (size_t r = 0; r < addresses.size(); ++r) {
      if (int(r) == rank) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
      params.address = reinterpret_cast<const ucp_address_t*>(addresses[r].data());
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      // UCX calls it: nothing may be thrown there.
      params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
        static_cast<Peer*>(arg)->loss.store(ucs_status_string(status));
      };
      params.err_handler.arg = &peers_[r];
      const ucs_status_t status = ucp_ep_create(ucx_->worker(), &params, &peers_[r].endpoint);
      if (status != UCS_OK)
        throw UnavailableError(fmt::format(
            "ucx: rank {} cannot be reached from rank {}: {}; are their interfaces in one network? "
            "TUTTI_INTERFACES names those to use",
            r, rank, ucs_status_string(status)));
    }
  }

  ~UcxTransport() override {
    for (Peer& peer : peers_) close(peer, UCP_EP_CLOSE_MODE_FORCE);
  }

  const char* name() const override { return "ucx"; }

  Message* send(int to, uint64_t tag, const void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    const Peer& peer = peers_[size_t(to)];
    const ucp_request_param_t params{};
    void* const request =
        peer.loss.load() || !peer.endpoint
            ? UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET)
            : ucp_tag_send_nbx(peer.endpoint, data, bytes, full(tag, rank_), &params);
    return message(request, to, true);
  }

  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    const ucp_request_param_t params{};
    return message(
        ucp_tag_recv_nbx(ucx_->worker(), data, bytes, full(tag, from), ~uint64_t{0}, &params), from,
        false);
  }

  State test(Message* message) override {
    if (!message) return State::over;
    std::lock_guard lock(mutex_);
    return test_locked(own(message));
  }
  State advance(Message* message, int times) override {
    if (!message) return State::over;
    std::lock_guard lock(mutex_);
    State state = test_locked(own(message));
    for (int i = 0; i < times && state == State::under_way; ++i) {
      progress_locked();
      state = test_locked(own(message));
    }
    return state;
  }

  bool is_under_way(const Message* message) override {
    std::lock_guard lock(mutex_);
    return message && is_under_way_locked(message);
  }

  bool cancel(Message* given) override {
    if (!given) return true;
    std::lock_guard lock(mutex_);
    UcxMessage* const message = own(given);
    bool done = true;
    if (message->request) {
      if (!message->sending) ucp_request_cancel(ucx_->worker(), message->request);
      // Messages that are cancelled together share one wait.
      const auto now = Clock::now();
      if (now > cancel_until_ + timing::kCancel) cancel_until_ = now + timing::kCancel;
      if (!progress_until_done(message, cancel_until_)) {
        // The peer does not take the message, so only cutting the connection frees its memory.
        Peer& peer = peers_[size_t(message->peer)];
        peer.loss.store("it does not take what is sent to it");
        close(peer, UCP_EP_CLOSE_MODE_FORCE);
        done = progress_until_done(message, Clock::now() + timing::kCancel);
      }
    }
    drop(message);
    return done;
  }

  void progress() override {
    std::lock_guard lock(mutex_);
    progress_locked();
  }

  void sleep(const Message* message, std::chrono::nanoseconds at_most) override {
    std::unique_lock lock(mutex_);
    if (message && !is_under_way_locked(message)) return;
    if (ucp_worker_arm(ucx_->worker()) != UCS_OK) return;  // something is there already
    sleepers_.sleep(lock, ucx_->events(), at_most);
  }

  std::string loss(int rank) const override {
    const char* const text = peers_[size_t(rank)].loss.load();
    return text ? text : "";
  }

  void flush(std::chrono::nanoseconds at_most) override {
    std::lock_guard lock(mutex_);
    const ucp_request_param_t params{};
    void* const request = ucp_worker_flush_nbx(ucx_->worker(), &params);
    if (!UCS_PTR_IS_PTR(request)) return;
    const auto until = Clock::now() + at_most;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < until)
      progress_locked();
    ucp_request_free(request);
  }

 private:
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    std::atomic<const char*> loss{nullptr};
  };

  static uint64_t full(uint64_t tag, int from) { return tag << 32 | uint32_t(from); }

  Message* message(void* request, int peer, bool sending) {
    if (request == nullptr) return nullptr;
    const ucs_status_t status = UCS_PTR_STATUS(request);
    if (UCS_PTR_IS_ERR(request)) request = nullptr;
    return messages_.make({{}, request, status, peer, sending});
  }
  void drop(UcxMessage* message) {
    if (message->request) ucp_request_free(message->request);
    messages_.drop(message);
  }
  static bool is_under_way_locked(const Message* message) {
    const void* const request = static_cast<const UcxMessage*>(message)->request;
    return request && ucp_request_check_status(const_cast<void*>(request)) == UCS_INPROGRESS;
  }
  State test_locked(UcxMessage* message) {
    const ucs_status_t status =
        message->request ? ucp_request_check_status(message->request) : message->status;
    // A receive from a lost rank stays posted until it is cancelled.
    if (status == UCS_INPROGRESS) return State::under_way;
    drop(message);
    return status == UCS_OK                      ? State::over
           : status == UCS_ERR_MESSAGE_TRUNCATED ? State::too_long
                                                 : State::failed;
  }
  void progress_locked() {
    if (ucp_worker_progress(ucx_->worker())) sleepers_.wake();
  }
  bool progress_until_done(UcxMessage* message, Clock::time_point until) {
    while (ucp_request_check_status(message->request) == UCS_INPROGRESS) {
      if (Clock::now() > until) return false;
      progress_locked();
    }
    return true;
  }
  void close(Peer& peer, unsigned mode) {
    if (!peer.endpoint) return;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = mode == UCP_EP_CLOSE_MODE_FORCE ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    void* const request = ucp_ep_close_nbx(peer.endpoint, &params);
    peer.endpoint = nullptr;
    if (!UCS_PTR_IS_PTR(request)) return;
    const auto until = Clock::now() + timing::kCancel;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < until)
      progress_locked();
    ucp_request_free(request);
  }

  const std::shared_ptr<Ucx> ucx_;
  const int rank_;
  std::vector<Peer> peers_;
  std::mutex mutex_;  // UCX serves one thread at a time
  Pool<UcxMessage> messages_;
  Sleepers sleepers_;
  Clock::time_point cancel_until_{};
};

class UcxEndpoint : public Endpoint {
 public:
  explicit UcxEndpoint(const std::string& devices) : ucx_(std::make_shared<Ucx>(devices)) {}
  std::string address() const override {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check(ucp_worker_get_address(ucx_->worker(), &address, &bytes), "ucp_worker_get_address");
    std::string text(reinterpret_cast<const char*>(address), bytes);
    ucp_worker_release_address(ucx_->worker(), address);
    return text;
  }
  std::unique_ptr<Transport> connect(const std::vector<std::string>& addresses, int rank,
                                     const std::function<void()>&) override {
    return std::make_unique<UcxTransport>(ucx_, addresses, rank);
  }

 private:
  std::shared_ptr<Ucx> ucx_;
};

std::unique_ptr<Endpoint> open(const TransportOptions& options) {
  return std::make_unique<UcxEndpoint>(ucx::devices(options));
}

std::string interface_in_use(const TransportOptions& options) {
  const char* const set = std::getenv("UCX_NET_DEVICES");
  if (options.interfaces.empty() && set && *set) return fmt::format("{} (UCX_NET_DEVICES)", set);
  return describe_interface(options, "what UCX chooses");
}

constexpr TransportModule kInterface{open, interface_in_use, nullptr};
constexpr base::Module kModule{TUTTI_VERSION, &kInterface};

}  // namespace

}  // namespace tutti::group

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &tutti::group::kModule;
}
