// SPDX-License-Identifier: Apache-2.0
#include "job/site.h"

#include "base/settings.h"
#include "job/clocks.h"
#include "job/discovery.h"

namespace tutti::group {

namespace {

// Descriptors that a process needs whatever the number of ranks: to join (gRPC's, the shared
// memory), and then to reach the others.
constexpr int kToJoin = 10, kToConnect = 6;

class Machine final : public Site {
 public:
  std::unique_ptr<cluster::Coordination> join(Bootstrap& boot) override {
    timeline_ = open_timeline(boot.membership.rank);  // if it fails, nothing is joined yet
    boot = find_service(boot.membership);
    options_ = transport_options(boot);
    preferred_ = preferred_transport(boot, options_);
    const RegisteredTransport* const named = find_transport(base::settings().backend);
    const RegisteredTransport* const expected = named ? named : preferred_;
    const int for_peers = expected ? expected->kind.files_for(boot.size() - 1) : 0;
    expect_descriptors(
        kToJoin + kToConnect + for_peers + (boot.membership.serves ? boot.size() + 1 : 0), boot);
    return join_service(boot);
  }

  std::unique_ptr<HostBoard> board() override { return std::make_unique<HostBoard>(); }

  Hello hello(int rank) override {
    Hello hello = own_hello(rank);
    hello.preferred = preferred_ ? preferred_->name : "";
    hello.timeline = timeline_;
    return hello;
  }

  HostPeers share_memory(const HostProcesses& processes, const Bootstrap& boot) override {
    expect_descriptors(kToConnect, boot);
    return connect_processes(processes);
  }

  std::unique_ptr<Transport> connect(const std::vector<Hello>& hellos, Bootstrap& boot,
                                     Link& link) override {
    transport_ = &choose_transport(hellos);
    options_.sends_in_bulk = have_two_cores(hellos, boot.membership.rank);
    return group::connect(*transport_, boot, options_, link);
  }

  void describe_network(const Bootstrap& boot, JobLayout& layout) override {
    const TransportKind& kind = transport_->kind;
    layout.network = transport_->name;
    layout.interface =
        load(kind, *module_for(kind, boot.membership.source)).interface_in_use(options_);
  }

 private:
  TimelineHello timeline_;
  TransportOptions options_;
  const RegisteredTransport* preferred_ = nullptr;
  const RegisteredTransport* transport_ = nullptr;  // between hosts
};

}  // namespace

std::unique_ptr<Site> this_machine() { return std::make_unique<Machine>(); }

}  // namespace tutti::group
